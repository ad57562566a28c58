"""Log files: what is written is read."""

from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roundlog.commitments import MerkleTree
from roundlog.log import Entries, LogReader
from roundlog.log import payload as payloads
from roundlog.log.layout import SEGMENT_HEADER_SIZE
from roundlog.rounding import Counts, summarise

from tests.engine.log.log_files import HEADER, SIZES, STEPS, read, step_logs, write


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step_logs(), min_size=1, max_size=4), st.integers(0, 2**40), st.integers(0, 255))
def test_reading_undoes_writing(path: Path, steps: list[dict[int, Entries]], first: int, guard: int) -> None:
    header = replace(HEADER, first_step=first, steps=len(steps), guard=guard)
    closed = write(path, header, steps)
    assert read(path, header) == steps
    assert closed.bytes == path.stat().st_size


def test_the_log_root_is_the_tree_over_the_compressed_segments(path: Path) -> None:
    closed = write(path)
    raw = path.read_bytes()
    segments = [raw[step.offset + SEGMENT_HEADER_SIZE : step.offset + step.bytes] for step in summarise(path).steps]
    assert [zstandard.ZstdDecompressor().decompress(s) for s in segments] == [payloads.encode(s) for s in STEPS]
    assert closed.root == MerkleTree(segments).root
    with LogReader(path, HEADER, SIZES) as log:
        assert log.root == closed.root


def test_steps_are_read_in_any_order_and_none_beyond_the_file(path: Path) -> None:
    write(path)
    with LogReader(path, HEADER, SIZES) as log:
        assert [log.step(step) for step in (12, 10, 12)] == [STEPS[2], STEPS[0], STEPS[2]]
        for outside in (9, 13):
            with pytest.raises(ValueError, match=f"has no step {outside}"):
                log.step(outside)


def test_a_summary_counts_decisions_by_step_and_operator(path: Path) -> None:
    closed = write(path)
    summary = summarise(path)
    assert (summary.header, summary.root, summary.bytes) == (HEADER, closed.root, closed.bytes)
    assert [step.step for step in summary.steps] == [10, 11, 12]
    assert [step.payload for step in summary.steps] == [len(payloads.encode(step)) for step in STEPS]
    assert summary.steps[0].operators == {1: Counts(1, 2, 0), 3: Counts(1, 1, 1)}
    assert summary.steps[1].counts == Counts(0, 0, 0)
    assert summary.steps[2].counts.total == 44
    assert summary.steps[0].offset == 120
