"""Collectives that end late, fail, or never end, and how ranks choose nccl; without any device."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from roundlog.execution.ranks import LostRankError, Ranks, group
from roundlog.execution.ranks.membership import Membership

CPU = torch.device("cpu")


def others(lost: str | None = None) -> Membership:
    """A membership of this rank and another one, which is lost or not."""
    made = Membership.__new__(Membership)
    made.rank, made.size, made.is_leaving, made.lost, made._others = 0, 2, False, lost, {}
    return made


class _Group:
    """A group that notes that it was given up."""

    def __init__(self) -> None:
        self.is_aborted = threading.Event()

    def abort(self) -> None:
        self.is_aborted.set()


class _Work:
    """A collective that has ended after some looks; and fails then, if told to."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.looks, self._error, self.waits = looks, error, 0

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self, patience: object = None) -> None:
        # With a timeout, nccl would give the group up.
        assert self.looks < 0 and patience is None, "waited for before its event has come"
        self.waits += 1
        if self._error is not None:
            raise self._error


def run(membership: Membership, *works: _Work, group: _Group | None = None) -> None:
    """Run collectives of a group: gloo's, or nccl's if there is one."""
    ranks = Ranks(cast(Any, None), membership)
    ranks._nccl = cast(Any, group)
    ranks._run(torch.empty(1, device="cpu" if group is None else "meta"), lambda group: works)


@pytest.mark.parametrize("group", [None, _Group()], ids=["gloo", "nccl"])
def test_a_collective_is_looked_at_until_it_has_ended(group: _Group | None) -> None:
    works = [_Work(0), _Work(300), _Work(3)]
    run(others(), *works, group=group)
    # Only then may the stream wait for it, which cannot hang any more.
    assert [work.waits for work in works] == [1, 1, 1]


def test_what_hangs_is_given_up_once_a_rank_is_lost() -> None:
    made, since = _Group(), time.monotonic()
    with pytest.raises(LostRankError, match=r"^rank 1 is lost; run the same command again"):
        run(others("rank 1 is lost"), _Work(1 << 60), group=made)
    assert time.monotonic() - since < 10 and made.is_aborted.is_set()


def test_a_rank_that_leaves_waits_no_longer() -> None:
    membership = others()
    threading.Timer(0.2, lambda: setattr(membership, "is_leaving", True)).start()
    with pytest.raises(LostRankError, match=r"^this rank has left the others$"):
        run(membership, _Work(1 << 60))


def test_an_error_names_the_lost_rank_or_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    error = dist.DistBackendError("NCCL error in: somewhere\nand much more")
    monkeypatch.setattr(Membership.why, "__defaults__", (0.0,))
    for lost, said in (
        (None, r"^the connection to another rank is lost \(NCCL error in: somewhere\), "),
        ("rank 1 is lost", r"^rank 1 is lost;"),
    ):
        made = _Group()
        with pytest.raises(LostRankError, match=said):
            run(others(lost), _Work(2, error), group=made)
        assert made.is_aborted.is_set()
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        run(others(), _Work(1, torch.OutOfMemoryError("no memory")), group=_Group())


class _Others(Ranks):
    """Ranks of which the others have these cards, and that note what is sent to all."""

    def __init__(self, cards: list[str]) -> None:
        super().__init__(cast(Any, None), others())
        self.cards, self.gathered = cards, 0

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data, *(one.encode() for one in self.cards)]

    def gather_all(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        self.gathered += 1
        return []


def test_ranks_choose_nccl_once_where_all_have_cards_and_connect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(group, "nccl_group", lambda: made.append(object()) or made[-1])
    monkeypatch.setattr(group, "card", lambda device: "mine (2, 27)")
    ranks = _Others(["yours (2, 27)"])
    for _ in range(2):
        ranks.use(CPU)
        assert len(made) == ranks.gathered == 1 and ranks._nccl is made[0]
    # Another run of a role, in which the other one has no card.
    ranks.cards = [""]
    ranks.use(CPU)
    assert len(made) == ranks.gathered == 1 and ranks._nccl is None


def test_a_cuda_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    # PyTorch's build for CUDA would look for a card here.
    monkeypatch.setattr(group, "card", lambda device: "")
    ranks = _Others([""])
    ranks.use(torch.device("cuda"))
    assert chosen == [ranks.device] == [torch.device("cuda:2")]
