"""Data that are not held: creating, training and auditing take the memory of the model, not that of the data; and data
that lie elsewhere: an audit of one interval fetches its blocks."""

from __future__ import annotations

from pathlib import Path

import bench_data
import pytest
from roundlog.data import HELD_BYTES

pytestmark = pytest.mark.slow

SIZE, MOST = 300_000_000, 80_000_000


def test_commands_grow_by_a_part_of_the_data_at_most(tmp_path: Path) -> None:
    """Windows of 64 tokens, so that a step takes too little for its memory to hide that of the data."""
    assert SIZE > HELD_BYTES > 3 * MOST
    settings = ("steps=4", "window=65")
    taken = bench_data.measure(SIZE, memory=10**9, room=tmp_path, settings=settings)
    for command, (few, many) in taken.items():
        assert many.read > SIZE, f"{command} has not looked at all data"
        assert many.resident - few.resident < MOST, command


def test_an_audit_of_one_interval_fetches_a_part_of_the_data(tmp_path: Path) -> None:
    counts = bench_data.fetch(20_000_000, tmp_path)
    assert counts["job fetch --without-data"]["data"] == 0
    # Twenty rows of 2050 bytes, each in one block or in two.
    assert 10 * 16384 < counts["audit --share 0.5"]["data"] <= 40 * 16384
    assert counts["audit"]["data"] <= 80 * 16384
