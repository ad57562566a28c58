"""Hostile inputs that a stranger can give to an auditor: forged logs, broken jobs, data that explodes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.execution import Batches, Executor
from roundlog.execution.batches import CPU
from roundlog.log import Decision, Entries
from roundlog.rounding import LogFindingKind, protocols
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.options import Execution, RunOptions
from roundlog.training.trainer import Trainer

from tests.engine import forged_logs
from tests.engine.kept_jobs import KEPT_JOBS, kept_job
from tests.engine.tasks import halfway_task, small_task


def test_a_bent_decision_in_a_log_file_is_named_by_step_operator_and_element(halfway, tmp_path) -> None:
    job, result = halfway
    bent = {}

    def bend(steps):
        for operator, entry in sorted(steps[2].items()):
            bits = np.flatnonzero(entry.decisions != Decision.VALUE)
            if not bent and len(bits):
                decisions = entry.decisions.copy()
                decisions[bits[0]] ^= 1
                steps[2][operator] = Entries(entry.indices, decisions, entry.values)
                bent.update(step=2, operator=operator, element=int(entry.indices[bits[0]]))

    forged_logs.rewrite(job, result.log_dir, tmp_path / "log", bend)
    assert bent
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=1.0).run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert [(f.step, f.operator, f.element, f.kind) for f in audit.findings] == [
        (bent["step"], bent["operator"], bent["element"], LogFindingKind.FORGED)
    ]
    # Findings survive a restart of the auditor.
    again = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=1.0).run()
    assert again.findings == audit.findings


def test_an_entry_that_no_honest_trainer_writes_is_found_without_a_sample(halfway, tmp_path) -> None:
    job, result = halfway
    operator = next(i for i, node in enumerate(job.program.nodes) if node.op == "matmul")

    def invent(steps):
        for entries in (steps[0], steps[1]):
            old = entries.get(operator, Entries.empty())
            free = next(i for i in range(1000) if i not in old.indices)
            at = int(np.searchsorted(old.indices, free))
            entries[operator] = Entries(
                np.insert(old.indices, at, free), np.insert(old.decisions, at, np.uint8(1)), old.values
            )

    forged_logs.rewrite(job, result.log_dir, tmp_path / "log", invent)
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=0.0).run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert [(f.step, f.operator, f.kind) for f in audit.findings] == [
        (0, operator, LogFindingKind.FORGED),
        (1, operator, LogFindingKind.FORGED),
    ]


def reading(batches: type[Batches]) -> RunOptions:
    """Options of a party that reads other data than the spec prescribes."""

    def execution(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(Executor(job.program), batches(job.dataset, job.spec))

    return RunOptions(execution=execution)


@pytest.mark.slow
def test_a_log_that_is_mostly_wrong_is_given_up(tmp_path, monkeypatch) -> None:
    """A log of another run is one: findings are for people to read, and memory is finite."""
    monkeypatch.setattr(protocols, "MAX_FINDINGS", 20)
    job = Job.from_task(lambda: halfway_task(steps=6), compare=False)

    class Poisoned(Batches):
        def load(self, step: int, device: torch.device = CPU) -> list[torch.Tensor]:
            x, y = super().load(step)
            return [(x + 1) % 17, y]

    fraud = Trainer(job, tmp_path / "fraud", reading(Poisoned)).run()
    audit = Auditor(job, tmp_path / "audit", log_dir=fraud.log_dir, verify_log=1.0).run()
    assert len(audit.findings) == 20
    assert len(audit.unreadable) == 1
    assert "after 20 wrong entries" in audit.unreadable[0]
    assert audit.checkpoint_root == Auditor(job, tmp_path / "alone").run().checkpoint_root


def test_a_trainer_who_poisons_a_batch_gets_another_root_from_that_interval_on(tmp_path) -> None:
    job = kept_job("logistic_sgd")

    class Poisoned(Batches):
        def load(self, step: int, device: torch.device = CPU) -> list[torch.Tensor]:
            x, y = super().load(step)
            return [x, (y + 1) % 3] if step == 5 else [x, y]

    fraud = Trainer(job, tmp_path / "fraud", reading(Poisoned)).run()
    audit = Auditor(job, tmp_path / "audit", log_dir=fraud.log_dir).run()
    same = [a == b for a, b in zip(fraud.state_roots, audit.state_roots, strict=True)]
    assert same == [True, True, False, False]


def written(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT_JOBS / "convolution", tmp_path / "job"))


def test_a_job_larger_than_the_limit_is_refused_before_its_tensors_are_read(tmp_path) -> None:
    directory = written(tmp_path)
    for name in ("initial", "data", "schedule"):
        (directory / f"{name}.safetensors").unlink()
    with pytest.raises(JobError, match="bytes of memory, more than the 1000 allowed"):
        Job.read(directory, JobLimits(memory_bytes=1000))


@pytest.mark.slow
def test_a_convolution_whose_windows_need_more_memory_than_its_tensors_is_refused(tmp_path) -> None:
    """One image and one kernel of 10,000 numbers, whose im2col would take 800 MB; written where that is there."""
    model = torch.nn.Conv2d(1, 1, 100, bias=False)
    task = small_task(model, lambda m, b: m(b["x"]).sum(), {"x": torch.zeros(1, 1, 200, 200)})
    Job.from_task(lambda: task, compare=False).write(tmp_path / "job")
    with pytest.raises(JobError, match="bytes of memory, more than"):
        Job.read(tmp_path / "job", JobLimits(memory_bytes=1 << 28))


def test_another_program_under_the_same_spec_is_refused(tmp_path) -> None:
    directory = written(tmp_path)
    document = json.loads((directory / "program.json").read_bytes())
    where = next(i for i, node in enumerate(document["nodes"]) if node[0] == "add")
    document["nodes"][where][0] = "sub"
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    (directory / "program.json").write_bytes(text)
    with pytest.raises(JobError, match="not the one that its spec commits to"):
        Job.read(directory)


@pytest.mark.parametrize("change", [{"batch_size": 7}, {"state_count": 3}])
def test_a_spec_of_another_batch_or_state_than_the_programs_is_refused(change: dict[str, int], tmp_path) -> None:
    spec = written(tmp_path) / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), **change}))
    with pytest.raises(JobError, match="has other states or another batch size than its spec"):
        Job.read(tmp_path / "job")


def test_a_spec_longer_than_any_is_not_read(tmp_path) -> None:
    spec = written(tmp_path) / "spec.json"
    spec.write_text(spec.read_text() + " " * (16 << 10))
    with pytest.raises(JobError, match="has more than the 16384 bytes that are read"):
        Job.read(tmp_path / "job")
