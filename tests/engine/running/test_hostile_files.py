"""Files that are not what they should be: pipes that nobody writes to, devices, directories, damaged records, full
disks. Nothing waits, nothing is lost in silence, and every error is one sentence."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from roundlog.log import LogError
from roundlog.program import DType, TensorType
from roundlog.rounding import checked_header
from roundlog.storage import StorageError, append_file, load_tensors, open_regular, read_record
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError
from roundlog.training.run import Run, RunError
from roundlog.training.trainer import Trainer, TrainingResult, log_path

from tests.engine.kept_jobs import KEPT_JOBS


@pytest.fixture(autouse=True)
def _nothing_waits() -> Iterator[None]:
    """A test that waits for a pipe is stopped."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job, TrainingResult]:
    directory = tmp_path_factory.mktemp("trained")
    shutil.copytree(KEPT_JOBS / "logistic_sgd", directory / "job")
    job = Job.read(directory / "job")
    return directory, job, Trainer(job, directory / "run").run()


def replace_by(what: str, path: Path) -> None:
    """Puts something else in the place of a file."""
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "dangling link":
        path.symlink_to(path.with_name("nowhere"))
    else:
        assert what == "loop"
        path.symlink_to(path)


SPECIAL = ["pipe", "directory", "device", "dangling link", "loop"]


@pytest.mark.parametrize("what", SPECIAL)
def test_readers_refuse_what_is_no_file(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_by(what, path)
    with pytest.raises(OSError):
        open_regular(path)
    for read in (read_record, lambda path: load_tensors(path, {"x": TensorType((2,), DType.F32)})):
        with pytest.raises(StorageError, match=r"file: (cannot be read|does not exist)"):
            read(path)
    with pytest.raises(LogError, match=r"file: (cannot be read|does not exist)"):
        checked_header(path)


@pytest.mark.slow_but("*.json", "data.blocks")
@pytest.mark.parametrize(
    "name", ["spec.json", "program.json", "initial.safetensors", "data.safetensors", "data.blocks"]
)
def test_a_job_with_another_file_or_something_else_in_its_place_is_refused(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(KEPT_JOBS / "convolution", tmp_path / "job")) / name
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], whole + b"x"):
        path.write_bytes(data)
        with pytest.raises(JobError) as caught:
            Job.read(tmp_path / "job")
        assert "\n" not in str(caught.value)
    for what in SPECIAL:
        replace_by(what, path)
        with pytest.raises(JobError) as caught:
            Job.read(tmp_path / "job")
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["pipe", "loop"])
def test_an_audit_goes_on_without_a_log_that_is_no_file(
    what: str, trained: tuple[Path, Job, TrainingResult], tmp_path: Path
) -> None:
    _, job, result = trained
    shutil.copytree(result.log_dir, tmp_path / "log")
    replace_by(what, log_path(tmp_path / "log", 1))
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log").run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert len(audit.unreadable) == 1 and "00000001.rlog" in audit.unreadable[0]


@pytest.mark.parametrize("what", ["pipe", "directory", "device"])
@pytest.mark.parametrize("name", ["run.json", "run.lock", "roots", "checkpoints/00000008.safetensors"])
def test_a_run_directory_with_something_else_in_the_place_of_a_file_never_makes_anybody_wait(
    name: str, what: str, trained: tuple[Path, Job, TrainingResult], tmp_path: Path
) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    replace_by(what, tmp_path / "run" / name)
    if name.startswith("checkpoints") and what != "directory":
        # Computed again, and put in its place.
        assert Trainer(job, tmp_path / "run").run().checkpoint_root == result.checkpoint_root
        return
    with pytest.raises((RunError, OSError, StorageError)) as caught:
        Trainer(job, tmp_path / "run").run()
    assert name.partition(".")[0] in str(caught.value)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b'{"findings": [3], "unreadable": []}',
        b'{"findings": [{"step": 0}], "unreadable": []}',
        b'{"findings": [{"step": "x", "operator": 1, "element": 1, "kind": "forged", "message": ""}]}',
        b'{"findings": [{"step": 1, "operator": 1, "element": 1, "kind": "odd", "message": ""}], "unreadable": []}',
        b'{"findings": [], "unreadable": [["a", "b"]]}',
    ],
    ids=range(6),
)
def test_a_damaged_record_of_findings_is_a_clear_error(
    record: bytes, trained: tuple[Path, Job, TrainingResult], tmp_path: Path
) -> None:
    _, job, result = trained
    Auditor(job, tmp_path / "run", log_dir=result.log_dir).run()
    (tmp_path / "run" / "findings.json").write_bytes(record)
    with pytest.raises(RunError, match=r"findings\.json.*choose an empty directory"):
        Auditor(job, tmp_path / "run", log_dir=result.log_dir).run()


@pytest.mark.parametrize("record", [b"", b"[]", b'{"run_id": 7}'], ids=range(3))
def test_a_damaged_record_of_the_run_is_a_clear_error(
    record: bytes, trained: tuple[Path, Job, TrainingResult], tmp_path: Path
) -> None:
    _, job, _ = trained
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(record)
    with pytest.raises(RunError, match="choose an empty directory"):
        Trainer(job, tmp_path / "run")


def test_a_root_that_the_disk_does_not_take_is_an_error_and_not_half_a_root(tmp_path: Path) -> None:
    path = tmp_path / "roots"
    path.write_bytes(bytes(32))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_file(path, b"\x01" * 32)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_record_of_roots_as_large_as_a_disk_is_read_no_further_than_the_job_goes(
    trained: tuple[Path, Job, TrainingResult], tmp_path: Path
) -> None:
    directory, job, result = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    os.truncate(tmp_path / "run" / "roots", 1 << 40)
    assert Run(job, tmp_path / "run").recorded_roots() == result.state_roots
    assert json.loads((tmp_path / "run" / "run.json").read_text())["role"] == "trainer"
