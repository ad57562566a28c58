"""`train`, `audit` and `job`: results, and what becomes of everything that can be wrong with files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from roundlog.log import Decision, Entries, LogReader, LogWriter
from roundlog.training.job import Job
from roundlog.training.run import root_sum
from roundlog.training.trainer import log_header, log_path

from tests.client.cli.cli_world import Run, Trained, refused
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


def with_one_bent_entry(trained: Trained, log: Path) -> tuple[Job, int, int]:
    """A copy of the log with one decision of step 3 turned round, all others as they were. Returns the job, and which
    operator and element it is."""
    job = Job.read(trained.job)
    shutil.copytree(trained.run / "log", log)
    header = log_header(job, 1)
    sizes = [node.type.numel for node in job.program.nodes]
    with LogReader(log_path(log, 1), header, sizes) as reader:
        steps = {step: dict(reader.step(step)) for step in (2, 3)}
    operator, entries = next((op, e) for op, e in steps[3].items() if (e.decisions != int(Decision.VALUE)).any())
    place = int((entries.decisions != int(Decision.VALUE)).argmax())
    turned = entries.decisions.copy()
    turned[place] = int(Decision.UP) + int(Decision.DOWN) - turned[place]
    steps[3][operator] = Entries(entries.indices, turned, entries.values)
    log_path(log, 1).unlink()
    with LogWriter(log_path(log, 1), header) as writer:
        for step, found in steps.items():
            writer.append(step, found)
    return job, operator, int(entries.indices[place])


def test_an_honest_trainer_with_a_bent_log_entry_is_not_accused_of_a_wrong_claim(
    run: Run, trained: Trained, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with_one_bent_entry(trained, log)
    words = ("audit", trained.job, "--log", log, "--claim", trained.run)
    result = run(*words, "--run", tmp_path / "a", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 3
    assert found["agrees"] is True and found["first_wrong_interval"] is None
    assert found["log"] == "wrong" and len(found["findings"]) == 1
    shown = run(*words, "--run", tmp_path / "b")
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
    refused(run("log", "inspect", nowhere), str(nowhere))


def test_the_run_of_another_job_is_not_touched(run: Run, trained: Trained, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file()}
    other = KEPT_JOBS / "logistic_sgd"
    refused(run("train", other, "--run", trained.run), str(trained.run), "another job", "choose an empty directory")
    assert before == {path: path.read_bytes() for path in trained.run.rglob("*") if path.is_file()}


def test_a_log_can_be_inspected_with_the_names_of_the_job(run: Run, trained: Trained) -> None:
    result = run("log", "inspect", trained.run / "log", "--job", trained.job, "--json")
    assert result.exit_code == 0
    files = json.loads(result.stdout)
    assert [one["first_step"] for one in files] == [0, 2]
    operators = [operator for one in files for step in one["steps"] for operator in step["operators"]]
    assert any("matmul, job_sources.py:" in operator["described"] for operator in operators)
    assert sum(one["bytes"] for one in files) == sum(path.stat().st_size for path in (trained.run / "log").iterdir())
    shown = run("log", "inspect", trained.run / "log").stdout
    assert "00000001.rlog" in shown and files[0]["root"] in shown


def test_a_damaged_log_is_named_with_the_offset(run: Run, trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "00000000.rlog"
    content = bytearray(log_path(trained.run / "log", 0).read_bytes())
    path.write_bytes(content[:-7])
    refused(run("log", "inspect", path), f"{path}: byte ")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refused(run("log", "inspect", path), f"{path}: byte ")
    path.write_bytes(b"not a log")
    refused(run("log", "inspect", tmp_path), str(path))
    path.unlink()
    refused(run("log", "inspect", tmp_path), f"{tmp_path} holds no .rlog files")
