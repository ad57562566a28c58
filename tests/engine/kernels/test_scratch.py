"""Large outputs get memory that nobody has any more, and never memory that somebody has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.kernels import scratch
from roundlog.kernels.scratch import MemoryPool, empty

SHAPE = (300, 41)


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> MemoryPool:
    """A pool of the test's own, that lends what has 1 KiB or more."""
    pool = MemoryPool()
    monkeypatch.setattr(scratch, "POOL", pool)
    for name in ("_SMALL", "_LARGE"):
        monkeypatch.setattr(scratch, name, 1 << 10)
    return pool


def test_memory_of_a_tensor_that_is_gone_is_lent_again() -> None:
    x = empty(SHAPE, torch.float32)
    place = x.data_ptr()
    assert (x.shape, x.dtype, x.is_contiguous(), place % 64) == (SHAPE, torch.float32, True, 0)
    assert x.untyped_storage().nbytes() == 4 * x.numel()
    del x
    assert empty(SHAPE, torch.float32).data_ptr() == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x[7:9, 3],
        lambda x: x.mT,
        lambda x: x.numpy()[7:9],
        lambda x: torch.as_strided(x, (5,), (2,), 100),
        lambda x: x.view(torch.int32).detach(),
    ],
)
def test_memory_that_a_view_reads_is_not_lent(hold) -> None:
    x = empty(SHAPE, torch.float32).fill_(1.0)
    view = hold(x)
    before = torch.as_tensor(view).clone()
    del x
    others = [empty(SHAPE, torch.float32).fill_(2.0) for _ in range(3)]
    assert torch.equal(torch.as_tensor(view), before)
    assert len({other.data_ptr() for other in others}) == 3


def test_no_more_is_held_than_was_lent_at_once() -> None:
    pool, rng = MemoryPool(), np.random.default_rng(3)
    lent: list[np.ndarray] = []
    most = again = 0
    seen: set[int] = set()
    for _ in range(3000):
        if lent and rng.random() < 0.5:
            pool.take_back(lent.pop(int(rng.integers(len(lent)))))
        else:
            size = int(rng.integers(1, 5000))
            block = pool.lend(size)
            assert size <= len(block) < 2 * size
            assert not any(np.shares_memory(block, other) for other in lent)
            again += block.ctypes.data in seen
            seen.add(block.ctypes.data)
            lent.append(block)
        most = max(most, sum(map(len, lent)))
        assert pool.size <= most
    assert again > 500
    pool.release()
    assert pool.size == sum(map(len, lent))


def test_what_is_idle_may_be_let_go_while_memory_is_lent(pool: MemoryPool) -> None:
    """The collection of garbage does so, which may run at any point of it."""

    class Idle(list[np.ndarray]):
        def __iter__(self):
            for block in list.__iter__(self):
                pool.release()
                yield block

        def __len__(self) -> int:
            pool.release()
            return super().__len__()

    for size in (90, 1000):
        for block in (pool.lend(100), pool.lend(150)):
            pool.take_back(block)
        pool._idle = Idle(pool._idle)
        assert len(pool.lend(size)) >= size
        pool._idle = list(pool._idle)


_MEASURE = """
import random, torch
from roundlog.kernels.scratch import empty, give_back

def status(name):
    line, = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

def state():
    return [empty((500_000,), torch.float32).fill_(1) for _ in range(10)]

draw, now, most, before = random.Random(0), state(), 0, status("VmRSS")
for _ in range(30):
    values = []
    for place in range(60):
        numel = draw.choice([90_000, 300_000, 750_000, 1_000_000])
        values.append(empty((numel,), torch.float32).fill_(1))
        beside = empty((numel,), torch.float64).fill_(1)
        most = max(most, sum(x.nbytes for x in [*values, *now, beside]))
        del beside
        if place > 15:
            del values[draw.randrange(len(values))]
    now = state()
    del values
print((status("VmHWM") - before) / most)
del now
give_back()
print((status("VmRSS") - before) / most)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured by Linux's /proc")
def test_steps_take_little_more_memory_than_their_values_do_and_the_system_gets_it_back() -> None:
    """Whatever the sizes, and the order in which they go: with torch's own memory it was twice as much."""
    done = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, text=True, check=True)
    at_most, left = map(float, done.stdout.split())
    assert at_most < 1.4 and left < 0.2
