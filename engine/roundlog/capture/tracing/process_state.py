"""State of a process beside a trace: threads, garbage collection, PyTorch's log."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noting_threads(threads: list[threading.Thread]) -> Iterator[None]:
    """Appends the threads that are started meanwhile, but for those of the engine's kernels."""
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if not thread.name.startswith("roundlog-kernel"):
            threads.append(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def without_collection() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off, which would look again and again at all nodes that there are."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def quietly() -> Iterator[None]:
    """Silences PyTorch's log of failures of fake tensors, which it writes with tracebacks before it raises them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled
