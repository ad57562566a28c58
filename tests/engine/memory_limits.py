"""Limits of the system on what a test may use."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limit(kind: int, most: int) -> Iterator[None]:
    """A block in which this process may use so much of a kind (RLIMIT_...), see setrlimit(2)."""
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


def more_memory(size: int) -> int:
    """What RLIMIT_DATA has to be for this process to get so many bytes more, on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) + size
