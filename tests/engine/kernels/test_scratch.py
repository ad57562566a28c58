"""Memory for outputs: aligned, and given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from roundlog.kernels.scratch import empty


def test_memory_begins_at_a_line_of_the_cache() -> None:
    for shape in ((3, 5), (300, 41), (1 << 20, 9)):
        x = empty(shape, torch.float32)
        assert (x.shape, x.dtype, x.is_contiguous(), x.data_ptr() % 64) == (shape, torch.float32, True, 0)


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
