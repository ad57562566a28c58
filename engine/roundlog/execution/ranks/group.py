"""A group of ranks: processes that execute one step together, and what they send each other by torch.distributed.

What lies in CPU memory goes by gloo. What lies on a device goes by nccl where every rank computes on a CUDA device of
its own, and else through CPU memory, by gloo as well. One promise is enough: what arrives are the bytes that were sent.
Every rank has to call the same methods in the same order.

A launcher (torchrun) sets RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment of every
process that it starts, and ends all of them by SIGTERM where one has ended with an error.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported, but not listed

from roundlog.execution.batches import CPU
from roundlog.execution.ranks.membership import LostRankError, Membership
from roundlog.kernels.scratch import empty

FOREVER = timedelta(days=365)
"""Timeout of collectives. A rank may wait for hours, as rank 0 validates; a lost one is found by its signs of life."""

PATIENCE = 0.5
"""Seconds after which a waiting rank asks whether the others are still there."""

_LOOK = 5e-5
"""Least seconds between two looks at a collective; after a longer wait, a 64th of it."""

_SECONDS_TO_ABORT = 3.0
"""Time that nccl gets to let go of its device. It may hang for the same reason as the collective did."""

_SECONDS_TO_CLOSE = 10.0

T = TypeVar("T")


class Ranks:
    """The ranks of one run, from 0 to `size` - 1. Tensors are flat, in CPU memory on every rank or on the device of
    every rank."""

    unfinished: ClassVar[bool] = False
    """Whether this process has left ranks in the midst of what they do together. Threads of PyTorch's wait for them
    then, and abort a process that ends in the usual way."""

    def __init__(self, group: dist.ProcessGroup, membership: Membership) -> None:
        """group: of gloo."""
        self.rank, self.size = membership.rank, membership.size
        self.membership = membership
        self.device = CPU
        """The device on which this rank computes."""
        self._cards: list[str] = []
        self._gloo = group
        self._nccl: dist.ProcessGroup | None = None
        """The group between the devices of all ranks, if there is one."""

    def use(self, device: torch.device) -> None:
        """Choose the device on which this rank computes, and with all others how tensors go between devices. All ranks
        call it, before anything lies on a device. Raises LostRankError."""
        if device.type == "cuda":
            if device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            # Libraries that are told no device allocate on the current one.
            torch.cuda.set_device(device)
        cards = [one.decode() for one in self.gather_bytes(card(device).encode())]
        before, self._cards = self._cards, cards
        self.device = device
        if not suit_nccl(cards):
            self._nccl = None
        elif cards != before:
            self._nccl = nccl_group()
            # The first collective connects all, and may hang where a rank is lost.
            _watched(self.membership, lambda: self.gather_all(torch.zeros(1, device=device), [1] * self.size))

    def close(self) -> bool:
        """Close all connections, once the others have left, too. Return whether that has ended in time."""
        has_ended = _ends_within(_SECONDS_TO_CLOSE, dist.destroy_process_group)
        # Gloo's threads end with the last reference, and not while the interpreter is taken down.
        del self._gloo, self._nccl
        return has_ended

    def give_up(self, reason: str) -> None:
        """Leave the other ranks, wherever they are; each ends with a sentence that has this reason. Nothing is sent
        afterwards."""
        self.membership.is_leaving = True
        self.membership.leave(reason)

    def share(self, numel: int, rank: int) -> tuple[int, int]:
        """Return (first, last): of a tensor, a rank owns the elements first <= i < last."""
        width = -(-numel // self.size)
        return min(rank * width, numel), min((rank + 1) * width, numel)

    # Collectives to which every rank gives something.

    def to_owners(self, parts: Sequence[Sequence[torch.Tensor]], incoming: Sequence[int]) -> list[torch.Tensor]:
        """All-to-all: return the parts of all ranks for this one, by rank. parts: what this one has for every rank,
        flat and in pieces. incoming: the numbers of elements that come from each.

        Sums are exchanged by it too, in place of a reduce-scatter: gloo's is an all-reduce that throws all but a
        share away."""
        outgoing = [sum(map(len, pieces)) for pieces in parts]
        pieces = [piece for pieces in parts for piece in pieces]
        like = pieces[0] if pieces else torch.empty(0, dtype=torch.int64, device=self.device)
        together = _memory(sum(outgoing), like)
        if pieces:
            torch.cat(pieces, out=together)
        sent = self._where_sent(together)
        received = _memory(sum(incoming), sent)
        sizes = list(incoming), list(outgoing)
        self._run(sent, lambda group: [dist.all_to_all_single(received, sent, *sizes, group=group, async_op=True)])
        return list(received.to(together.device).split(list(incoming)))

    def gather_all(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """All-gather: return every rank's tensor. sizes: their numbers of elements."""
        width = max(sizes)
        if not width:
            return [mine.new_empty(0) for _ in sizes]
        sent = self._where_sent(F.pad(mine, (0, width - mine.numel())) if mine.numel() < width else mine.contiguous())
        whole = _memory(self.size * width, sent)
        own = _carried(sent)
        to = list(_carried(whole).split(own.numel()))
        self._run(sent, lambda group: [dist.all_gather(to, own, group=group, async_op=True)])
        whole = whole.to(mine.device)
        return [whole[rank * width : rank * width + size] for rank, size in enumerate(sizes)]

    def numbers(self, *mine: int) -> list[list[int]]:
        """Return every rank's numbers, as many as this one's, by rank."""
        own = torch.tensor(mine, dtype=torch.int64)
        return [x.tolist() for x in self.gather_all(own, [len(mine)] * self.size)]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes."""
        sizes = [size for (size,) in self.numbers(len(data))]
        return [x.numpy().tobytes() for x in self.gather_all(_as_tensor(data), sizes)]

    # Broadcasts.

    def broadcast(self, x: torch.Tensor, source: int = 0) -> None:
        """Make x what it is at rank `source`, in place."""
        self.broadcast_together([(x, source)])

    def broadcast_together(self, messages: Sequence[tuple[torch.Tensor, int]]) -> None:
        """`broadcast` of several tensors, each with its source, at the same time: a connection has two directions."""
        if not messages:
            return
        sent = [self._where_sent(x) for x, _ in messages]
        flat = [(_carried(x), source) for x, (_, source) in zip(sent, messages, strict=True)]
        self._run(sent[0], lambda group: [dist.broadcast(x, source, group=group, async_op=True) for x, source in flat])
        for (x, source), here in zip(messages, sent, strict=True):
            if here is not x and source != self.rank:
                x.copy_(here)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Return the bytes of rank 0; the others give None."""
        size = torch.tensor([len(data or b"")])
        self.broadcast(size)
        x = _as_tensor(data) if data else torch.empty(int(size), dtype=torch.uint8)
        if len(x):
            self.broadcast(x)
        return x.numpy().tobytes()

    # How they are sent.

    def _where_sent(self, x: torch.Tensor) -> torch.Tensor:
        """Return x where it can be sent from: as it is, or a copy in CPU memory."""
        return x if x.device.type == "cpu" or self._nccl is not None else x.cpu()

    def _run(self, sent: torch.Tensor, start: Callable[[Any], Sequence[Any]]) -> None:
        """Start collectives (`Work` of torch.distributed) in the group that carries `sent`, and return when they have
        ended. Raises LostRankError where another rank has.

        They are polled: `Work.wait` of nccl makes only the device wait, and with a timeout gives the group up."""
        group: Any = self._gloo if sent.device.type == "cpu" else self._nccl
        try:
            for work in start(group):
                began = asked = time.monotonic()
                while not work.is_completed():
                    now = time.monotonic()
                    if now - asked > PATIENCE:
                        self.membership.require_all()
                        asked = now
                    time.sleep(min(max(_LOOK, (now - began) / 64), PATIENCE / 8))
                # An error of the collective is raised here.
                work.wait()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if sent.device.type != "cpu":
                # Collectives that still run on the device would keep others from it: this process may go on alone.
                _ends_within(_SECONDS_TO_ABORT, group.abort)
            raise (error if isinstance(error, LostRankError) else self._failed(error)) from error

    def _failed(self, error: Exception) -> LostRankError:
        """Return the error that names the rank whose loss made a collective fail, once it is known."""
        return self.membership.why() or LostRankError(
            f"the connection to another rank is lost ({str(error).partition(chr(10))[0][:200]}), though all of them "
            "are there: check the network, and run the same command again"
        )


