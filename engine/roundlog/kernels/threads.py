"""Work split over torch's number of threads. numba's own parallel loops may not be entered from two threads at once,
and an auditor beside a trainer in one process would do that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise

import torch

MIN_ELEMENTS = 1 << 17
"""Below this, handing out work costs more than it saves."""


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="roundlog-kernel")


def in_parts(work: Callable[[int, int], None], items: int, elements: int) -> None:
    """Call work(start, stop) for ranges that cover range(items), `elements` being the size of the whole task.
    `work` has to release the GIL. Raises what a part raises."""
    threads = min(torch.get_num_threads(), items, max(1, elements // MIN_ELEMENTS))
    if threads <= 1:
        if items:
            work(0, items)
        return
    edges = [items * i // threads for i in range(threads + 1)]
    parts = [_pool().submit(work, a, b) for a, b in pairwise(edges[1:])]
    try:
        work(edges[0], edges[1])
    finally:
        # Whatever happens here, memory that the others write to has to outlive them.
        wait(parts)
    for part in parts:
        part.result()
