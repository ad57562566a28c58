"""A job is refused by the memory that its program declares, so an operator may never take more than it declares: not
even where hostile data leave every element to be decided by integers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.operators import memory_use

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux's /proc")
def test_no_operator_takes_more_memory_than_it_declares() -> None:
    script = [sys.executable, "-m", memory_use.__name__]
    done = subprocess.run(script, check=True, capture_output=True, text=True, timeout=300, cwd=ROOT)
    measured = json.loads(done.stdout)
    taken = {label: bytes_taken for label, _, bytes_taken, _ in measured}
    assert {label: declared for label, declared, bytes_taken, _ in measured if bytes_taken > declared} == {}
    # Where every element is marked: the output, and an index, a value and its bound of each.
    assert taken["ties"] > 28 << 21 and taken["products that cancel"] > 28 << 21
    # 2^22 terms: FP64 copies of them and of their magnitudes, and their bits.
    assert taken["one long scatter"] > 24 << 22
    # That integers decide is part of what was measured. Products are not written out for it.
    decided = {label: sums for label, _, _, sums in measured}
    assert decided["ties"] >= 1 << 21 and decided["one long dot product"]
