"""A bit that flips in a finished run: every command notices it and says how to mend it, or does not read the file."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

import pytest
from roundlog.commitments import state_root
from roundlog.log.payload import LogError
from roundlog.storage import StorageError, load_tensors
from roundlog.training.job import JOB_FILES, Job
from tiebreak.cli.failures import sentence

from tests.client.cli.cli_world import Run, Trained, refused

FILES = (
    "run.json",
    "roots",
    "roots.sums",
    "checkpoints/00000002.safetensors",
    "checkpoints/00000004.safetensors",
    "log/00000000.rlog",
    "log/00000001.rlog",
)
PLACES = (0.0, 0.6)
"""Parts of a file: its header, its inside."""


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(trained.run, tmp_path / "copy"))


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[round(place * (len(data) - 1))] ^= 0x04
    path.write_bytes(data)


def contents(directory: Path) -> dict[Path, bytes]:
    """Every file of a directory; a history without its seconds, which differ from run to run."""
    found = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    if (history := Path("history.jsonl")) in found:
        found[history] = re.sub(rb'"seconds":[^,}]+', b"", found[history])
    return found


@pytest.mark.parametrize("name", ["run.json", "roots", "checkpoints/00000002.safetensors", "log/00000001.rlog"])
def test_an_audit_of_a_damaged_run_notices_it(
    run: Run, trained: Trained, copy: Path, tmp_path: Path, name: str
) -> None:
    flip(copy / name, 0.6)
    result = run("audit", trained.job, "--run", tmp_path / "a", "--claim", copy, "--log", copy / "log", "--json")
    if name == "run.json":
        assert result.exit_code == 0, "whose directory it is makes no difference to what it claims"
        return
    if name == "roots":
        refused(result, str(copy / "roots"), "tiebreak train", "mends it")
        return
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["agrees"] is True and found["findings"] == [], "nobody is accused of a wrong training"
    if name.startswith("log"):
        assert found["log"] == "unusable" and str(copy / name) in found["unreadable"][0]
        assert found["wrong_states"] == []
    else:
        (said,) = found["wrong_states"]
        assert str(copy / name) in said and "is not the claimed state" in said and "tiebreak train" in said
        assert found["log"] == "right"


@pytest.mark.slow_but("roots-0.6", "log/00000000.rlog-0.6")
@pytest.mark.parametrize(("name", "place"), [*((name, 0.6) for name in FILES), ("run.json", 0.0), ("roots.sums", 0.0)])
def test_training_in_a_damaged_run_mends_it(run: Run, trained: Trained, copy: Path, name: str, place: float) -> None:
    whole = contents(trained.run)
    flip(copy / name, place)
    damaged = contents(copy)
    result = run("train", trained.job, "--run", copy, "--json")
    if name == "run.json":
        refused(result, str(copy), "choose an empty directory" if place else "nothing is lost")
        assert contents(copy) == damaged
        (copy / name).unlink()
        result = run("train", trained.job, "--run", copy, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex()
    assert contents(copy) == whole
    if name in ("checkpoints/00000002.safetensors", "log/00000000.rlog"):
        assert found["mended_intervals"] == [0]


def test_a_model_is_verified_without_a_chain(run: Run, trained: Trained, copy: Path) -> None:
    job = Job.read(trained.job)
    model = copy / FILES[4]
    root = "0x" + state_root(load_tensors(model, job.program.states).values()).hex()
    words = ("verify", model, "--job", trained.job, "--root")
    shown = run(*words, root)
    assert shown.exit_code == 0 and shown.stdout == f"Right: {model} is the state with the root {root}.\n"
    assert json.loads(run(*words, root[2:].upper(), "--json").stdout)["right"] is True
    wrong = run(*words, "0x" + bytes(32).hex())
    assert wrong.exit_code == 3 and wrong.stdout.startswith("WRONG: ") and len(wrong.stdout.splitlines()) == 1
    for place in PLACES:
        shutil.copy(trained.run / FILES[4], model)
        flip(model, place)
        wrong = run(*words, root)
        assert wrong.exit_code == 3 and wrong.stdout.startswith(f"WRONG: {model} is not the state with the root {root}")
    other = run("verify", trained.run / FILES[3], "--job", trained.job, "--root", root)
    assert other.exit_code == 3 and f"not {root}" in other.stdout


def test_what_a_model_cannot_be_verified_with_is_named(run: Run, trained: Trained, tmp_path: Path) -> None:
    model, root = trained.run / FILES[4], "0x" + bytes(32).hex()
    refused(run("verify", tmp_path / "no", "--job", trained.job, "--root", root), "there is no file", "no")
    refused(run("verify", model, "--job", tmp_path / "no", "--root", root), "there is no job directory")
    refused(run("verify", model, "--job", trained.job, "--root", "0x12"), "is not a root", code=2)
    words = ("verify", model, "--job", trained.job, "--root", root, "--max-memory", "0.001MB")
    refused(run(*words), "--max-memory")
    job = tmp_path / "job"
    shutil.copytree(trained.job, job)
    flip(job / "program.json", 0.5)
    refused(run("verify", model, "--job", job, "--root", root), str(job))
    huge = tmp_path / "huge"
    huge.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    wrong = run("verify", huge, "--job", trained.job, "--root", root)
    assert wrong.exit_code == 3 and "has a header of" in wrong.stdout


@pytest.mark.parametrize("name", JOB_FILES)
def test_a_damaged_job_is_refused_with_the_remedy(run: Run, trained: Trained, tmp_path: Path, name: str) -> None:
    for place in PLACES:
        job = Path(shutil.copytree(trained.job, tmp_path / str(place)))
        flip(job / name, place)
        said = refused(run("job", "show", job), str(job), "copy the job again", "tiebreak job create")
        assert refused(run("train", job, "--run", tmp_path / "run")) == said
        if name == "program.json":
            root = "0x" + bytes(32).hex()
            refused(run("verify", trained.run / FILES[4], "--job", job, "--root", root), "copy the job again")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_says_so_whoever_notices_it() -> None:
    for error in (StorageError(Path("x"), "cannot be written"), LogError(Path("x"), None, "cannot be written")):
        error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
        assert sentence(error) == "the disk is full: make room and run the same command again."
        error.__cause__ = OSError(errno.EACCES, "Permission denied")
        assert sentence(error).startswith("x: cannot be written; ")
