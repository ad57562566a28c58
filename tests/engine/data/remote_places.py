"""Places for tests where a job's data lie elsewhere: they count, lie, and lose what they had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from roundlog.data import Unavailable

Answers = Callable[[int, int], bytes]
"""Bytes that a place answers with, for first byte and number; it may raise Unavailable."""


@dataclass
class Place:
    """A file elsewhere, in one or several copies (implements `Elsewhere`)."""

    copies: list[Answers]
    width: int = 1
    asked: list[tuple[int, int]] = field(default_factory=list)

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        self.asked.append((start, size))
        for copy in self.copies:
            data = copy(start, size)
            if is_right(data):
                return data
        raise Unavailable("every copy has other bytes")


def copy_of(path: Path) -> Answers:
    """An honest copy of a file."""
    content = path.read_bytes()
    return lambda start, size: content[start : start + size]


def lost(start: int, size: int) -> bytes:
    """A copy that cannot be had any more."""
    raise Unavailable("the store is gone")
