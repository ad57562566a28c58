"""A writer of a log leaves a whole file, of which what is written is read, or none."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roundlog.commitments import MerkleTree
from roundlog.log import Entries, LogError, LogReader, LogWriter
from roundlog.log import payload as payloads
from roundlog.log.layout import SEGMENT_HEADER_SIZE

from tests.engine.log.log_files import HEADER, SIZES, STEPS, read, step_logs, write


@pytest.fixture
def nothing_left(path: Path) -> Iterator[None]:
    yield
    assert list(path.parent.iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
class TestNoFileIsLeft:
    def test_by_a_block_that_raises(self, path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), LogWriter(path, HEADER) as log:
            log.append(10, STEPS[0])
            raise KeyboardInterrupt

    def test_by_a_step_that_is_too_long_and_the_caller_learns_of_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = LogWriter(path, HEADER)
        monkeypatch.setattr(payloads, "MAX_PAYLOAD", 30)
        with pytest.raises(LogError, match=r"step 10: a payload of \d+ bytes is above the limit of 30"):
            log.append(10, STEPS[0])

    def test_by_a_full_disk_and_the_caller_learns_of_it(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> bytes:
            raise OSError(28, "No space left on device")

        log = LogWriter(path, HEADER)
        monkeypatch.setattr("roundlog.log.layout.SegmentHeader.pack", full)
        with pytest.raises(LogError, match="cannot be written: No space left"):
            log.append(10, {})


def test_a_directory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be written"):
        LogWriter(tmp_path / "absent" / "x.log", HEADER)


def root_of(path: Path) -> bytes:
    with LogReader(path, HEADER, SIZES) as log:
        return log.root


def test_the_old_log_stays_until_the_new_one_is_whole(path: Path) -> None:
    old = write(path)
    log = LogWriter(path, HEADER)
    for step in (10, 11, 12):
        log.append(step, {})
        assert root_of(path) == old.root
    new = log.close()
    assert log.close() == new
    log.abort()
    assert root_of(path) == new.root != old.root


@pytest.mark.slow
def test_a_killed_writer_leaves_no_log_and_the_next_one_is_not_hindered(path: Path) -> None:
    writer = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from tests.engine.log.log_files import HEADER, STEPS\n"
        "from roundlog.log import LogWriter\n"
        "log = LogWriter(Path(sys.argv[1]), HEADER); log.append(10, STEPS[0]); log.append(11, STEPS[1])\n"
        "log._file.flush(); print('written', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", writer, str(path), str(Path(__file__).resolve().parents[3])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"written\n"
    process.kill()
    process.wait()
    process.stdout.close()
    assert not path.exists()
    write(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert read(path) == STEPS


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
    with LogReader(path, HEADER, SIZES) as log:
        places = [
            (at + SEGMENT_HEADER_SIZE, one.compressed)
            for at, one in zip(log._file.offsets, log._file.segments, strict=True)
        ]
        assert log._file.offsets[0] == 120
        assert log.root == closed.root
    segments = [raw[at : at + size] for at, size in places]
    assert [zstandard.ZstdDecompressor().decompress(s) for s in segments] == [payloads.encode(s) for s in STEPS]
    assert closed.root == MerkleTree(segments).root


def test_steps_are_read_in_any_order(path: Path) -> None:
    write(path)
    with LogReader(path, HEADER, SIZES) as log:
        assert [log.step(step) for step in (12, 10, 12)] == [STEPS[2], STEPS[0], STEPS[2]]
