"""Targets of fuzzing: every reader of bytes that a stranger may have written, with valid inputs to start from, changes
that keep an input's structure, and the errors that it is allowed to end in."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutations import Mutator, change_bytes

CPU_SECONDS = 5.0
"""No input may take longer: the slowest valid one takes a hundredth of that."""

MAX_INPUT = 1 << 16
"""Larger inputs are not made: what is large is tested by itself, in the tests of each reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader under attack."""

    name: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], None]
    """Reads an input, and raises AssertionError if what was accepted cannot be right."""
    refusals: tuple[type[Exception], ...]
    """The documented errors."""
    mutators: tuple[Mutator, ...] = field(default=(change_bytes,))
    refused_seeds: int = 0
    """Seeds that are well-made and have to be refused all the same, for their content."""

    @property
    def corpus(self) -> Path:
        return Path(__file__).with_name("corpus") / self.name


class Find(AssertionError):
    """An input with which a reader does something that it should not."""


class _TooSlow(BaseException):
    """Not an Exception, so that no reader catches it."""


def attempt(target: Target, data: bytes) -> str:
    """Read one input; returns which way it went: "accepted", or the error and the line that raised it. Raises Find."""
    started = time.process_time()
    try:
        with _cpu_limit():
            target.read(data)
        outcome = "accepted"
    except target.refusals as error:
        message = str(error)
        if not message or not message.isprintable() or len(message) > 2000:
            raise Find(
                f"{target.name}: the message of {type(error).__name__} is not a line: {message[:200]!r}"
            ) from error
        outcome = _way(error)
    except _TooSlow:
        raise Find(f"{target.name}: takes more than {CPU_SECONDS} seconds") from None
    except (Exception, RecursionError) as error:
        raise Find(f"{target.name}: raises {type(error).__name__}: {str(error)[:300]}") from error
    if time.process_time() - started > CPU_SECONDS:
        raise Find(f"{target.name}: takes {time.process_time() - started:.1f} seconds")
    return outcome


@contextmanager
def _cpu_limit() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _way(error: BaseException | None) -> str:
    """The errors that led to this one, with the innermost line of each."""
    way = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"
        way.append(f"{type(error).__name__} at {place}")
        error = error.__cause__ or error.__context__
    return ", from ".join(way)


def mutated(target: Target, data: bytes, rng: Random, changes: int) -> bytes:
    """`data` after so many random changes."""
    for _ in range(changes):
        data = rng.choice(target.mutators)(data, rng)
    return data[:MAX_INPUT]


def inputs(target: Target) -> list[bytes]:
    """The corpus and the seeds of a target."""
    return [path.read_bytes() for path in sorted(target.corpus.glob("*"))] + target.seeds()
