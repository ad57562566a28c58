"""An honest party that answers in time never loses, whatever the other one claims about a step: games on the contract
over random programs, down to the element, with runs that have no end among them."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast as typed

import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.partial import ExactSum
from roundlog.commitments import state_root, tensor_root
from roundlog.data import as_field, data_tree
from roundlog.descriptors import Descriptor, Family, describe, program_root
from roundlog.dispute import RunningResults, StepTrace
from roundlog.execution import RunningStep, StepExecutor
from roundlog.number_format import FLOAT32
from roundlog.operators import StepInputs
from roundlog.program import DType, Node, Program, TensorType, first_store
from roundlog.spec import TrainingSpec
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from tiebreak.contract.enums import Level, Outcome, Reason, Side
from tiebreak.contract.structs import GameView
from tiebreak.roles.engine import DisputeTrees
from tiebreak.strategy import Move, Place, Trace, Tree
from tiebreak_demo.adversary.engines import BentExecutor, Lie, execution_of, lying_trees, tampered

from tests.adversaries import hiding
from tests.client.disputes import Cast, Party
from tests.engine.adjudication.test_stops import hostile
from tests.engine.microbatch.random_programs import make

STEP = (0, 0)


def job_of(program: Program, inputs: StepInputs) -> Job:
    """A job of one step of a program without state."""
    dataset = {name: as_field(field) for name, field in zip(program.data_names, inputs.data, strict=True)}
    stores = [node.type for node in program.nodes if node.op == "store"]
    initial = {
        name: torch.zeros(kind.shape, dtype=kind.dtype.torch_dtype)
        for name, kind in zip(program.state_names, stores, strict=True)
    }
    schedule = torch.zeros(1, 0)
    spec = TrainingSpec(
        steps=1,
        interval=1,
        program_root=program_root(program),
        operator_count=len(program.nodes),
        initial_state_root=state_root(initial.values()),
        state_count=len(initial),
        data_root=data_tree(dataset.values()).root,
        data_rows=program.batch_size,
        batch_size=program.batch_size,
        schedule_root=tensor_root(schedule),
        seed=inputs.seed,
    )
    return Job(program=program, spec=spec, initial=initial, schedule=schedule, dataset=dataset)


def random_job(seed: int) -> Job:
    made = make(seed, 25)
    return job_of(made.program, made.inputs)


def trees_of(job: Job, room: Path, executor: StepExecutor | None = None) -> DisputeTrees:
    options = RunOptions(continue_after_stop=True)
    if executor is not None:
        options = replace(options, execution=execution_of(lambda job: executor))
    result = Auditor(job, room, options).run()
    return DisputeTrees(job, room, result.state_roots, options)


def won(side: Side) -> Outcome:
    return Outcome.TRAINER_WON if side is Side.TRAINER else Outcome.CHALLENGER_WON


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum of more than two terms makes several segments; a chain of tensor cores' groups, of more than 16 terms,
    since a segment is at least a group."""

    def shortest(descriptor: Descriptor) -> int:
        return 16 if descriptor.family is Family.CHAIN else 2

    monkeypatch.setattr(sys.modules["roundlog.descriptors.describe"], "terms_per_segment", shortest)


def play(
    cast: Cast, lying: DisputeTrees, honest: DisputeTrees, liar: Side = Side.TRAINER, other: Party | None = None
) -> tuple[GameView, list[Move]]:
    """The whole game against a liar, which the honest side has to win, with all moves. other: plays for the liar."""
    sides = {liar: lying, liar.other: honest}
    game = cast.start(honest.job.spec, sides[Side.TRAINER].claim, sides[Side.CHALLENGER].claim)
    parties = cast.sides(sides[Side.TRAINER], sides[Side.CHALLENGER])
    party, other = parties[liar.other], other or parties[liar]
    party.made = other.made = []
    state = cast.play(game, party, other)
    assert state.outcome is won(liar.other), (liar, state.outcome, state.reason, state.current.level)
    return state, [one for move in party.made for one in (move.arguments if move.function == "inTurn" else (move,))]


