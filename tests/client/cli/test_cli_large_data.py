"""Data that are not held: creating, training and auditing take the memory of the model, not that of the data."""

from __future__ import annotations

from pathlib import Path

import bench_data
from roundlog.data import HELD_BYTES

SIZE, MOST = 300_000_000, 80_000_000


def test_commands_grow_by_a_part_of_the_data_at_most(tmp_path: Path) -> None:
    """Windows of 64 tokens, so that a step takes too little for its memory to hide that of the data."""
    assert SIZE > HELD_BYTES > 3 * MOST
    settings = ("steps=4", "window=65")
    taken = bench_data.measure(SIZE, memory=10**9, room=tmp_path, settings=settings)
    for command, (few, many) in taken.items():
        assert many.read > SIZE, f"{command} has not looked at all data"
        assert many.resident - few.resident < MOST, command
