"""Hostile inputs that a stranger can give to an auditor: forged logs, broken jobs, data that explodes."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.capture import Task
from roundlog.execution import Batches, Executor, NonFiniteError
from roundlog.execution.batches import CPU
from roundlog.log import Decision, Entries, LogReader, LogWriter
from roundlog.rounding import LogFindingKind, follow
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.options import Execution, RunOptions
from roundlog.training.trainer import Trainer, log_header, log_path
from safetensors.torch import save_file

from tests.engine.tasks import conv_task, halfway_task, linear_task


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    directory = tmp_path_factory.mktemp("honest")
    Job.from_task(lambda: halfway_task(steps=4)).write(directory / "job")
    job = Job.read(directory / "job")
    return job, Trainer(job, directory / "run").run()


def rewrite_log(job: Job, source, target, interval: int, change) -> None:
    """Copy a log directory, with `change(step, entries by operator)` applied to one interval."""
    target.mkdir()
    sizes = [node.type.numel for node in job.program.nodes]
    for i in range(job.spec.intervals):
        with LogReader(log_path(source, i), log_header(job, i), sizes) as reader:
            first = i * job.spec.interval
            steps = {step: dict(reader.step(step)) for step in range(first, first + job.spec.interval)}
        with LogWriter(log_path(target, i), log_header(job, i)) as writer:
            for step, entries in steps.items():
                writer.append(step, change(step, entries) if i == interval else entries)


def test_a_bent_decision_in_a_log_file_is_named_by_step_operator_and_element(honest, tmp_path) -> None:
    job, result = honest
    bent = {}

    def bend(step, entries):
        for operator, entry in sorted(entries.items()):
            bits = np.flatnonzero(entry.decisions != Decision.VALUE)
            if not bent and len(bits):
                decisions = entry.decisions.copy()
                decisions[bits[0]] ^= 1
                entries[operator] = Entries(entry.indices, decisions, entry.values)
                bent.update(step=step, operator=operator, element=int(entry.indices[bits[0]]))
        return entries

    rewrite_log(job, result.log_dir, tmp_path / "log", 1, bend)
    assert bent
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=1.0).run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert [(f.step, f.operator, f.element, f.kind) for f in audit.findings] == [
        (bent["step"], bent["operator"], bent["element"], LogFindingKind.FORGED)
    ]
    # Findings survive a restart of the auditor.
    again = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=1.0).run()
    assert again.findings == audit.findings


def test_an_entry_that_no_honest_trainer_writes_is_found_without_a_sample(honest, tmp_path) -> None:
    job, result = honest
    operator = next(i for i, node in enumerate(job.program.nodes) if node.op == "matmul")

    def invent(step, entries):
        free = next(i for i in range(1000) if operator not in entries or i not in entries[operator].indices)
        old = entries.get(operator, Entries.empty())
        at = int(np.searchsorted(old.indices, free))
        entries[operator] = Entries(
            np.insert(old.indices, at, free), np.insert(old.decisions, at, np.uint8(1)), old.values
        )
        return entries

    rewrite_log(job, result.log_dir, tmp_path / "log", 0, invent)
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=0.0).run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert [(f.step, f.operator, f.kind) for f in audit.findings] == [
        (0, operator, LogFindingKind.FORGED),
        (1, operator, LogFindingKind.FORGED),
    ]


@pytest.mark.parametrize("damage", ["missing", "cut", "flip", "foreign"])
def test_an_unreadable_log_is_reported_and_the_audit_goes_on_without_it(damage: str, honest, tmp_path) -> None:
    job, result = honest
    rewrite_log(job, result.log_dir, tmp_path / "log", 0, lambda step, entries: entries)
    path = log_path(tmp_path / "log", 1)
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-11])
    elif damage == "flip":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    else:
        path.write_bytes(log_path(result.log_dir, 0).read_bytes())
    audit = Auditor(job, tmp_path / "run", log_dir=tmp_path / "log", verify_log=0.0).run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert audit.findings == []
    assert len(audit.unreadable) == 1
    assert path.name in audit.unreadable[0]


def reading(batches: type[Batches]) -> RunOptions:
    """Options of a party that reads other data than the spec prescribes."""

    def execution(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(Executor(job.program), batches(job.dataset, job.spec))

    return RunOptions(execution=execution)


@pytest.mark.slow
def test_a_log_that_is_mostly_wrong_is_given_up(tmp_path, monkeypatch) -> None:
    """A log of another run is one: findings are for people to read, and memory is finite."""
    monkeypatch.setattr(follow, "MAX_FINDINGS", 20)
    job = Job.from_task(lambda: halfway_task(steps=6))

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
    job = Job.from_task(linear_task)

    class Poisoned(Batches):
        def load(self, step: int, device: torch.device = CPU) -> list[torch.Tensor]:
            x, y = super().load(step)
            return [x, (y + 1) % 3] if step == 5 else [x, y]

    fraud = Trainer(job, tmp_path / "fraud", reading(Poisoned)).run()
    audit = Auditor(job, tmp_path / "audit", log_dir=fraud.log_dir).run()
    same = [a == b for a, b in zip(fraud.state_roots, audit.state_roots, strict=True)]
    assert same == [True, True, False, False]


def test_a_value_that_is_not_finite_stops_the_run_with_step_operator_and_element(tmp_path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    x = torch.randn(6, 4)
    x[3, 1] = 3e38
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"] * b["x"]).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": x},
        batch_size=6,
        steps=2,
        interval=1,
        seed=0,
    )
    job = Job.from_task(lambda: task)
    with pytest.raises(NonFiniteError, match=r"^step 0: operator \d+ .*\(mul, test_hostile_inputs.py:\d+\) gives inf"):
        Trainer(job, tmp_path / "run").run()
    # The half-written log of that interval is gone, and nothing is recorded.
    assert [p for p in (tmp_path / "run" / "log").iterdir() if p.suffix == ".rlog"] == []
    assert (tmp_path / "run" / "roots").read_bytes() == b""


@functools.cache
def of_images() -> Job:
    return Job.from_task(conv_task)


def written(tmp_path: Path) -> Path:
    of_images().write(tmp_path / "job")
    return tmp_path / "job"


def test_a_job_survives_its_files(tmp_path) -> None:
    job = of_images()
    job.write(tmp_path / "job")
    again = Job.read(tmp_path / "job")
    assert (again.program, again.spec) == (job.program, job.spec)
    assert all(torch.equal(a, b) for a, b in zip(again.initial.values(), job.initial.values(), strict=True))


@pytest.mark.parametrize(
    "name", ["spec.json", "program.json", "initial.safetensors", "data.safetensors", "data.blocks"]
)
def test_a_job_with_a_missing_cut_or_changed_file_is_refused_in_one_sentence(name: str, tmp_path) -> None:
    path = written(tmp_path) / name
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for data in (None, b"", whole[:-1], whole[: len(whole) // 2], bytes(flipped), whole + b"x"):
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        with pytest.raises(JobError) as caught:
            Job.read(tmp_path / "job")
        assert "\n" not in str(caught.value)


def test_a_job_larger_than_the_limit_is_refused_before_its_tensors_are_read(tmp_path) -> None:
    directory = written(tmp_path)
    for name in ("initial", "data", "schedule"):
        (directory / f"{name}.safetensors").unlink()
    with pytest.raises(JobError, match="bytes of memory, more than the 1000 allowed"):
        Job.read(directory, JobLimits(memory_bytes=1000))


@pytest.mark.slow
def test_a_convolution_whose_windows_need_more_memory_than_its_tensors_is_refused(tmp_path) -> None:
    """One image and one kernel of a megabyte, whose im2col would take 31 GB; written where that is there."""
    model = torch.nn.Conv2d(1, 1, 250, bias=False)
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"]).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.zeros(1, 1, 500, 500)},
        batch_size=1,
        steps=1,
        interval=1,
        seed=0,
    )
    Job.from_task(lambda: task, compare=False).write(tmp_path / "job")
    with pytest.raises(JobError, match="bytes of memory, more than"):
        Job.read(tmp_path / "job")


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


def test_a_state_with_nan_is_refused(tmp_path) -> None:
    directory = written(tmp_path)
    initial = dict(Job.read(directory).initial)
    initial["parameter/head.bias"][0] = torch.nan
    save_file(initial, directory / "initial.safetensors")
    with pytest.raises(JobError):
        Job.read(directory)
