"""`train`, `audit`, `log` and `export`: results, and what becomes of everything that can be wrong with files."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from roundlog.commitments import state_root
from roundlog.log import Decision
from roundlog.log.payload import LogError
from roundlog.storage import StorageError, load_tensors, save_tensors
from roundlog.training.job import Job
from roundlog.training.run import root_sum
from roundlog.training.run_files import HISTORY_FILE
from roundlog.training.trainer import log_path
from safetensors.torch import load_file
from tiebreak.cli.failures import sentence

from tests.client.cli.cli_world import Run, Trained, refused
from tests.engine.forged_logs import Steps, rewrite
from tests.engine.kept_jobs import KEPT_JOBS


def test_train_prints_the_checkpoint_root(run: Run, trained: Trained, tmp_path: Path) -> None:
    result = run("train", trained.job, "--run", tmp_path, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex()
    assert found["log_bytes"] == sum(path.stat().st_size for path in (trained.run / "log").iterdir())
    assert Path(found["final_state"]).is_file()


def test_the_first_wrong_checkpoint_of_a_run_is_named(run: Run, trained: Trained, tmp_path: Path) -> None:
    claim = tmp_path / "claim"
    claim.mkdir()
    roots = bytearray((trained.run / "roots").read_bytes())
    roots[32] ^= 1
    (claim / "roots").write_bytes(roots)
    run_id = Job.read(trained.job).spec.run_id
    sums = (root_sum(run_id, i, bytes(roots[32 * i : 32 * i + 32])) for i in range(2))
    (claim / "roots.sums").write_bytes(b"".join(sums))
    result = run("audit", trained.job, "--run", tmp_path / "audit", "--claim", claim)
    assert result.exit_code == 3
    assert "WRONG" in result.stdout
    assert "checkpoint 2 of 2: steps 2 to 3" in result.stdout


def test_a_bent_log_entry_is_no_wrong_claim(run: Run, logged: Trained, tmp_path: Path) -> None:
    def bend(steps: Steps) -> None:
        found = next(entries for entries in steps[3].values() if (entries.decisions != int(Decision.VALUE)).any())
        found.decisions[(found.decisions != int(Decision.VALUE)).argmax()] ^= 1

    rewrite(Job.read(logged.job), logged.run / "log", tmp_path / "log", bend)
    words = ("audit", logged.job, "--run", tmp_path / "a", "--log", tmp_path / "log", "--claim", logged.run)
    found = json.loads(run(*words, "--json").stdout)
    assert found["agrees"] is True and found["first_wrong_interval"] is None
    assert found["log"] == "wrong" and len(found["findings"]) == 1
    shown = run(*words)
    assert shown.exit_code == 3
    assert "right: the same root" in shown.stdout and "WRONG: 1 wrong entries" in shown.stdout
    assert "WRONG: another root" not in shown.stdout and "no wrong entry" not in shown.stdout


def test_a_log_that_is_gone_is_reported_and_never_called_right(run: Run, trained: Trained, tmp_path: Path) -> None:
    (log := tmp_path / "log").mkdir()
    words = ("audit", trained.job, "--log", log, "--claim", trained.run)
    found = json.loads(run(*words, "--run", tmp_path / "audit", "--json").stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["agrees"] is True
    assert found["log"] == "unusable" and found["findings"] == []
    assert len(found["unreadable"]) == 2 and str(log_path(log, 1)) in found["unreadable"][1]
    shown = run(*words, "--run", tmp_path / "shown")
    assert shown.exit_code == 3
    assert "right: the same root" in shown.stdout and "DAMAGED or absent" in shown.stdout
    assert "no wrong entry" not in shown.stdout and found["unreadable"][-1] in shown.stdout


def test_a_wrong_claim_and_a_whole_log_are_told_apart(run: Run, trained: Trained, tmp_path: Path) -> None:
    words = ("audit", trained.job, "--log", trained.run / "log", "--claim", "0x" + bytes(32).hex())
    shown = run(*words, "--run", tmp_path)
    assert shown.exit_code == 3
    assert "WRONG: another root" in shown.stdout and "right: no wrong entry" in shown.stdout
    again = run(*words, "--run", tmp_path / "sampled", "--verify-log", "0")
    assert again.exit_code == 3 and again.stdout == shown.stdout
    assert "auditing again without the log: it leads to another root than the claimed one" in again.stderr


def test_paths_that_are_not_there_are_named(run: Run, trained: Trained, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for words in (
        ("train", nowhere, "--run", tmp_path),
        ("audit", nowhere, "--run", tmp_path),
        ("job", "show", nowhere),
    ):
        refused(run(*words), f"there is no job directory {nowhere}", "job create")
    refused(run("audit", trained.job, "--run", tmp_path / "a", "--log", nowhere), f"no directory of logs {nowhere}")
    refused(run("audit", trained.job, "--run", tmp_path / "a", "--claim", nowhere), "neither a root", str(nowhere))


def test_the_run_of_another_job_is_not_touched(run: Run, trained: Trained) -> None:
    before = {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file()}
    other = KEPT_JOBS / "logistic_sgd"
    refused(run("train", other, "--run", trained.run), str(trained.run), "another job", "choose an empty directory")
    assert before == {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file()}


# Validation and history.


@pytest.fixture
def rows(trained: Trained, tmp_path: Path) -> Path:
    """15 rows of the job's data: a batch of 8, and 7 more."""
    job = Job.read(trained.job)
    path = tmp_path / "rows.safetensors"
    save_tensors(path, {name: field[:15].clone() for name, field in job.dataset.items()})
    return path


