"""Wires between ranks, held against collectives that end late, fail, or never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from roundlog.execution.ranks import LostRankError, Ranks, group
from roundlog.execution.ranks.membership import Membership, StragglerMonitor
from roundlog.execution.ranks.wire import Gloo, Nccl, StagedWire, within

CPU = torch.device("cpu")


class _Membership:
    """Another rank, which is lost after some questions."""

    def __init__(self, lost_after: int = 1 << 30) -> None:
        self._left, self.is_leaving = lost_after, False
        self.stragglers = StragglerMonitor(0, "rank {}".format)

    def require_staying(self) -> None:
        if self.is_leaving:
            raise LostRankError("this rank has left the others")

    def require_all(self) -> None:
        self.require_staying()
        self._left -= 1
        if self._left <= 0:
            raise LostRankError("rank 1 is lost")

    def why(self) -> LostRankError | None:
        return LostRankError("rank 1 is lost") if self._left < 1 << 20 else None


class _Group:
    """A group that notes that it was given up; in time, or never."""

    def __init__(self, hangs: bool = False) -> None:
        self._hangs, self.is_aborted = hangs, threading.Event()

    def abort(self) -> None:
        self.is_aborted.set()
        if self._hangs:
            threading.Event().wait()


class _Work:
    """A collective that has ended after some looks; and fails then, if told to."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.looks, self._error, self.waits = looks, error, 0

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        # With a timeout, nccl would give the group up.
        assert self.looks < 0, "waited for before its event has come"
        self.waits += 1
        if self._error is not None:
            raise self._error


NEVER = 1 << 60


@pytest.fixture
def made() -> Iterator[Callable[..., Nccl]]:
    """Makes wires, and ends their threads."""
    wires = []

    def make(membership: _Membership, group: _Group | None = None) -> Nccl:
        wires.append(Nccl(cast(Any, group or _Group()), cast(Membership, membership), CPU))
        return wires[-1]

    yield make
    for one in wires:
        one.close()


def test_a_collective_of_nccl_is_looked_at_until_it_has_ended(made: Callable[..., Nccl]) -> None:
    works = [_Work(0), _Work(300), _Work(3)]
    wire = made(_Membership())
    wire._run(lambda: works)
    # Only then may the stream wait for it, which cannot hang any more.
    assert [work.waits for work in works] == [1, 1, 1]
    # The same thread does the next one.
    again = _Work(1)
    wire._run(lambda: [again])
    assert again.waits == 1