def dispute(cast: Cast, job: Job, room: Path, executor: StepExecutor, liar: Side) -> tuple[GameView, list[Move]] | None:
    """The whole game against somebody who computes so; None if it makes no difference."""
    honest = trees_of(job, room / "honest")
    lying = lying_trees(trees_of(job, room / "liar", executor), liar)
    return play(cast, lying, honest, liar) if honest.claim.root != lying.claim.root else None


def is_long_sum(job: Job, q: int) -> bool:
    descriptor = describe(job.program, q)
    return descriptor.family == Family.SUM and descriptor.terms > 4


def long_sums(job: Job) -> list[int]:
    return [q for q in range(len(job.program.nodes)) if is_long_sum(job, q)]


def lie_of(job: Job, rng: Random) -> Lie:
    count = len(job.program.nodes)
    stores = range(first_store(job.program), count)
    q = rng.choice((rng.randrange(count), rng.choice(stores), rng.choice(long_sums(job) or range(count))))
    only_stored = q >= first_store(job.program) and rng.random() < 0.5
    return Lie(step=0, operator=q, element=rng.randrange(job.program.nodes[q].type.numel), only_stored=only_stored)


@pytest.mark.slow
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_whoever_lies_about_one_number_loses(cast: Cast, liar: Side, tmp_path: Path, short_segments: None) -> None:
    seen: Counter[str] = Counter()
    for seed in range(22):
        job = random_job(seed)
        executor = tampered(job.program, FLOAT32, [lie_of(job, Random(seed))])
        found = dispute(cast, job, tmp_path / str(seed), executor, liar)
        if found is not None:
            state, moves = found
            seen.update({move.function for move in moves} | {state.reason.name, state.current.level.name})
    expected = {"openOperator", "postChunk", "proveStore", "proveSegment", "disputeSum", "openPartials", "PROOF"}
    if liar is Side.TRAINER:
        expected |= {"proveElement", "CHUNK"}
        assert "TIMEOUT" not in seen, seen
    assert expected | {"OPERATOR", "PARTIAL"} <= set(seen), seen


@pytest.mark.slow
def test_whoever_goes_on_where_a_run_has_no_value_loses(cast: Cast, tmp_path: Path, short_segments: None) -> None:
    stopped, seeds = set[str](), itertools.count()
    while stopped != {"take", "gather", "loss", "store"}:
        job, room = job_of(*hostile(seed := next(seeds))), tmp_path / str(seed)
        honest = trees_of(job, room / "honest")
        if not honest.fabricated.needed:
            continue
        lying = lying_trees(trees_of(job, room / "hiding", hiding(job.program)), Side.TRAINER)
        assert honest.claim.root != lying.claim.root
        state, _ = play(cast, lying, honest)
        stop = honest.trace(0).stop
        assert stop is not None
        if state.reason is Reason.PROOF:
            assert state.current.level is Level.CHUNK and state.levels[2].index == stop.operator
            stopped.add(job.program.nodes[stop.operator].op)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_a_copy_of_the_operators_half_does_not_help(cast: Cast, stops: bool, tmp_path: Path) -> None:
    """The trainer opens after the challenger, and opens the same half, below another state."""
    copied = 0
    for seed in range(25 if stops else 6):
        job = job_of(*hostile(seed)) if stops else random_job(seed)
        room = tmp_path / str(seed)
        honest = trees_of(job, room / "honest")
        if stops != honest.fabricated.needed:
            continue
        executor = hiding(job.program) if stops else tampered(job.program, FLOAT32, [lie_of(job, Random(seed))])
        lying = trees_of(job, room / "liar", executor)
        if lying.claim.root == honest.claim.root:
            continue
        trainer = cast.sides(lying, honest)[Side.TRAINER]
        half = StepTrace(operators=honest.trace(0).operators, states=lying.trace(0).states, stop=None)
        trainer.known.trees[STEP] = Trace(half)
        state, moves = play(cast, lying, honest, other=trainer)
        assert (state.reason, state.current.level) == (Reason.PROOF, Level.OPERATOR)
        assert moves[-1].function == "proveStore"
        copied += 1
    assert copied >= 4


