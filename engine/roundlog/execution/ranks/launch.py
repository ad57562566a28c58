"""Facts that a launcher (torchrun) tells a process about its ranks, and the life of such a process.

torchrun sets RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment of every process that
it starts, and ends all of them by SIGTERM where one has ended with an error.
"""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from roundlog.execution.ranks.group import Ranks, connect, disconnect
from roundlog.execution.ranks.membership import TERMINATED, LostRankError

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
