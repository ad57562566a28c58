"""Wires between ranks: what carries their tensors.

What lies in CPU memory goes by gloo. What lies on a device goes by nccl where every rank computes on a CUDA device of
its own, and else through CPU memory, by gloo as well. All ranks use the same wire for the same tensors, in the same
order.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist

from roundlog.execution.ranks.membership import LostRankError, Membership

FOREVER = timedelta(days=365)
"""Timeout of collectives. A rank may wait for hours, as rank 0 validates; a lost one is found by its heart."""

PATIENCE = 0.5
"""Seconds after which a waiting rank asks whether the others are still there."""

_LOOK = 5e-5
"""Seconds between two looks at a collective of nccl."""

_SECONDS_TO_END = 3.0
"""Time that nccl gets to let go of its device. It may hang for the same reason as the collective did."""

Message = tuple[torch.Tensor, int]
"""A tensor, and the rank whose value all others get."""


class Wire(Protocol):
    """Collectives of all ranks. Tensors are flat, contiguous, on the wire's kind of device, and no truth values. Each
    returns when its results are there, and raises LostRankError where another rank has ended."""

    def to_owners(
        self, received: torch.Tensor, sent: torch.Tensor, incoming: Sequence[int], outgoing: Sequence[int]
    ) -> None:
        """Sends every rank a part of `sent`, and fills `received` with what all ranks have for this one, by rank.
        incoming, outgoing: numbers of elements of these parts."""

    def gather(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        """Fills `whole` with the tensors of all ranks, by rank, all of them as long as `mine`."""

    def broadcast(self, messages: Sequence[Message]) -> None:
        """Makes each tensor what it is at its source, in place."""


class _OfGroup(ABC):
    """A wire that is a group of torch.distributed (implements Wire)."""

    def __init__(self, group: dist.ProcessGroup, membership: Membership) -> None:
        self._group, self._membership = group, membership

    def to_owners(
        self, received: torch.Tensor, sent: torch.Tensor, incoming: Sequence[int], outgoing: Sequence[int]
    ) -> None:
        sizes = list(incoming), list(outgoing)
        self._take_part(lambda: [dist.all_to_all_single(received, sent, *sizes, group=self._group, async_op=True)])

    def gather(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        of_ranks = list(whole.split(mine.numel()))
        self._take_part(lambda: [dist.all_gather(of_ranks, mine, group=self._group, async_op=True)])

    def broadcast(self, messages: Sequence[Message]) -> None:
        self._take_part(lambda: [dist.broadcast(x, source, group=self._group, async_op=True) for x, source in messages])

    def _take_part(self, start: Callable[[], Sequence[Any]]) -> None:
        with self._membership.stragglers.waiting():
            self._run(start)

    @abstractmethod
    def _run(self, start: Callable[[], Sequence[Any]]) -> None:
        """Starts collectives (`Work` of torch.distributed), and returns when they have ended."""

    def _failed(self, error: Exception) -> LostRankError:
        """The error that names the rank whose loss made a collective fail, once it is known."""
        return self._membership.why() or LostRankError(
            f"the connection to another rank is lost ({str(error).partition(chr(10))[0][:200]}), though all of them "
            "are there: check the network, and run the same command again"
        )


class Gloo(_OfGroup):
    """Gloo, for tensors in CPU memory."""

    def _run(self, start: Callable[[], Sequence[Any]]) -> None:
        for work in start():
            self._wait(work)

    def _wait(self, work: Any) -> None:
        while True:
            self._membership.require_staying()
            # Asked before the wait: a collective may end between a wait that was too short and a question after it.
            had_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=PATIENCE))
                return
            except RuntimeError as error:
                if had_ended:
                    # A connection is gone. Who has gone with it is known a little later.
                    raise self._failed(error) from error
                self._membership.require_all()
                self._membership.stragglers.tell()


class StagedWire:
    """The way through CPU memory, for tensors on any device (implements Wire)."""

    def __init__(self, wire: Wire, rank: int) -> None:
        """wire: for tensors in CPU memory. rank: this process's."""
        self._wire, self._rank = wire, rank

    def to_owners(
        self, received: torch.Tensor, sent: torch.Tensor, incoming: Sequence[int], outgoing: Sequence[int]
    ) -> None:
        here = torch.empty_like(received, device="cpu")
        self._wire.to_owners(here, sent.cpu(), incoming, outgoing)
        received.copy_(here)

    def gather(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        here = torch.empty_like(whole, device="cpu")
        self._wire.gather(here, mine.cpu())
        whole.copy_(here)

    def broadcast(self, messages: Sequence[Message]) -> None:
        here = [
            (x.cpu() if source == self._rank else torch.empty_like(x, device="cpu"), source) for x, source in messages
        ]
        self._wire.broadcast(here)
        for (x, source), (value, _) in zip(messages, here, strict=True):
            if source != self._rank:
                x.copy_(value)


class Nccl(_OfGroup):
    """Nccl, between CUDA devices. Every rank has one of its own.

    A collective of nccl has ended when an event on the device says so. `Work.wait` makes only the device wait for it;
    with a timeout it gives the group up when time is up. So the event is asked, again and again. And a call that starts
    a collective may itself hang where a rank is lost, since the first one connects all of them: it is made on a thread
    of its own, and this one stays free to ask whether all are there."""

    def __init__(self, group: dist.ProcessGroup, membership: Membership, device: torch.device) -> None:
        super().__init__(group, membership)
        self._device = device
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=_answer, args=(self._calls,), name="nccl", daemon=True).start()

    def _run(self, start: Callable[[], Sequence[Any]]) -> None:
        call = _Call(start, _stream(self._device))
        self._calls.put(call)
        while not call.has_ended.wait(PATIENCE):
            try:
                self._membership.require_all()
            except LostRankError:
                call.is_given_up = True
                self._abort()
                raise
            self._membership.stragglers.tell()
        if call.error is None:
            return
        if not isinstance(call.error, RuntimeError) or isinstance(call.error, torch.OutOfMemoryError):
            raise call.error
        lost = self._failed(call.error)
        self._abort()
        raise lost from call.error

    def _abort(self) -> None:
        """Ends what still runs on the device, which would keep others from it: this process may go on alone."""
        within(_SECONDS_TO_END, self._group.abort)

    def close(self) -> None:
        """Ends the thread."""
        self._calls.put(None)


