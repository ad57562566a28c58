"""Corruptions of generated text are found in a run's receipt, and on a chain at the element where each begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Task
from roundlog.capture.huggingface import Sampling
from roundlog.commitments import state_root
from roundlog.dispute import FabricatedValues, StepTrace, outputs_of, trace_step
from roundlog.execution import RunningStep, StepExecutor
from roundlog.operators import StepInputs
from roundlog.program import Node, Program, first_store
from roundlog.rounding.policies import without_log
from roundlog.training import Job, Run, RunOptions, Trainer, TrainingResult, repeat_all, replay_state
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import BentExecutor, MakeExecution, execution_of, lying, turned

from tests.e2e.world import TERMS, World
from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

VOCABULARY, WIDTH, LAYERS = 23, 16, 2
PROMPTS = [[1, 2, 3], [4]]
NEW, INTERVAL, SEED = 6, 2, 5
SAMPLING = Sampling(temperature=0.9, top_k=20, top_p=0.95)
Bend = Callable[[RunningStep, int], None]
"""Computes an operator of a running step, in place of `RunningStep.compute`."""


def model_of_text() -> Any:
    """A Llama in BF16 with random weights."""
    torch.manual_seed(0)
    config = small_llama(VOCABULARY, WIDTH, 2 * WIDTH, LAYERS, max_position_embeddings=32, initializer_range=0.3)
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16
    ).eval()


def job_of_text() -> Job:
    """Two prompts, behind which tokens are drawn; a checkpoint every two steps."""
    how = {name: getattr(SAMPLING, name) for name in ("temperature", "top_k", "top_p")}
    task = Task.from_causal_lm(model_of_text(), PROMPTS, new_tokens=NEW, interval=INTERVAL, seed=SEED, **how)
    return Job.from_task(lambda: task)


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A provider's other computation.

    op: the operator at which it is first seen. state: the state that this operator reads, if it reads one. bend: the
    computation of the operators."""

    op: str
    bend: Callable[[Program], Bend]
    state: str | None = None

    @property
    def execution(self) -> MakeExecution:
        """The `execution` of `RunOptions`."""

        def executor(job: Job) -> StepExecutor:
            return BentExecutor(job.program, job.spec.f32_format, compute=self.bend(job.program))

        return execution_of(executor)


def state_read(program: Program, operator: int) -> str | None:
    """Name of the state that an operator reads; None if it reads none."""
    node = program.nodes[operator]
    slot = node.attributes.get("slot")
    return program.state_names[slot] if node.op == "state" and isinstance(slot, int) else None


def _reads(program: Program, fits: Callable[[str], bool]) -> list[int]:
    """Operators that read states with such names."""
    names = {q: state_read(program, q) for q in range(len(program.nodes))}
    return [q for q, name in names.items() if name is not None and fits(name)]


def _another_state(
    name: Callable[[str], bool], change: Callable[[torch.Tensor], torch.Tensor], program: Program, *, step: int = 0
) -> Bend:
    """Go on from other states than its own in a step, which stores what it has read for those behind it. In step 0,
    these are other ones than the job's."""
    reads = _reads(program, name)

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if running.inputs.step == step and index in reads:
            running.values[index] = change(running.values[index])

    return bend


def _likeliest(program: Program) -> Bend:
    """Take the first of the tokens to draw from, which are in the order of their shares."""
    (draw,) = [q for q, node in enumerate(program.nodes) if node.op == "argmax"]

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index == draw:
            running.values[index] = torch.zeros_like(running.values[index])

    return bend


def _by_another_seed(program: Program) -> Bend:
    def bend(running: RunningStep, index: int) -> None:
        prescribed = running.inputs
        if program.nodes[index].op == "uniform":
            running.inputs = replace(prescribed, seed=SEED + 1)
        running.compute(index)
        running.inputs = prescribed

    return bend


def _moved(node: Node, numbers: torch.Tensor) -> torch.Tensor:
    """The result of a `permute` or `reshape` on numbers of any format."""
    dims = node.attributes.get("dims")
    return numbers.permute(dims) if isinstance(dims, tuple) else numbers.reshape(node.type.shape)


def _attention_in_fp32(program: Program) -> Bend:
    """Does not round the mix of values to BF16 before it is projected."""
    nodes = program.nodes
    paths = {}
    for q in _reads(program, lambda name: name.endswith("o_proj.weight")):
        (product,) = [p for p, node in enumerate(nodes) if node.op == "matmul" and nodes[node.inputs[1]].inputs == (q,)]
        path = [nodes[product].inputs[0]]
        while nodes[path[0]].op != "to_bf16":
            path.insert(0, nodes[path[0]].inputs[0])
        paths[product] = path
    assert len(paths) == LAYERS
    rounded = {path[0]: product for product, path in paths.items()}
    wide: dict[int, torch.Tensor] = {}

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index in rounded:
            wide[rounded[index]] = running.values[nodes[index].inputs[0]].double()
        if index in paths:
            mixed = wide[index]
            for q in paths[index][1:]:
                mixed = _moved(nodes[q], mixed)
            weight = running.values[nodes[index].inputs[1]]
            running.values[index] = (mixed @ weight.double()).to(torch.bfloat16)

    return bend


_WEIGHT = "model.layers.0.mlp.gate_proj.weight"


def _by_one_ulp(weight: torch.Tensor) -> torch.Tensor:
    """The last place of the largest number flipped."""
    other = weight.clone()
    flat = other.view(-1)
    place = int(flat.abs().argmax())
    flat[place] = turned(flat[place].clone(), 0)
    return other