def test_validation_does_not_change_the_root(run: Run, trained: Trained, rows: Path, tmp_path: Path) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t", "--validate", rows, "--validate-every", "3")
    result = run(*words, "--json")
    found = json.loads(result.stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["resumed_from"] == 0
    assert found["history"] == str(tmp_path / "t" / HISTORY_FILE) and found["history_problem"] is None
    assert "8 of the 15 rows" in result.stderr
    lines = [json.loads(line) for line in (tmp_path / "t" / HISTORY_FILE).read_text().splitlines()]
    entries = [line for line in lines if "validation" in line]
    assert [line["step"] for line in entries] == [0, 3, 4]
    assert found["validation_loss"] == pytest.approx(entries[-1]["validation"], rel=1e-6)


def test_what_cannot_be_validated_on_is_refused(run: Run, trained: Trained, rows: Path, tmp_path: Path) -> None:
    words = ("train", trained.job, "--run", tmp_path / "t")
    refused(run(*words, "--validate-every", "3"), "name the rows with --validate", code=2)
    refused(run(*words, "--validate", tmp_path / "no"), f"{tmp_path / 'no'}: does not exist")
    rows.write_bytes(b"\xff" * 100)
    refused(run(*words, "--validate", rows), str(rows))


def test_a_resumed_run_says_from_where(run: Run, trained: Trained, tmp_path: Path) -> None:
    words = ("audit", trained.job, "--run", tmp_path / "r")
    first = run(*words, "--json")
    assert json.loads(first.stdout)["resumed_from"] == 0 and "carries on" not in first.stderr
    again = run(*words, "--json")
    assert json.loads(again.stdout)["resumed_from"] == 4 and "all 4 steps were done already" in again.stderr
    for name in ("roots", "roots.sums"):
        path = tmp_path / "r" / name
        path.write_bytes(path.read_bytes()[:32])
    resumed = run(*words, "--json")
    assert json.loads(resumed.stdout)["resumed_from"] == 2 and "carries on from step 2 of 4" in resumed.stderr


def test_a_history_that_cannot_be_written_is_spoken_of(run: Run, trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "t" / HISTORY_FILE).mkdir(parents=True)
    words = ("train", trained.job, "--run", tmp_path / "t")
    shown = run(*words)
    assert shown.exit_code == 0 and "history problem" in shown.stdout
    assert "0x" + trained.root.hex() in shown.stdout


def test_a_model_is_exported_or_a_sentence_says_why_not(run: Run, trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    told = json.loads(run("export", trained.run, "--to", file, "--json").stdout)
    assert (told["steps"], told["model"], told["tensors"]) == (4, str(file), len(load_file(file)))
    refused(run("export", trained.job, "--to", file), "is not the directory of a run", "name the directory")
    refused(run("export", trained.run, "--to", tmp_path, "--json"), "is a directory: name a file in it")
    refused(run("export", trained.run, "--to", file, "--steps", 3), "no state after 3 steps: choose one of 2, 4")
    refused(run("export", trained.run, "--to", file, "--max-memory", "0.0001MB"), "allow them with --max-memory")


# Bits that flip in a finished run.


EARLIER, LAST = (f"checkpoints/{step:08}.safetensors" for step in (2, 4))
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


@pytest.mark.parametrize("name", ["run.json", "roots", "checkpoints/00000002.safetensors", "log/00000001.rlog"])
def test_an_audit_notices_a_damaged_run(run: Run, trained: Trained, copy: Path, tmp_path: Path, name: str) -> None:
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


def test_training_in_a_damaged_run_mends_it_but_for_whose_it_is(run: Run, trained: Trained, copy: Path) -> None:
    flip(copy / EARLIER, 0.6)
    found = json.loads(run("train", trained.job, "--run", copy, "--json").stdout)
    assert found["checkpoint_root"] == "0x" + trained.root.hex() and found["mended_intervals"] == [0]
    assert (copy / EARLIER).read_bytes() == (trained.run / EARLIER).read_bytes()
    for place, said in ((0.6, "choose an empty directory"), (0.0, "nothing is lost")):
        shutil.copy(trained.run / "run.json", copy)
        flip(copy / "run.json", place)
        refused(run("train", trained.job, "--run", copy), str(copy), said)


def test_a_model_is_verified_without_a_chain(run: Run, trained: Trained, copy: Path) -> None:
    job = Job.read(trained.job)
    model = copy / LAST
    root = "0x" + state_root(load_tensors(model, job.program.states).values()).hex()
    words = ("verify", model, "--job", trained.job, "--root")
    shown = run(*words, root)
    assert shown.exit_code == 0 and shown.stdout == f"Right: {model} is the state with the root {root}.\n"
    assert json.loads(run(*words, root[2:].upper(), "--json").stdout)["right"] is True
    wrong = run(*words, "0x" + bytes(32).hex())
    assert wrong.exit_code == 3 and wrong.stdout.startswith("WRONG: ") and len(wrong.stdout.splitlines()) == 1
    for place in PLACES:
        shutil.copy(trained.run / LAST, model)
        flip(model, place)
        wrong = run(*words, root)
        assert wrong.exit_code == 3 and wrong.stdout.startswith(f"WRONG: {model} is not the state with the root {root}")
    other = run("verify", trained.run / EARLIER, "--job", trained.job, "--root", root)
    assert other.exit_code == 3 and f"not {root}" in other.stdout


def test_what_a_model_cannot_be_verified_with_is_named(run: Run, trained: Trained, tmp_path: Path) -> None:
    model, root = trained.run / LAST, "0x" + bytes(32).hex()
    job = tmp_path / "job"
    shutil.copytree(trained.job, job)
    flip(job / "program.json", 0.5)
    refused(run("verify", model, "--job", job, "--root", root), str(job), "copy the job again", "tiebreak job create")
    huge = tmp_path / "huge"
    huge.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    wrong = run("verify", huge, "--job", trained.job, "--root", root)
    assert wrong.exit_code == 3 and "has a header of" in wrong.stdout


def test_a_full_disk_says_so_whoever_notices_it() -> None:
    for error in (StorageError(Path("x"), "cannot be written"), LogError(Path("x"), None, "cannot be written")):
        error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
        assert sentence(error) == "the disk is full: make room and run the same command again."
        error.__cause__ = OSError(errno.EACCES, "Permission denied")
        assert sentence(error).startswith("x: cannot be written; ")