class _Call:
    """A call of `Nccl`'s thread: collectives, from their start to their end."""

    def __init__(self, start: Callable[[], Sequence[Any]], stream: AbstractContextManager[Any]) -> None:
        """stream: a context in which the device computes in the order of the thread that has asked."""
        self._start, self._stream = start, stream
        self.has_ended = threading.Event()
        self.error: Exception | None = None
        """The error that it has ended with."""
        self.is_given_up = False
        """Whether nobody waits for it any more."""

    def run(self) -> None:
        try:
            with self._stream:
                for work in self._start():
                    while not work.is_completed():
                        if self.is_given_up:
                            return
                        time.sleep(_LOOK)
                    # An error of the collective is raised here, too.
                    work.wait()
        except Exception as error:
            self.error = error
        self.has_ended.set()


def _answer(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        # It holds tensors, and the next one may be long in coming.
        del call


def _stream(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which another thread computes on the device after what this one has computed there."""
    return torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()


def within(seconds: float, function: Callable[[], object]) -> bool:
    """Calls a function that may hang, on another thread; whether it has ended within so many seconds. Its errors are
    nobody's."""

    def call() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def card(device: torch.device) -> str:
    """The CUDA device and the version of nccl, for the ranks to compare; "" where nccl cannot send from it."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return f"{torch.cuda.get_device_properties(device).uuid} {torch.cuda.nccl.version()}"


def suit_nccl(cards: Sequence[str]) -> bool:
    """Whether nccl can send between these `card`s of all ranks: it refuses two ranks on one device, and other
    versions."""
    devices, versions = zip(*(one.partition(" ")[::2] for one in cards), strict=True)
    # A rank without a card names no version, either.
    return len(set(devices)) == len(cards) and len(set(versions)) == 1


def by_nccl(membership: Membership, device: torch.device) -> Nccl:
    """A new wire between the devices of all ranks; all of them call this."""
    # Nccl's own watch would abort this process before it could name the lost rank, and end it where all is well.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    group = dist.new_group(backend="nccl", timeout=FOREVER)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return Nccl(group, membership, device)
