"""Whole trainings under the `threshold` policy and with fewer bits, between hardware profiles."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from roundlog.arithmetic import in_format
from roundlog.log import LogReader, LogWriter, PayloadKind
from roundlog.number_format import FLOAT32, Format, narrow_float32
from roundlog.rounding import LogFindingKind
from roundlog.rounding.ovt import TRITS, Trits
from roundlog.spec import POLICY_CERTIFIED, POLICY_THRESHOLD
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.run import RunError
from roundlog.training.run_cost import step_bytes
from roundlog.training.trainer import Trainer, log_header, log_path
from safetensors.torch import load_file

from tests.engine.kept_jobs import kept_job
from tests.engine.running.processes import finish, start
from tests.engine.tasks import TASKS

ALWAYS = {("gpt", POLICY_THRESHOLD, 32), ("conv", POLICY_CERTIFIED, 24)}
EVERY = [
    pytest.param(*case, marks=() if case in ALWAYS else pytest.mark.long)
    for case in product(TASKS, (POLICY_CERTIFIED, POLICY_THRESHOLD), range(23, 33))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy", "bits"), EVERY)
def test_every_machine_gets_the_trainers_root(name: str, policy: int, bits: int, tmp_path) -> None:
    Job.from_task(lambda: TASKS[name](), policy=policy, bits=bits, compare=False).write(tmp_path / "job")
    trainer = finish(start("native", "train", tmp_path / "job", tmp_path / "trainer"))
    role = "audit twice" if policy == POLICY_CERTIFIED else "audit"
    log = tmp_path / "trainer" / "log"
    audits = [
        start(p, role, tmp_path / "job", tmp_path / p, log, 0.5)
        for p in ("old", "avx2")[: 1 if (name, policy, bits) in ALWAYS else 2]
    ]
    for audit in audits:
        assert finish(audit) == {"root": trainer["root"], "findings": []}
    final = load_file(sorted((tmp_path / "trainer" / "checkpoints").iterdir())[-1])
    parameters = [tensor for key, tensor in final.items() if key.startswith(("parameter/", "slot/"))]
    assert all(bool(in_format(tensor, narrow_float32(bits)).all()) for tensor in parameters)
    if bits < 32:
        fewer = Format(FLOAT32.exponent_bits, bits - 2 - FLOAT32.exponent_bits)
        assert not all(bool(in_format(tensor, fewer).all()) for tensor in parameters)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    kept = kept_job("logistic_sgd")
    job = replace(kept, spec=replace(kept.spec, rounding_policy=POLICY_THRESHOLD))
    return job, Trainer(job, directory / "run").run(), directory


def test_the_log_has_a_trit_for_every_output_of_every_inexact_operator(trained) -> None:
    job, result, _ = trained
    sizes = [n.type.numel if n.op in ("matmul", "sum", "exp", "log") else 0 for n in job.program.nodes]
    assert log_header(job, 0).kind == PayloadKind.OUTPUTS
    with LogReader(log_path(result.log_dir, 0), log_header(job, 0), sizes, TRITS) as log:
        assert {index: len(trits) for index, trits in log.step(0).items()} == {
            index: size for index, size in enumerate(sizes) if size
        }


def bent(job, source, target, change) -> None:
    """The trainer's logs, with `change` applied to the trits of the first step's matmul."""
    target.mkdir()
    sizes = [n.type.numel if n.op in ("matmul", "sum", "exp", "log") else 0 for n in job.program.nodes]
    where = next(index for index, node in enumerate(job.program.nodes) if node.op == "matmul")
    for i in range(job.spec.intervals):
        header = log_header(job, i)
        with (
            LogReader(log_path(source, i), header, sizes, TRITS) as reader,
            LogWriter(log_path(target, i), header, TRITS) as writer,
        ):
            for step in range(header.first_step, header.first_step + header.steps):
                log = reader.step(step)
                if step == 0:
                    log[where] = Trits.pack(change(log[where].codes()))
                writer.append(step, log)


def test_a_trainer_who_steers_the_training_by_its_log_is_found_at_elements_that_it_steered(trained, tmp_path) -> None:
    job, result, _ = trained
    flips = []

    def flip(codes: np.ndarray) -> np.ndarray:
        lie = np.where(codes == 0, 2, np.where(codes == 2, 0, 1)).astype(np.uint8)
        flips.extend(np.flatnonzero(lie != codes).tolist())
        return lie

    bent(job, result.log_dir, tmp_path / "log", flip)
    audit = Auditor(job, tmp_path / "audit", log_dir=tmp_path / "log").run()
    assert audit.checkpoint_root == result.checkpoint_root
    assert [f.kind for f in audit.findings] == [LogFindingKind.FORGED] * len(audit.findings)
    # A lie that this machine's own side of the number agrees with asks for nothing.
    assert audit.findings
    assert {f.element for f in audit.findings} <= set(flips)


def test_an_audit_under_threshold_asks_for_the_log(trained, tmp_path) -> None:
    job, _, _ = trained
    with pytest.raises(RunError, match="audit it with the trainer's log"):
        Auditor(job, tmp_path / "run")


def test_a_log_of_the_other_policy_is_reported_as_unreadable(trained, tmp_path) -> None:
    job, result, _ = trained
    audit = Auditor(kept_job("logistic_sgd"), tmp_path / "audit", log_dir=result.log_dir).run()
    assert len(audit.unreadable) == job.spec.intervals
    assert all("belongs to run" in text for text in audit.unreadable)


def test_a_job_of_few_bits_declares_the_memory_that_it_needs() -> None:
    plain, few = kept_job("logistic_sgd"), kept_job("logistic_27_bits")
    assert step_bytes(few.program, few.spec) > step_bytes(plain.program, plain.spec)