def _watched(membership: Membership, call: Callable[[], T]) -> T:
    """Make a call that may hang where a rank is lost, on another thread, and return its result. Raises LostRankError
    once one is."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="collective", daemon=True).start()
    while True:
        try:
            return future.result(PATIENCE)
        except TimeoutError:
            if future.done():
                raise
        membership.require_all()


def _ends_within(seconds: float, function: Callable[[], object]) -> bool:
    """Call a function that may hang, on another thread; return whether it has ended within `seconds`. Its errors are
    ignored."""

    def call() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _carried(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as groups take it: none carries truth values, and not all carry numbers of 16 bits."""
    return bytes_of(x) if x.element_size() < 4 else x


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return uint8: the memory of a flat tensor without gaps."""
    # A single element may have any stride; a new axis has that of one element.
    return x.unsqueeze(-1).view(torch.uint8).view(-1)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _memory(numel: int, like: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor of a dtype and on a device, uninitialised."""
    return empty((numel,), like.dtype) if like.device.type == "cpu" else like.new_empty(numel)


def card(device: torch.device) -> str:
    """Return the CUDA device and the version of nccl, for the ranks to compare; "" where nccl cannot send from it."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return f"{torch.cuda.get_device_properties(device).uuid} {torch.cuda.nccl.version()}"


def suit_nccl(cards: Sequence[str]) -> bool:
    """Return whether nccl can send between these `card`s of all ranks: it refuses two ranks on one device, and other
    versions."""
    devices, versions = zip(*(one.partition(" ")[::2] for one in cards), strict=True)
    # A rank without a card names no version, either.
    return len(set(devices)) == len(cards) and len(set(versions)) == 1


def nccl_group() -> dist.ProcessGroup:
    """Return a new group between the devices of all ranks; all of them call this."""
    # Nccl's own watch would abort this process before it could name the lost rank, and end it where all is well.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    group = dist.new_group(backend="nccl", timeout=FOREVER)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return group


def connect(launch: Launch, seconds: float = 60) -> Ranks:
    """Return the ranks of a launch, once all of them are there. Raises LostRankError if a rank does not come within
    `seconds`."""
    patience = timedelta(seconds=seconds)
    host, port = launch.host, launch.port
    try:
        listening = None
        if launch.loopback is not None:
            # Gloo would look up this machine's name to find an address to listen on.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            if launch.is_host:
                # A store that listens by itself does so on all interfaces.
                family = socket.AF_INET6 if ":" in launch.loopback else socket.AF_INET
                listening = socket.create_server((launch.loopback, port), family=family).detach()
        store = TCPStore(host, port, None, launch.is_host, patience, wait_for_workers=False, master_listen_fd=listening)
        own = TCPStore(host, port, None, False, patience, wait_for_workers=False)
        membership = Membership(PrefixStore(f"{launch.name}/membership", own), launch.rank, launch.size, seconds)
        _connect_all(PrefixStore(f"{launch.name}/group", store), membership)
    except LostRankError:
        if launch.is_host:
            # The others look into the store once more.
            time.sleep(4 * PATIENCE)
        raise
    except (RuntimeError, OSError) as error:
        raise LostRankError(
            f"the ranks cannot reach each other by {host}:{port} ({str(error).partition(chr(10))[0][:200]}): check the "
            "address that the launcher was given"
        ) from error
    group = dist.group.WORLD
    assert group is not None
    return Ranks(group, membership)


def _connect_all(store: Store, membership: Membership) -> None:
    """Connect all ranks by gloo. Raises LostRankError where one has ended meanwhile, which gloo waits for, and
    RuntimeError."""
    rank, size = membership.rank, membership.size
    try:
        _watched(
            membership,
            lambda: dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=FOREVER),
        )
    except LostRankError:
        Ranks.unfinished = True
        raise
    except RuntimeError as error:
        raise membership.why() or error from error


def disconnect(ranks: Ranks, reason: str | None = None) -> None:
    """Leave the group. reason: the error that this rank ends with, for the others."""
    membership = ranks.membership
    membership.leave(reason)
    # So that no rank closes the store while another one still uses it.
    deadline = time.monotonic() + 2
    while membership.lost is None and time.monotonic() < deadline and not membership.all_have_left():
        time.sleep(0.01)
    if ranks.rank == 0:
        # The store may lie with this process, and the others look into it once more.
        time.sleep(0.5)
    in_order = reason is None and membership.lost is None and not membership.is_leaving
    if not (in_order and ranks.close()):
        Ranks.unfinished = True


MAX_RANKS = 4096
"""More ranks than anybody has samples in a batch."""


class LaunchError(RuntimeError):
    """The environment names ranks in a way that no launcher does, or ranks were asked for a job that they cannot
    execute."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Place of a process among the ranks, as a launcher tells it."""

    rank: int
    size: int
    """Number of ranks, at least two."""
    host: str
    port: int
    name: str
    """Tells this start of the ranks from others that use the same store."""
    is_host: bool
    """Whether this process has to hold the store; otherwise rank 0 or the launcher does."""
    local_rank: int | None = None
    """Number of this process among those that the launcher has started on this machine, if it says so."""
    loopback: str | None = None
    """Address on the loopback interface, if the environment says that all ranks are on this machine."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch | None:
        """Return the launch of an environment; None if it names no ranks, or a single one. Raises LaunchError."""
        if environment.get("WORLD_SIZE", "1") == "1":
            return None
        size = _number(environment, "WORLD_SIZE", 1, MAX_RANKS)
        rank = _number(environment, "RANK", 0, size - 1)
        port = _number(environment, "MASTER_PORT", 1, 65535)
        host = environment.get("MASTER_ADDR", "")
        if not host:
            raise _wrong("MASTER_ADDR", "is not there")
        local_rank = _number(environment, "LOCAL_RANK", 0, size - 1) if "LOCAL_RANK" in environment else None
        by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        loopback = _loopback(environment, host, size)
        if loopback is not None and not by_agent:
            host = loopback  # rank 0 listens nowhere else
        start = (environment.get("TORCHELASTIC_RUN_ID", "none"), environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        name = "tiebreak/" + "/".join(start)
        return cls(rank, size, host, port, name, rank == 0 and not by_agent, local_rank, loopback)

    def device(self, chosen: str) -> str:
        """Return the device of this process, where a person has chosen one for all of them: of `cuda`, every process of
        a machine has a device of its own, as long as there are so many, as torchrun's users expect."""
        count = torch.cuda.device_count() if chosen == "cuda" and self.local_rank is not None else 0
        return f"cuda:{(self.local_rank or 0) % count}" if count else chosen


