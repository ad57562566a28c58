"""A group of ranks: processes that execute one step together, and what they send each other.

All is sent by torch.distributed (`roundlog.execution.ranks.wire`). One promise of it is enough: what arrives are
the bytes that were sent. Every rank has to call the same methods in the same order.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported, but not listed

from roundlog.execution.batches import CPU
from roundlog.execution.ranks.membership import TERMINATED, LostRankError, Membership
from roundlog.execution.ranks.wire import (
    FOREVER,
    PATIENCE,
    Gloo,
    Nccl,
    StagedWire,
    Wire,
    by_nccl,
    card,
    suit_nccl,
    within,
)
from roundlog.kernels.scratch import empty

_SECONDS_TO_CLOSE = 10.0

_MOST_BYTES = 1 << 30
"""Bytes of a rank's message at most: what it tells of a step's log is the longest."""


class Ranks:
    """The ranks of one run, from 0 to `size` - 1. Tensors are flat, in CPU memory on every rank or on the device of
    every rank."""

    unfinished: ClassVar[bool] = False
    """Whether this process has left ranks in the midst of what they do together. Threads of PyTorch's wait for them
    then, and abort a process that ends in the usual way."""

    def __init__(self, group: dist.ProcessGroup, rank: int, size: int, membership: Membership) -> None:
        """group: of gloo."""
        self.rank, self.size = rank, size
        self.membership = membership
        self.device = CPU
        """The device on which this rank computes."""
        self._cards: list[str] = []
        self._between_cpus: Wire = Gloo(group, membership)
        self._between_devices: Wire = StagedWire(self._between_cpus, rank)

    def use(self, device: torch.device) -> None:
        """Chooses the device on which this rank computes, and with all others the wire between their devices. All ranks
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
            self._between_devices = StagedWire(self._between_cpus, self.rank)
        elif cards != before:
            self._between_devices = by_nccl(self.membership, device)
            # The first collective connects all: what is wrong with that is said now.
            self.gather_all(torch.zeros(1, device=device), [1] * self.size)

    def _wire(self, x: torch.Tensor) -> Wire:
        return self._between_cpus if x.device.type == "cpu" else self._between_devices

    def close(self) -> bool:
        """Lets go of all connections, once the others have left, too. Whether that has ended in time."""
        if isinstance(self._between_devices, Nccl):
            self._between_devices.close()
        has_ended = within(_SECONDS_TO_CLOSE, dist.destroy_process_group)
        # Gloo's threads end with the last reference, and not while the interpreter is taken down.
        del self._between_cpus, self._between_devices
        return has_ended

    def give_up(self, reason: str) -> None:
        """Leaves the other ranks, wherever they are; each ends with a sentence that has this reason. Nothing is sent
        afterwards."""
        self.membership.is_leaving = True
        self.membership.leave(reason)

    # Shares of a tensor.

    def share(self, numel: int, rank: int | None = None) -> tuple[int, int]:
        """(first, last): the elements first <= i < last of a tensor that a rank (None: this one) owns."""
        width = self._width(numel)
        first = (self.rank if rank is None else rank) * width
        return min(first, numel), min(first + width, numel)

    def _width(self, numel: int) -> int:
        return -(-numel // self.size)

    # Collectives to which every rank gives something.

    def to_owners(self, parts: Sequence[Sequence[torch.Tensor]], incoming: Sequence[int]) -> list[torch.Tensor]:
        """Parts of all ranks for this one, by rank. parts: what this one has for every rank, flat and in pieces.
        incoming: the numbers of elements that come from each.

        Sums are exchanged by it too, in place of a reduce-scatter: gloo's is an all-reduce that throws all but a
        share away."""
        outgoing = [sum(map(len, pieces)) for pieces in parts]
        pieces = [piece for pieces in parts for piece in pieces]
        like = pieces[0] if pieces else torch.empty(0, dtype=torch.int64, device=self.device)
        together, received = (_memory(size, like) for size in (sum(outgoing), sum(incoming)))
        if pieces:
            torch.cat(pieces, out=together)
        self._wire(together).to_owners(received, together, incoming, outgoing)
        return list(received.split(list(incoming)))

    def gather_all(self, mine: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Every rank's tensor; `sizes` are their numbers of elements."""
        width = max(sizes)
        if not width:
            return [mine.new_empty(0) for _ in sizes]
        whole = _memory(self.size * width, mine)
        self._gather(whole, F.pad(mine, (0, width - mine.numel())) if mine.numel() < width else mine)
        return [whole[rank * width : rank * width + size] for rank, size in enumerate(sizes)]

    def _gather(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        self._wire(whole).gather(_carried(whole), _carried(mine.contiguous()))

    def numbers(self, *mine: int) -> list[list[int]]:
        """Every rank's numbers, as many as this one's, by rank."""
        own = torch.tensor(mine, dtype=torch.int64)
        return [x.tolist() for x in self.gather_all(own, [len(mine)] * self.size)]

    # Broadcasts, and bytes of all.

    def broadcast(self, x: torch.Tensor, source: int = 0) -> None:
        """Makes x what it is at rank `source`, in place."""
        self.broadcast_together([(x, source)])

    def broadcast_together(self, messages: Sequence[tuple[torch.Tensor, int]]) -> None:
        """`broadcast` of several tensors, each with its source, at the same time: a connection has two directions."""
        flat = [(_carried(x), source) for x, source in messages]
        if flat:
            self._wire(flat[0][0]).broadcast(flat)

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """The bytes of rank 0; the others give None."""
        size = torch.tensor([len(data or b"")])
        self.broadcast(size, 0)
        if not int(size):
            return b""
        x = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(x, 0)
        return x.numpy().tobytes()

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes. Raises LostRankError, before any memory is taken, for more than any message has."""
        sizes = [size for (size,) in self.numbers(len(data))]
        for rank, size in enumerate(sizes):
            if not 0 <= size <= _MOST_BYTES:
                raise self.membership.foreign(rank, f"the announcement of {size} bytes")
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return [x.numpy().tobytes() for x in self.gather_all(mine, sizes)]


def _carried(x: torch.Tensor) -> torch.Tensor:
    """A tensor as wires take it: none carries truth values, and not all carry numbers of 16 bits."""
    return bytes_of(x) if x.element_size() < 4 else x


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """uint8: the memory of a flat tensor without gaps."""
    # A single element may have any stride; a new axis has that of one element.
    return x.unsqueeze(-1).view(torch.uint8).view(-1)


def _memory(numel: int, like: torch.Tensor) -> torch.Tensor:
    """A flat tensor of a dtype and on a device, uninitialised."""
    return empty((numel,), like.dtype) if like.device.type == "cpu" else like.new_empty(numel)


def connect(
    address: tuple[str, int],
    rank: int,
    size: int,
    name: str,
    *,
    is_host: bool,
    loopback: str | None,
    seconds: float = 60,
) -> Ranks:
    """The ranks of a run, once all of them are there.

    address: host and port of the store. is_host: whether this process holds the store. loopback: address on the
    loopback interface, if all ranks are on this machine; nothing that this process opens can be reached from elsewhere
    then. name: tells this run from others in the same store. Raises LostRankError if a rank does not come within so
    many seconds."""
    patience = timedelta(seconds=seconds)
    host, port = address
    try:
        if loopback is not None:
            # Gloo would look up this machine's name to find an address to listen on.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        listening = None
        if is_host and loopback is not None:
            # A store that listens by itself does so on all interfaces.
            family = socket.AF_INET6 if ":" in loopback else socket.AF_INET
            listening = socket.create_server((loopback, port), family=family).detach()
        store = TCPStore(host, port, None, is_host, patience, wait_for_workers=False, master_listen_fd=listening)
        own = TCPStore(host, port, None, False, patience, wait_for_workers=False)
        membership = Membership(PrefixStore(f"{name}/membership", own), rank, size, seconds)
        _connect_all(PrefixStore(f"{name}/group", store), membership)
    except (RuntimeError, OSError) as error:
        if isinstance(error, LostRankError):
            raise
        raise LostRankError(
            f"the ranks cannot reach each other by {host}:{port} ({str(error).partition(chr(10))[0][:200]}): check the "
            "address that the launcher was given"
        ) from error
    group = dist.group.WORLD
    assert group is not None
    return Ranks(group, rank, size, membership)


def _connect_all(store: Store, membership: Membership) -> None:
    """Connects all ranks by gloo. That waits for a rank which has ended meanwhile: on a thread of its own, so that this
    one can ask. Raises LostRankError, RuntimeError."""
    has_ended = threading.Event()
    errors: list[Exception] = []

    def connect() -> None:
        try:
            dist.init_process_group(
                "gloo", store=store, rank=membership.rank, world_size=membership.size, timeout=FOREVER
            )
        except Exception as error:
            errors.append(error)
        has_ended.set()

    threading.Thread(target=connect, name="connect", daemon=True).start()
    while not has_ended.wait(PATIENCE):
        try:
            membership.require_all()
        except LostRankError:
            Ranks.unfinished = True
            raise
    if errors:
        raise membership.why() or errors[0]


def disconnect(ranks: Ranks, reason: str | None = None) -> None:
    """Leaves the group. reason: the error that this rank ends with, for the others."""
    ranks.membership.leave(reason)
    # So that no rank closes the store while another one still uses it.
    deadline = time.monotonic() + 2
    while ranks.membership.lost is None and time.monotonic() < deadline and not ranks.membership.all_have_left():
        time.sleep(0.01)
    if ranks.rank == 0:
        # The store may lie with this process, and the others look into it once more.
        time.sleep(0.5)
    in_order = reason is None and ranks.membership.lost is None and not ranks.membership.is_leaving
    if not (in_order and ranks.close()):
        Ranks.unfinished = True


MAX_RANKS = 4096
"""More ranks than anybody has samples in a batch."""


class LaunchError(RuntimeError):
    """The environment names ranks in a way that no launcher does, or asks ranks for what they do not do."""


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
        """Launch of an environment; None if it names no ranks, or a single one. Raises LaunchError."""
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
        """The device of this process, where a person has chosen one for all of them: of `cuda`, every process of a
        machine has a device of its own, as long as there are so many, as torchrun's users expect."""
        count = torch.cuda.device_count() if chosen == "cuda" and self.local_rank is not None else 0
        return f"cuda:{(self.local_rank or 0) % count}" if count else chosen


def _loopback(environment: Mapping[str, str], host: str, size: int) -> str | None:
    """Address on the loopback interface, if all ranks are on this machine. No name is looked up: many machines have
    their own on that interface, by which other machines reach them. Raises LaunchError."""
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


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def joined(launch: Launch, seconds: float = 300) -> Iterator[Ranks]:
    """The ranks of a launch, from when all of them are there. Where this rank ends with an error, the others are told.

    Where this process is terminated because another rank is lost, that becomes the LostRankError that names it; else
    KeyboardInterrupt. After an error SIGTERM stays ignored, so that this process can say why it ends. To be called on
    the main thread. Raises LostRankError if a rank does not come within so many seconds."""

    def terminated(number: int, frame: FrameType | None) -> None:
        # A second signal must not interrupt what the first one has begun.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    ranks: Ranks | None = None
    try:
        ranks = connect(
            (launch.host, launch.port),
            launch.rank,
            launch.size,
            launch.name,
            is_host=launch.is_host,
            loopback=launch.loopback,
            seconds=seconds,
        )
        yield ranks
        disconnect(ranks)
        signal.signal(signal.SIGTERM, before)
    except _Terminated:
        lost = ranks.membership.why_terminated() if ranks is not None else None
        _leave(ranks, None if lost else TERMINATED)
        raise lost or KeyboardInterrupt from None
    except LostRankError:
        # This one is not to be named in place of the lost one, which the others find, too.
        _leave(ranks, None)
        raise
    except KeyboardInterrupt:
        _leave(ranks, "it was interrupted")
        raise
    except BaseException as error:
        _leave(ranks, str(error) or type(error).__name__)
        raise


def _leave(ranks: Ranks | None, reason: str | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ranks is not None:
        disconnect(ranks, reason)
