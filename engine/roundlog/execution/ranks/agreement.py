"""Agreement of the ranks on what all of them have: a broken memory or network is found within an interval."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import torch

from roundlog.commitments import canonical
from roundlog.execution.ranks.group import Ranks

if TYPE_CHECKING:
    from hashlib import _Hash as HASH


class DisagreementError(RuntimeError):
    """Ranks have come to different values, so that one of their machines is broken."""


class Agreement:
    """Digests of what a rank has sent, received and stored, which all ranks compare once an interval."""

    def __init__(self, ranks: Ranks, interval: int) -> None:
        """interval: steps between two comparisons."""
        self._ranks, self._interval = ranks, interval
        self.begin_anew()

    def received(self, value: torch.Tensor) -> torch.Tensor:
        """Takes a value that every rank has received, bit for bit, and returns it."""
        _take(self._digest, value)
        return value

    def sent(self, rank: int, value: torch.Tensor) -> None:
        """Takes a value that this rank has sent to one other rank."""
        _take(self._sent[rank], value)

    def received_from(self, rank: int, value: torch.Tensor) -> None:
        """Takes a value that one other rank has sent to this one."""
        _take(self._received[rank], value)

    def begin_anew(self) -> None:
        """Forgets what was received since the last comparison; all ranks call it. Rank 0 may have given up an interval,
        and a new executor has received nothing yet."""
        self._digest = sha256()
        self._sent, self._received = ([sha256() for _ in range(self._ranks.size)] for _ in range(2))

    def after(self, step: int, states: Sequence[torch.Tensor]) -> None:
        """Compares at the end of an interval; all ranks call it after every step. states: those that every rank has.
        Raises DisagreementError on all of them where one differs."""
        if (step + 1) % self._interval:
            return
        for state in states:
            # NaN has one meaning, and several bits.
            _take(self._digest, canonical(state))
        told = self._ranks.gather_bytes(b"".join(one.digest() for one in (self._digest, *self._sent, *self._received)))
        digests = [[one[32 * i : 32 * i + 32] for i in range(2 * self._ranks.size + 1)] for one in told]
        self.begin_anew()
        said = [own for own, *_ in digests]
        if len(set(said)) > 1:
            raise DisagreementError(_sentence(said, step, self._ranks))
        for sender, (_, *others) in enumerate(digests):
            for receiver, sent in enumerate(others[: self._ranks.size]):
                if digests[receiver][1 + self._ranks.size + sender] != sent:
                    raise DisagreementError(_sentence_of_two(sender, receiver, step, self._ranks))


def _take(digest: HASH, value: torch.Tensor) -> None:
    digest.update(np.ascontiguousarray(value.cpu().numpy()).data)


def _sentence(said: Sequence[bytes], step: int, ranks: Ranks) -> str:
    """The ranks that differ from more than half of all; or from rank 0, if no half agrees."""
    most = max(set(said), key=said.count)
    is_majority = 2 * said.count(most) > len(said)
    right = most if is_majority else said[0]
    others = [ranks.membership.name(rank) for rank, one in enumerate(said) if one != right]
    agreed = "all other ranks" if is_majority else "rank 0, which may itself be wrong"
    return (
        f"after step {step}, {' and '.join(others)} had other values than {agreed}: a memory or network is broken; "
        "leave that machine out, and run the same command again, with any number of ranks, to carry on"
    )


def _sentence_of_two(sender: int, receiver: int, step: int, ranks: Ranks) -> str:
    name = ranks.membership.name
    return (
        f"after step {step}, {name(receiver)} had received other values from {name(sender)} than this one had sent: a "
        "memory of one of them, or the network between them, is broken; leave one out, and run the same command again, "
        "with any number of ranks, to carry on"
    )