def _loopback(environment: Mapping[str, str], host: str, size: int) -> str | None:
    """Return an address on the loopback interface, if all ranks are on this machine. No name is looked up: many
    machines have their own on that interface, by which other machines reach them. Raises LaunchError."""
    try:
        literal = "127.0.0.1" if host == "localhost" else host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        literal = None
    if "LOCAL_WORLD_SIZE" not in environment:
        return literal
    is_one_machine = _number(environment, "LOCAL_WORLD_SIZE", 1, size) == size
    return literal or "127.0.0.1" if is_one_machine else None


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None:
        raise _wrong(name, "is not there")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise _wrong(name, f"is {text[:40]!r}, and should be a number from {least} to {most}")
    return int(text)


def _wrong(name: str, what: str) -> LaunchError:
    return LaunchError(
        f"the environment has WORLD_SIZE, so that this process is one of several ranks, but {name} {what}: start the "
        "command by torchrun, or alone, without WORLD_SIZE"
    )


@contextmanager
def joined(launch: Launch, seconds: float = 300) -> Iterator[Ranks]:
    """A block with the ranks of a launch, once all are there. Where this rank ends with an error, the others are told.

    SIGTERM, by which torchrun ends all ranks where one is lost, raises KeyboardInterrupt. After an error it stays
    ignored, so that this process can say why it ends. To be called on the main thread. Raises LostRankError if a rank
    does not come within so many seconds."""

    def terminated(number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt what the first one has begun.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminated)
    ranks: Ranks | None = None
    try:
        ranks = connect(launch, seconds)
        yield ranks
        disconnect(ranks)
        signal.signal(signal.SIGTERM, before)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if ranks is not None:
            reason: str | None = str(error) or type(error).__name__
            if isinstance(error, LostRankError):
                reason = None  # the others find the lost rank, too, and are not to name this one in its place
            elif isinstance(error, KeyboardInterrupt):
                reason = "it was interrupted"
            disconnect(ranks, reason)
        raise
