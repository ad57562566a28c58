"""Agreement of the ranks on what all of them have: a broken memory or network is found within an interval."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch

from roundlog.commitments import canonical
from roundlog.execution.ranks.group import Ranks


class DisagreementError(RuntimeError):
    """Ranks have come to different values, so that one of their machines is broken."""


class Agreement:
    """Digest of what a rank has received and stored, which all ranks compare once an interval."""

    def __init__(self, ranks: Ranks, interval: int) -> None:
        """interval: steps between two comparisons."""
        self._ranks, self._interval = ranks, interval
        self._digest = sha256()

    def received(self, value: torch.Tensor) -> torch.Tensor:
        """Takes a value that every rank has received, bit for bit, and returns it."""
        self._take(value)
        return value

    def begin_anew(self) -> None:
        """Forgets what was received since the last comparison; all ranks call it. Rank 0 may have given up an interval,
        and a new executor has received nothing yet."""
        self._digest = sha256()

    def after(self, step: int, states: Sequence[torch.Tensor]) -> None:
        """Compares at the end of an interval; all ranks call it after every step. Raises DisagreementError on all of
        them where one differs."""
        if (step + 1) % self._interval:
            return
        for state in states:
            # NaN has one meaning, and several bits.
            self._take(canonical(state))
        said = self._ranks.gather_bytes(self._digest.digest())
        self._digest = sha256()
        if len(set(said)) > 1:
            raise DisagreementError(_sentence(said, step, self._ranks))

    def _take(self, value: torch.Tensor) -> None:
        self._digest.update(np.ascontiguousarray(value.cpu().numpy()).data)


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
