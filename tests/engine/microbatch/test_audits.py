"""An auditor with less memory than the trainer: the same roots, the same findings, in any number of micro-batches."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.capture import Task
from roundlog.execution import NonFiniteError, slicing
from roundlog.execution.microbatch import peak_bytes
from roundlog.log import Entries
from roundlog.program import ProgramError
from roundlog.rounding import LogFindingKind
from roundlog.training.auditor import Auditor, AuditResult
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer, TrainingResult
from torch import nn

from tests.engine import forged_logs
from tests.engine.kept_jobs import KEPT_JOBS, kept_job
from tests.engine.tasks import classify, conv_task, linear_task, small_task


def accumulating_task() -> Task:
    """A net whose samples nothing couples. Its program takes the batch in two parts, and clips their gradients' sum."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    )
    data = {"x": torch.randn(30, 2, 8, 8), "y": torch.randint(0, 5, (30,))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = {"batch_size": 8, "micro_batches": 2, "max_grad_norm": 0.5, "steps": 2, "seed": 2}
    return small_task(model, classify, data, optimizer=optimizer, **run)


TASKS = {
    "batch norm": (lambda: conv_task(steps=2, interval=1), 8),
    "logistic regression": (lambda: linear_task(steps=2, interval=1), 5),
    "accumulation": (accumulating_task, 4),
}


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory) -> tuple[Job, TrainingResult, int]:
    """(job, what its trainer published, how many samples can be computed one by one)."""
    make, samples = TASKS[request.param]
    job = Job.from_task(make, compare=False)
    return job, Trainer(job, tmp_path_factory.mktemp("trained") / "run").run(), samples


def forge(entries: Mapping[int, Entries]) -> dict[int, Entries]:
    """In every operator: its first decision turned round, its last one left out, and one entry where none belongs."""
    forged = {}
    for operator, entry in entries.items():
        indices, decisions = entry.indices, entry.decisions.copy()
        if len(entry.values) or not len(indices):
            continue
        decisions[0] ^= 1
        extra = int(indices[-1]) + 1
        keep = max(1, len(indices) - 1)
        if len(indices) > 1:
            indices, decisions = indices[:keep], decisions[:keep]
        elif operator % 2 and extra < 3:
            indices, decisions = np.append(indices, extra), np.append(decisions, np.uint8(1))
        forged[operator] = Entries(indices, decisions, entry.values)
    return {**entries, **forged}


def found(audit: AuditResult) -> list[tuple[int, int, int, LogFindingKind, str]]:
    return sorted((f.step, f.operator, f.element, f.kind, f.message) for f in audit.findings)


@pytest.mark.slow_but("logistic regression")
def test_findings_are_those_of_the_whole_batch(trained, tmp_path: Path, monkeypatch) -> None:
    """In operators on single samples and in sums over all of them, in slices of operators or whole. Everything is
    verified, so that no draw decides."""
    job, result, samples = trained
    # Small steps may have nothing in doubt: an entry for every sum and product that has none.
    sums = [index for index, node in enumerate(job.program.nodes) if node.op in ("sum", "matmul", "conv2d")]
    invented = {index: Entries(np.zeros(1, np.int64), np.ones(1, np.uint8), np.zeros(0, np.uint32)) for index in sums}

    def change(steps: forged_logs.Steps) -> None:
        steps.update({step: {**invented, **forge(entries)} for step, entries in steps.items()})

    forged_logs.rewrite(job, result.log_dir, tmp_path / "log", change)
    whole = Auditor(job, tmp_path / "whole", log_dir=tmp_path / "log", verify_log=1.0).run()
    assert any(f.kind == LogFindingKind.FORGED for f in whole.findings)
    for count, workspace in ((2, slicing.WORKSPACE), (samples, slicing.WORKSPACE), (1, 1 << 9), (2, 1 << 9)):
        monkeypatch.setattr(slicing, "WORKSPACE", workspace)
        parts = Auditor(
            job,
            tmp_path / f"{count} {workspace}",
            RunOptions(micro_batches=count),
            log_dir=tmp_path / "log",
            verify_log=1.0,
        ).run()
        assert found(parts) == found(whole)
        assert parts.state_roots == whole.state_roots == result.state_roots


def test_more_micro_batches_than_samples_are_refused_in_one_sentence(tmp_path: Path) -> None:
    job = kept_job("logistic_sgd")
    for count in (0, -1, 9):
        with pytest.raises(ProgramError, match=f"8 samples cannot be cut into {count} micro-batches"):
            Auditor(job, tmp_path / "run", RunOptions(micro_batches=count))
    assert not (tmp_path / "run").exists()


def test_a_value_that_is_not_finite_is_named_as_for_the_whole_batch(tmp_path: Path) -> None:
    """The first operator in program order, although other samples fail later and are computed first."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(6, 4)
    x[0, 0], x[5, 2] = 90.0, 3e38

    def loss(m: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        squares = batch["x"] * batch["x"]
        both = batch["x"].exp() + squares
        return (m(squares.minimum(torch.tensor(1.0))) + both.sum(1, keepdim=True)).sum()

    job = Job.from_task(lambda: small_task(model, loss, {"x": x}), compare=False)
    messages = set()
    for count in (1, 2, 3, 6):
        with pytest.raises(NonFiniteError) as caught:
            Auditor(job, tmp_path / f"{count}", RunOptions(micro_batches=count)).run()
        messages.add(str(caught.value))
    assert len(messages) == 1, messages
    assert "(mul, test_audits.py:" in messages.pop()


def test_the_memory_limit_goes_by_the_micro_batches_of_the_reader() -> None:
    job, folder = kept_job("logistic_sgd"), KEPT_JOBS / "logistic_sgd"
    data = (*job.dataset.values(), job.schedule)
    held = 3 * sum(t.nbytes for t in job.initial.values()) + sum(t.nbytes for t in data)
    halves, alone = (held + peak_bytes(job.program, count) for count in (2, 8))
    assert alone < halves < held + peak_bytes(job.program, 1)
    with pytest.raises(JobError, match="audit in more micro-batches"):
        Job.read(folder, JobLimits(memory_bytes=halves))
    # More than there are samples means one by one.
    for limit, parts in ((halves, 2), (alone, 8), (alone, 1000)):
        assert Job.read(folder, JobLimits(memory_bytes=limit, micro_batches=parts)).spec == job.spec
