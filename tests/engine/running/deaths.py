"""Processes that kill themselves at a chosen point: at a step, or at a call that makes a file durable."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORK = multiprocessing.get_context("fork")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Point:
    """Before or after the `number`-th call (from 1) of a function that a process makes."""

    owner: Any
    name: str
    number: int
    after: bool = False

    def arm(self) -> None:
        """Make this process die there."""
        call, left = getattr(self.owner, self.name), self.number

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left and not self.after:
                die()
            result = call(*arguments, **options)
            if not left:
                die()
            return result

        setattr(self.owner, self.name, counted)


def before_sync(number: int) -> Point:
    return Point(os, "fsync", number)


def before_rename(number: int) -> Point:
    return Point(Path, "replace", number)


def after_rename(number: int) -> Point:
    return Point(Path, "replace", number, after=True)


def killed_at(point: Point, work: Callable[[], object]) -> None:
    """Does the work in a process of its own, which has to die at that point."""

    def live() -> None:
        point.arm()
        work()

    process = FORK.Process(target=live)
    process.start()
    process.join(300)
    ended = process.exitcode
    process.kill()  # one that has not ended by itself must not go on beside the tests that follow
    assert ended == -signal.SIGKILL, f"it ended with {ended}, and not at {point}"
