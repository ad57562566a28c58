"""The frauds of the demo: first seen where they say they are, followed by all the rest, and logged as they are told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from roundlog.dispute import FabricatedValues, StepTrace, trace_step
from roundlog.operators.job_arithmetic import EXACT
from roundlog.program import first_store
from roundlog.rounding.policies import without_log
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_state
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer, TrainingResult
from tiebreak_demo.adversary.frauds import Fraud, FraudKind
from tiebreak_demo.adversary.places import all_frauds
from tiebreak_demo.adversary.tampering import turned
from tiebreak_demo.adversary.trainings import TRAININGS, Training

pytestmark = pytest.mark.slow

STEP = 4


@dataclass(frozen=True)
class Told:
    """A training with its frauds about STEP, trained honestly in `room`."""

    training: Training
    job: Job
    room: Path
    honest: TrainingResult
    frauds: dict[FraudKind, Fraud]

    def run(self, fraud: Fraud | None = None) -> Run:
        return Run(self.job, self.room / "honest", options_of(fraud))

    def trace(self, fraud: Fraud | None = None) -> StepTrace:
        """STEP, with all its values."""
        run = self.run(fraud)
        inputs = run.inputs(STEP, replay_state(self.run(), STEP))
        return trace_step(run.executor, inputs, without_log(self.job.spec), FabricatedValues(self.room), {})


def options_of(fraud: Fraud | None) -> RunOptions:
    return RunOptions() if fraud is None else RunOptions(execution=fraud.execution)


@pytest.fixture(scope="module", params=TRAININGS, ids=lambda training: training.name)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    room = tmp_path_factory.mktemp("frauds")
    job = request.param.job()
    honest = Trainer(job, room / "honest").run()
    return Told(request.param, job, room, honest, all_frauds(Run(job, room / "honest"), STEP, request.param))


def test_every_kind_is_there_and_first_seen_where_it_says(told: Told) -> None:
    assert list(told.frauds) == list(told.training.kinds)
    right, stores = told.trace(), first_store(told.job.program)
    for kind, fraud in told.frauds.items():
        found = told.trace(fraud)
        assert found.stop is None and fraud.kind is kind and fraud.step == STEP
        operators = [q for q, root in enumerate(found.operators) if root != right.operators[q]]
        slots = [s for s, root in enumerate(found.states) if root != right.states[s]]
        assert slots, "a fraud that changes nothing cannot be disputed"
        if kind is FraudKind.STORED:
            assert operators == [] and slots == [fraud.operator - stores]
            continue
        assert operators[0] == fraud.operator
        differs = (found.outputs[fraud.operator] != right.outputs[fraud.operator]).reshape(-1).nonzero().reshape(-1)
        assert differs[0] == fraud.element
        if kind not in (FraudKind.ROW, FraudKind.PROGRAM):
            assert len(differs) == 1
        assert found.states == found.operators[stores:]


def test_the_kinds_are_told_about_the_operators_that_they_name(told: Told) -> None:
    nodes = told.job.program.nodes
    ops = {kind: nodes[fraud.operator].op for kind, fraud in told.frauds.items()}
    if told.job.arithmetic != EXACT:
        assert set(ops.values()) == {"tensor_core_matmul"} and len(ops) == 4
        return
    assert ops[FraudKind.GRADIENT] in ("matmul", "conv2d_grad_weight") and ops[FraudKind.STORED] == "store"
    assert (ops[FraudKind.LOADED], ops[FraudKind.ROW], ops[FraudKind.RATE]) == ("state", "data", "schedule")
    assert ops[FraudKind.MASK] == "uniform" and ops.get(FraudKind.FUNCTION, "exp") == "exp"
    assert ops[FraudKind.PROGRAM] in ("tanh", "constant")


def test_frauds_in_bf16_are_one_ulp_of_what_they_name(told: Told) -> None:
    needs(told, FraudKind.CONVERSION)
    nodes, names = told.job.program.nodes, told.job.program.state_names
    activation, conversion, master, gradient = (
        told.frauds[kind] for kind in (FraudKind.ACTIVATION, FraudKind.CONVERSION, FraudKind.MASTER, FraudKind.GRADIENT)
    )
    assert [nodes[fraud.operator].op for fraud in (activation, conversion)] == ["matmul", "to_bf16"]
    weight = nodes[nodes[conversion.operator].inputs[0]]
    assert (weight.op, names[weight.attributes["slot"]]) == ("state", "parameter/block.down.weight")
    stored = nodes[first_store(told.job.program) + weight.attributes["slot"]]
    assert stored.inputs == (master.operator,) and weight.type == nodes[master.operator].type
    for fraud, dtype in ((activation, "bf16"), (conversion, "bf16"), (gradient, "bf16"), (master, "f32")):
        assert nodes[fraud.operator].type.dtype == dtype
        # Of the same sign, the encodings of neighbours are one apart.
        assert abs(fraud.claimed - fraud.right) == 1


@pytest.mark.parametrize(
    ("dtype", "gap"), [(torch.float32, 2.0**-23), (torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)]
)
def test_the_last_bit_of_a_number_is_one_ulp_in_every_format(dtype: torch.dtype, gap: float) -> None:
    found = turned(torch.tensor([1.0], dtype=dtype), 0)
    assert found.dtype == dtype and found.tolist() == [1 + gap]
    assert turned(found, found.itemsize * 8 - 1).tolist() == [-1 - gap]


def needs(told: Told, kind: FraudKind) -> Fraud:
    if kind not in told.frauds:
        pytest.skip(f"nobody lies so in the {told.training.name}")
    return told.frauds[kind]


def test_who_verifies_nothing_follows_a_turned_decision_and_who_verifies_all_finds_it(told: Told) -> None:
    fraud = needs(told, FraudKind.ROUNDING)
    trained = Trainer(told.job, told.room / "turned", options_of(fraud)).run()
    blind = Auditor(told.job, told.room / "blind", log_dir=trained.log_dir, verify_log=0.0).run()
    assert blind.checkpoint_root == trained.checkpoint_root != told.honest.checkpoint_root and blind.findings == []
    seeing = Auditor(told.job, told.room / "seeing", log_dir=trained.log_dir, verify_log=1.0).run()
    first = seeing.findings[0]
    assert (first.step, first.operator, first.element) == (STEP, fraud.operator, fraud.element)
    assert seeing.state_roots == told.honest.state_roots
