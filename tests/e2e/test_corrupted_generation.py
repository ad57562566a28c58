"""Every corruption of generated text: found in the receipt of a text, found in the receipt of a run, and on a chain
down to the operator and the element where it begins, whoever of the two parties computes so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from roundlog.commitments import state_root
from roundlog.dispute import FabricatedValues, StepTrace, trace_step
from roundlog.generation import (
    GenerationReceipt,
    Generator,
    LoadedModel,
    ModelIdentity,
    check_text,
    make_receipt,
    other_model,
)
from roundlog.generation.model_folder import weight_root
from roundlog.program import first_store
from roundlog.rounding.policies import without_log
from roundlog.training import Job, Run, RunOptions, Trainer, TrainingResult, repeat_all, replay_state
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Reason, Side
from tiebreak.contract.events import ElementProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import lying

from tests.e2e.corrupted_generation import (
    CORRUPTIONS,
    INTERVAL,
    SAMPLING,
    SEED,
    Corruption,
    job_of_text,
    model_of_text,
    state_read,
)
from tests.e2e.world import TERMS, World

pytestmark = pytest.mark.slow
PROMPT, NEW = [1, 2, 3, 7, 5], 14


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

    def trace(run: Run, step: int) -> StepTrace:
        inputs = run.inputs(step, replay_state(honest, step))
        return trace_step(run.executor, inputs, without_log(told.job.spec), FabricatedValues(told.room), {})

    for step in range(told.job.spec.steps):
        right, wrong = trace(honest, step), trace(other, step)
        if right.states == wrong.states:
            continue
        operator = next(q for q, root in enumerate(wrong.operators) if root != right.operators[q])
        bits = [one.outputs[operator].reshape(-1) for one in (right, wrong)]
        element = int((bits[0] != bits[1]).nonzero()[0])
        return Place(step, operator, element, *(_bits(one[element]) for one in bits))
    raise AssertionError("what changes nothing cannot be disputed")


def _bits(number: torch.Tensor) -> int:
    return int.from_bytes(number.reshape(1).view(torch.uint8).numpy().tobytes(), "little")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupt_provider_loses_where_its_corruption_begins(name: str, told: Told, quick_world: World) -> None:
    world, corruption = quick_world, CORRUPTIONS[name]
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


@dataclass(frozen=True)
class Sold:
    """A model, and what buyers of its texts check them with."""

    loaded: LoadedModel
    checker: Generator
    text: list[int]
    """Its own text behind PROMPT."""


@pytest.fixture(scope="module")
def sold() -> Sold:
    model = model_of_text()
    nothing = bytes(32)
    identity = ModelIdentity(
        name="small", revision="", model_weight_hash=weight_root(model), config_hash=nothing, tokenizer_hash=nothing
    )
    checker = Generator(model, positions=len(PROMPT) + NEW, chunk=len(PROMPT) + NEW)
    text = checker.generate(PROMPT, new_tokens=NEW, sampling=SAMPLING, seed=SEED)
    return Sold(LoadedModel(model, None, identity, ()), checker, text.tokens)


def receipt_of(sold: Sold, corruption: Corruption) -> GenerationReceipt:
    """The receipt of a corrupt provider, which says that all is as it should be."""
    text = corruption.text(sold.loaded.model, PROMPT, NEW)
    return make_receipt(
        sold.loaded,
        sold.checker,
        PROMPT,
        text,
        sampling=SAMPLING,
        seed=SEED,
        max_new_tokens=NEW,
        tiebreak_version="0.0",
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_repetition_finds_the_first_token_that_the_model_does_not_choose(name: str, sold: Sold) -> None:
    """Where all tokens are the model's, their probabilities are not."""
    receipt = receipt_of(sold, CORRUPTIONS[name])
    assert other_model(receipt, sold.loaded) is None, "it claims to be the model's"
    pairs = zip(receipt.tokens, sold.text, strict=True)
    first = next((at for at, (claimed, right) in enumerate(pairs) if claimed != right), None)
    found = check_text(receipt, sold.checker, stop=())
    assert not found.is_right and found.wrong_token == first and found.wrong_logprobs is (first is None)
    if first is not None:
        assert found.right is not None and found.right.token == sold.text[first]
    assert check_text(receipt, sold.checker, stop=(), by_token=True) == found