class CopyingTrees:
    """Running results as the other side has them, but for the last, which comes to the trainer's claim."""

    def __init__(self, lying: DisputeTrees, honest: DisputeTrees) -> None:
        self._own, self._theirs = lying, honest
        self.claim = lying.claim

    def tree(self, place: Place) -> Tree:
        own = self._own.tree(place)
        if len(place) < 3:
            return own
        theirs = self._theirs.output(place[1], place[2])

        class Copied:
            def __getattr__(self, name: str) -> object:
                return getattr(own, name)

            def running(self, element: int, claimed: int) -> RunningResults:
                partials = theirs.running(element, claimed).partials[:-1]
                return RunningResults([*partials, ExactSum(ieee.scaled(claimed) << 149)])

        return typed(Tree, Copied())


@pytest.mark.slow
def test_a_copy_of_running_results_does_not_help(cast: Cast, tmp_path: Path, short_segments: None) -> None:
    copied, seeds = 0, itertools.count()
    while copied < 2:
        job, room = random_job(seed := next(seeds)), tmp_path / str(seed)
        if not (sums := long_sums(job)):
            continue
        honest = trees_of(job, room / "honest")
        lie = Lie(step=0, operator=Random(seed).choice(sums))
        lying = trees_of(job, room / "liar", tampered(job.program, FLOAT32, [lie]))
        if lying.claim.root == honest.claim.root:
            continue
        state, moves = play(cast, typed(DisputeTrees, CopyingTrees(lying, honest)), honest)
        assert state.reason is Reason.PROOF, seed
        copied += moves[-1].function == "proveSegment" and state.search.index == state.operator.segments - 1


INFINITY, NAN, ONE = 0x7F800000, 0x7FC00000, 0x3F800000


def job_of_a_sum(terms: list[float], right: int) -> Job:
    """Stores whether the sum of the terms has these bits: NaN, an infinity, or a number."""
    kind = TensorType((1, len(terms)), DType.F32)
    one, flag = TensorType((1, 1), DType.F32), TensorType((1, 1), DType.BOOL)
    scalar = TensorType((), DType.F32)
    nodes = (
        Node("data", (), {"slot": 0}, kind),
        Node("sum", (0,), {"dims": (1,)}, one),
        Node("constant", (), {"bits": (right,)}, scalar),
        Node("eq", (1, 1 if right == NAN else 2), {}, flag),
        Node("to_f32", (3,), {}, one),
        Node("constant", (), {"bits": (0,)}, scalar),
        Node("loss", (5,), {}, scalar),
        Node("store", (4,), {"slot": 0}, one),
    )
    program = Program(nodes=nodes, state_names=("s",), data_names=("x",), schedule_names=(), batch_size=1)
    data = [torch.tensor([terms])]
    inputs = StepInputs(states=[], data=data, schedule=torch.zeros(0), seed=0, step=0, device=torch.device("cpu"))
    return job_of(program, inputs)


@pytest.mark.slow_but("an infinity")
@pytest.mark.parametrize(
    ("special", "right", "lie", "liar"),
    [
        ({5: torch.inf}, INFINITY, ONE, Side.TRAINER),
        ({5: torch.inf}, INFINITY, NAN, Side.CHALLENGER),
        ({3: torch.inf, 12: -torch.inf}, NAN, INFINITY, Side.TRAINER),
        ({}, 0x41A00000, INFINITY, Side.CHALLENGER),
    ],
    ids=["an infinity", "an infinity as NaN", "two infinities", "numbers"],
)
def test_a_lie_about_a_sum_with_infinities_loses(
    cast: Cast, special: dict[int, float], right: int, lie: int, liar: Side, tmp_path: Path, short_segments: None
) -> None:
    job = job_of_a_sum([special.get(place, 1.0) for place in range(20)], right)
    assert is_long_sum(job, 1)

    def compute(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index == 1:
            running.values[index] = torch.tensor([[lie]], dtype=torch.int32).view(torch.float32)

    found = dispute(cast, job, tmp_path, BentExecutor(job.program, FLOAT32, compute=compute), liar)
    assert found is not None
    state, moves = found
    assert state.reason is Reason.PROOF and moves[-1].function == "proveSegment"
