"""A whole training in mixed precision: trained, resumed, audited in every way, exported, and repeated for a receipt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.commitments import state_root
from roundlog.execution import Batches
from roundlog.spec import POLICY_THRESHOLD
from roundlog.storage import load_tensors
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.repetition import replay_state
from roundlog.training.run import Run
from roundlog.training.run_files import checkpoint_path
from roundlog.training.trainer import Trainer, TrainingResult

from tests.engine.oracle.array import from_torch
from tests.engine.oracle.by_verifier import values_of
from tests.engine.running import mixed_precision

Trained = tuple[Path, Job, TrainingResult]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("trained")
    mixed_precision.job().write(directory / "job")
    job = Job.read(directory / "job")
    return directory, job, Trainer(job, directory / "run").run()


def test_every_step_is_what_the_meanings_of_the_operators_say(trained: Trained) -> None:
    directory, job, result = trained
    states, batches, roots = list(job.initial.values()), Batches(job.dataset, job.spec), []
    stores = [index for index, node in enumerate(job.program.nodes) if node.op == "store"]
    run = Run(job, directory / "run")
    for step in range(job.spec.interval * 2):
        values = values_of(job.program, job.inputs(batches, step, states))
        states = replay_state(run, step + 1)
        assert [from_torch(state) for state in states] == [values[index] for index in stores], step
        roots.append(state_root(states))
    assert roots[1::2] == result.state_roots[:2]


def test_the_weights_are_roundings_of_the_copy_and_the_loss_falls(trained: Trained, tmp_path: Path) -> None:
    _, job, result = trained
    losses: list[float] = []

    def see(event: StepEvent) -> None:
        losses.append(event.loss)

    again = Trainer(job, tmp_path / "run", RunOptions(on_step=see)).run()
    assert again.state_roots == result.state_roots
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    end = load_tensors(checkpoint_path(tmp_path / "run", job.spec.steps), job.program.states)
    for name in ("first.weight", "second.weight"):
        assert torch.equal(end[f"parameter/{name}"], end[f"slot/{name}/master"].to(torch.bfloat16))
        assert not torch.equal(end[f"parameter/{name}"].float(), end[f"slot/{name}/master"])
    assert end["buffer/mean"].dtype == torch.float16 and bool((end["buffer/mean"] != 0).all())


@pytest.mark.slow_cases("6")
@pytest.mark.parametrize("micro_batches", [1, 6])
def test_an_audit_comes_to_the_same_roots(trained: Trained, tmp_path: Path, micro_batches: int) -> None:
    _, job, result = trained
    options = RunOptions(micro_batches=micro_batches)
    for number, (log, share) in enumerate([(None, 1.0), (result.log_dir, 1.0), (result.log_dir, 0.3)]):
        found = Auditor(job, tmp_path / f"{number}", options, log_dir=log, verify_log=share).run()
        assert found.state_roots == result.state_roots and found.findings == []


@pytest.mark.parametrize("bits", [32, 24])
def test_the_policy_by_threshold_trains_and_follows_it(bits: int, tmp_path: Path) -> None:
    """b_r is of FP32 values; values of other formats keep theirs."""
    job = mixed_precision.job(steps=4, policy=POLICY_THRESHOLD, bits=bits)
    result = Trainer(job, tmp_path / "run").run()
    found = Auditor(job, tmp_path / "audit", log_dir=result.log_dir).run()
    assert found.state_roots == result.state_roots and found.findings == []
    end = load_tensors(checkpoint_path(tmp_path / "run", 4), job.program.states)
    words = end["slot/first.weight/master"].view(torch.int32)
    assert bool((words & ((1 << 32 - bits) - 1) == 0).all()) and bool((words & (1 << 32 - bits)).any())
    assert torch.equal(end["parameter/first.weight"], end["slot/first.weight/master"].to(torch.bfloat16))


def changed(made: Job, name: str, element: int, bits: int) -> Job:
    """The job with other bits of one element of its initial state."""
    tensors = {key: tensor.clone() for key, tensor in made.initial.items()}
    words = torch.int32 if tensors[name].dtype == torch.float32 else torch.int16
    tensors[name].view(words).view(-1)[element] = bits
    spec = replace(made.spec, initial_state_root=state_root(tensors.values()))
    return replace(made, initial=tensors, spec=spec)


def test_a_run_whose_weight_overflows_in_bf16_alone_stops_at_its_store(tmp_path: Path) -> None:
    """3.4e38 is an FP32 number, and the copy of a weight; its rounding to BF16 is infinite."""
    job = changed(mixed_precision.job(), "slot/first.weight/master", 9, 0x7F7FC99E)
    said = set()
    for micro_batches in (1, 3):
        where = tmp_path / f"{micro_batches}"
        options = RunOptions(continue_after_stop=True, micro_batches=micro_batches)
        found = Auditor(job, where, options).run()
        assert found.stopped is not None and len(found.state_roots) == job.spec.intervals
        said.add(found.stopped)
        end = load_tensors(checkpoint_path(where, 12), job.program.states)
        for name, tensor in end.items():
            # Trained on from fabricated values, which differ from run to run: nothing of 3.4e38 is left.
            assert bool((tensor.abs() < 1e4).all()), name
            assert tensor.dtype == job.program.states[name].dtype.torch_dtype
    (sentence,) = said
    store = next(index for index, node in enumerate(job.program.nodes) if node.op == "store")
    assert sentence.startswith(f"step 0: operator {store} (store, mixed.py:{store}) gets inf at element 9: operator ")
    assert "(to_bf16, " in sentence and "gives inf at element 9: lower the learning rate" in sentence