def _is_weight(name: str) -> bool:
    return name.removeprefix("parameter/model.") == _WEIGHT


def _one_token_less(lengths: torch.Tensor) -> torch.Tensor:
    return lengths - torch.tensor([1, 0])


CORRUPTIONS: dict[str, Corruption] = {
    "one weight by one ulp": Corruption(
        op="state",
        state=f"parameter/model.{_WEIGHT}",
        bend=partial(_another_state, _is_weight, _by_one_ulp, step=5),
    ),
    "the likeliest token, not the drawn one": Corruption(op="argmax", bend=_likeliest),
    "a shortened prompt": Corruption(
        op="state",
        state="buffer/lengths",
        bend=partial(_another_state, "buffer/lengths".__eq__, _one_token_less),
    ),
    "another seed": Corruption(op="uniform", bend=_by_another_seed),
    "attention in FP32": Corruption(op="matmul", bend=_attention_in_fp32),
}
"""Weights and prompts are the first state of a job, whose root the contract knows. So a provider of another model, or
of another prompt, is one that reads another state than there is, at the beginning or (the first one) on the way; a game
ends where it is read."""


@dataclass(frozen=True)
class Told:
    """A job that generates text, trained honestly."""

    job: Job
    room: Path
    honest: TrainingResult


@dataclass(frozen=True)
class Place:
    """The first number that a corruption changes in the first step whose state it changes, and its right and its
    claimed bits."""

    step: int
    operator: int
    element: int
    right: int
    claimed: int


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    room, job = tmp_path_factory.mktemp("told"), job_of_text()
    return Told(job, room, Trainer(job, room / "honest").run())


def place_of(told: Told, corruption: Corruption) -> Place:
    """By the traces of the steps alone, which no game has seen."""
    honest = Run(told.job, told.room / "honest")
    other = Run(told.job, told.room / "honest", RunOptions(execution=corruption.execution))

    def trace(run: Run, inputs: StepInputs) -> StepTrace:
        return trace_step(run.executor, inputs, without_log(told.job.spec), FabricatedValues(told.room))

    def output(run: Run, inputs: StepInputs, operator: int) -> torch.Tensor:
        return outputs_of(run.executor, inputs, without_log(told.job.spec), [operator])[operator].reshape(-1)

    for step in range(told.job.spec.steps):
        inputs = [run.inputs(step, replay_state(honest, step)) for run in (honest, other)]
        right, wrong = trace(honest, inputs[0]), trace(other, inputs[1])
        if right.states == wrong.states:
            continue
        operator = next(q for q, root in enumerate(wrong.operators) if root != right.operators[q])
        bits = [output(run, given, operator) for run, given in zip((honest, other), inputs, strict=True)]
        element = int((bits[0] != bits[1]).nonzero()[0])
        return Place(step, operator, element, *(_bits(one[element]) for one in bits))
    raise AssertionError("what changes nothing cannot be disputed")


def _bits(number: torch.Tensor) -> int:
    return int.from_bytes(number.reshape(1).view(torch.uint8).numpy().tobytes(), "little")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupt_provider_loses_where_its_corruption_begins(name: str, told: Told, world: World) -> None:
    corruption = CORRUPTIONS[name]
    place = place_of(told, corruption)
    require_named_operator(told.job, corruption, place)
    world.post(told.job)
    provider = TrainerRole(lying(world.context("trainer"), corruption.execution, Side.TRAINER), world.job)
    world.run(world.customer(), provider, AuditorRole(world.context("auditor"), world.job), world.referee())
    game = world.game()
    roots = game.levels[Level.CHECKPOINT].roots
    assert roots[Side.CHALLENGER] == told.honest.checkpoint_root != roots[Side.TRAINER]
    assert tuple(level.index for level in game.levels[: Level.OPERATOR + 1]) == (
        *divmod(place.step, INTERVAL),
        place.operator,
    )
    (proof,) = [event for event in world.contract.events(game=1) if isinstance(event, ElementProven)]
    assert (proof.element, proof.claimed, proof.finding) == (place.element, place.claimed, Finding.VALUE)
    assert proof.bits == place.right, "what the contract has computed"
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
    shares = world.shares()
    gains = {"trainer": -TERMS.trainer_bond, "auditor": shares.winner, "customer": shares.customer}
    assert world.gains() == gains


def require_named_operator(job: Job, corruption: Corruption, place: Place) -> None:
    """The operator is the one that the table names, and no store: those only keep what others have computed."""
    assert job.program.nodes[place.operator].op == corruption.op and place.operator < first_store(job.program)
    assert state_read(job.program, place.operator) == corruption.state


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_receipt_of_a_corrupt_run_is_wrong_at_the_interval_of_its_first_other_state(
    name: str, told: Told, tmp_path: Path
) -> None:
    place = place_of(told, CORRUPTIONS[name])
    options = RunOptions(execution=CORRUPTIONS[name].execution)
    claimed = Trainer(told.job, tmp_path / "corrupt", options).run()
    found = repeat_all(told.job, claimed.state_roots, tmp_path / "work")
    assert found.first_wrong == place.step // INTERVAL and found.stopped is None
    assert found.found == told.honest.state_roots[place.step // INTERVAL]
    agreed = replay_state(Run(told.job, told.room / "honest"), place.step // INTERVAL * INTERVAL)
    if found.first_wrong:
        assert state_root(agreed) == claimed.state_roots[found.first_wrong - 1]