@pytest.mark.parametrize("hangs", [False, True])
def test_a_collective_of_nccl_that_never_ends_is_given_up_once_a_rank_is_lost(
    hangs: bool, made: Callable[..., Nccl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where giving it up hangs, too."""
    monkeypatch.setattr("roundlog.execution.ranks.wire._SECONDS_TO_END", 0.2)
    group, work, since = _Group(hangs), _Work(NEVER), time.monotonic()
    with pytest.raises(LostRankError, match=r"^rank 1 is lost$"):
        made(_Membership(lost_after=2), group)._run(lambda: [work])
    assert 0.9 < time.monotonic() - since < 10
    assert group.is_aborted.is_set() and work.waits == 0


def test_a_call_that_hangs_before_it_has_started_a_collective_is_given_up_likewise(made: Callable[..., Nccl]) -> None:
    """As the first one does, which connects all ranks."""
    group, ended = _Group(), threading.Event()
    with pytest.raises(LostRankError, match=r"^rank 1 is lost$"):
        made(_Membership(lost_after=1), group)._run(lambda: ended.wait() and [])
    assert group.is_aborted.is_set()
    ended.set()


def test_a_rank_that_leaves_waits_no_longer(made: Callable[..., Nccl]) -> None:
    membership = _Membership()
    threading.Timer(0.2, lambda: setattr(membership, "is_leaving", True)).start()
    with pytest.raises(LostRankError, match=r"^this rank has left the others$"):
        made(membership)._run(lambda: [_Work(NEVER)])


def test_a_rank_that_leaves_is_told_so_wherever_it_asks() -> None:
    membership = Membership.__new__(Membership)
    membership._lost, membership.is_leaving = None, False
    membership.require_staying()
    membership.require_all()
    membership.is_leaving = True
    for ask in (membership.require_staying, membership.require_all):
        with pytest.raises(LostRankError, match=r"^this rank has left the others$"):
            ask()


@pytest.mark.parametrize("at_start", [True, False])
def test_an_error_of_nccl_names_the_lost_rank_or_the_connection(at_start: bool, made: Callable[..., Nccl]) -> None:
    error = dist.DistBackendError("NCCL error in: somewhere\nand much more")

    def start() -> list[_Work]:
        if at_start:
            raise error
        return [_Work(2, error)]

    membership = _Membership()
    with pytest.raises(LostRankError, match=r"^the connection to another rank is lost \(NCCL error in: somewhere\), "):
        made(membership)._run(start)
    group, membership._left = _Group(), 1
    with pytest.raises(LostRankError, match=r"^rank 1 is lost$"):
        made(membership, group)._run(start)
    assert group.is_aborted.is_set()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), ValueError("a wrong size")])
def test_another_error_of_this_rank_blames_no_connection(error: Exception, made: Callable[..., Nccl]) -> None:
    with pytest.raises(type(error), match=str(error)):
        made(_Membership())._run(lambda: [_Work(1, error)])


class _Others(Ranks):
    """Ranks of which the others have these cards, and that note what is sent to all."""

    def __init__(self, cards: list[str]) -> None:
        super().__init__(cast(Any, _Group()), 0, 1 + len(cards), cast(Membership, _Membership()))
        self.cards, self.gathered = cards, 0

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data, *(one.encode() for one in self.cards)]

    def gather_all(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        self.gathered += 1
        return []


def test_ranks_choose_nccl_once_where_all_have_cards_and_connect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def by_nccl(membership: object, device: torch.device) -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(group, "by_nccl", by_nccl)
    monkeypatch.setattr(group, "card", lambda device: "mine (2, 27)")
    ranks = _Others(["yours (2, 27)"])
    for _ in range(2):
        ranks.use(CPU)
        assert len(made) == ranks.gathered == 1 and ranks._between_devices is made[0]
    # Another run of a role, in which the other one has no card.
    ranks.cards = [""]
    ranks.use(CPU)
    assert len(made) == ranks.gathered == 1 and isinstance(ranks._between_devices, StagedWire)


def test_a_cuda_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    # PyTorch's build for CUDA would look for a card here.
    monkeypatch.setattr(group, "card", lambda device: "")
    ranks = _Others([""])
    ranks.use(torch.device("cuda"))
    assert chosen == [ranks.device] == [torch.device("cuda:2")]


class _EndsAfterALook:
    """A collective of gloo that ends just after somebody has waited for it too shortly."""

    def __init__(self) -> None:
        self.waits = 0

    def is_completed(self) -> bool:
        return self.waits > 0

    def wait(self, patience: object) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")


def test_a_collective_that_ends_just_after_a_look_is_not_taken_for_a_lost_connection() -> None:
    work = _EndsAfterALook()
    Gloo(cast(Any, _Group()), cast(Membership, _Membership()))._run(lambda: [work])
    assert work.waits == 2


class _Reversing:
    """A wire between CPUs that turns what it carries round, and notes the devices."""

    def __init__(self) -> None:
        self.sources: list[int] = []

    def to_owners(self, received: torch.Tensor, sent: torch.Tensor, incoming: object, outgoing: object) -> None:
        received.copy_(sent.flip(0))

    def gather(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        whole.copy_(torch.cat([mine, mine.flip(0)]))

    def broadcast(self, messages: list[tuple[torch.Tensor, int]]) -> None:
        for x, source in messages:
            self.sources.append(source)
            if source != 1:
                x.fill_(source)


def test_what_lies_on_a_device_goes_through_cpu_memory_and_comes_back() -> None:
    wire, x = StagedWire(_Reversing(), rank=1), torch.arange(4.0)
    received, whole = torch.empty(4), torch.empty(8)
    wire.to_owners(received, x, [4], [4])
    wire.gather(whole, x)
    assert received.tolist() == [3, 2, 1, 0] and whole.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    mine, others = torch.ones(2), torch.ones(2)
    wire.broadcast([(mine, 1), (others, 7)])
    assert mine.tolist() == [1, 1] and others.tolist() == [7, 7]


def test_what_hangs_is_left_behind_in_time() -> None:
    ended = threading.Event()
    assert within(5, lambda: None) and within(5, lambda: 1 // 0)
    assert not within(0.1, ended.wait)
    ended.set()
