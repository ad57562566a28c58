"""An honest party that answers in time never loses, whatever the other one claims about a step: games over random
programs, down to the element, with runs that have no end among them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from eth_hash.auto import keccak
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.partial import ExactSum
from roundlog.descriptors import Descriptor, Family, describe
from roundlog.dispute import RunningResults, StepTrace
from roundlog.number_format import FLOAT32
from roundlog.operators import StepInputs
from roundlog.program import DType, Node, Program, TensorType, first_store
from roundlog.training.job import Job
from tiebreak.contract.enums import Level, Outcome, Phase, Reason, Side
from tiebreak.game.moves import ProveSegment, ProveStore, Trace
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.referee_role import asked_operator, verdict
from tiebreak_demo.adversary.engines import lying_trees
from tiebreak_demo.adversary.tampering import Lie, tampered

from tests.adversaries import hiding
from tests.client.game.contract_model import ContractModel
from tests.client.game.disputes_below import Player, job_of, new_game, play, random_job, trees_of, won
from tests.engine.adjudication.test_stops import hostile

STEP = (0, 0)


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum of more than two terms makes several segments; a chain of tensor cores' groups, of more than 16 terms,
    since a segment is at least a group."""

    def shortest(descriptor: Descriptor) -> int:
        return 16 if descriptor.family is Family.CHAIN else 2

    monkeypatch.setattr(sys.modules["roundlog.descriptors.describe"], "terms_per_segment", shortest)


def dispute(job: Job, room: Path, lies: list[Lie], liar: Side) -> tuple[ContractModel, list[object]] | None:
    """The whole game against somebody who lies so; None if the lie makes no difference."""
    honest = trees_of(job, room / "honest")
    executor = tampered(job.program, FLOAT32, lies)
    lying = lying_trees(trees_of(job, room / "liar", executor), liar)
    if honest.claim.root == lying.claim.root:
        return None
    sides = {liar: lying, liar.other: honest}
    model = new_game(sides[Side.TRAINER], sides[Side.CHALLENGER])
    moves = play(model, Player(liar.other, honest), Player(liar, lying))
    assert model.outcome is won(liar.other), (lies, liar, model.outcome, model.reason)
    return model, list(moves)


def is_long_sum(job: Job, q: int) -> bool:
    descriptor = describe(job.program, q)
    return descriptor.family == Family.SUM and descriptor.terms > 4


def lies_of(job: Job, rng: Random) -> Lie:
    count = len(job.program.nodes)
    sums = [q for q in range(count) if is_long_sum(job, q)]
    stores = range(first_store(job.program), count)
    q = rng.choice((rng.randrange(count), rng.choice(stores), rng.choice(sums or range(count))))
    kind = job.program.nodes[q].type
    only_stored = q >= first_store(job.program) and rng.random() < 0.5
    return Lie(step=0, operator=q, element=rng.randrange(kind.numel), only_stored=only_stored)


@pytest.mark.slow_cases("challenger")
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_whoever_lies_about_one_number_loses(liar: Side, tmp_path: Path, short_segments: None) -> None:
    made: Counter[str] = Counter()
    for seed in range(22):
        job, rng = random_job(seed), Random(seed)
        found = dispute(job, tmp_path / str(seed), [lies_of(job, rng)], liar)
        if found is None:
            continue
        model, moves = found
        made.update({type(move).__name__ for move in moves} | {model.reason.name, f"level {model.level.name}"})
    expected = {"OpenOperator", "PostChunk", "ProveStore", "ProveSegment", "DisputeSum", "OpenPartials", "PROOF"}
    if liar is Side.TRAINER:
        expected |= {"ProveElement", "level CHUNK"}
        assert "TIMEOUT" not in made, made
    assert expected | {"level OPERATOR", "level PARTIAL"} <= set(made), made


def hostile_jobs(count: int) -> list[tuple[int, Job]]:
    return [(seed, job_of(*hostile(seed))) for seed in range(count)]


@pytest.mark.slow
def test_whoever_goes_on_where_a_run_has_no_value_loses(tmp_path: Path, short_segments: None) -> None:
    stops: Counter[str] = Counter()
    for seed, job in hostile_jobs(60):
        room = tmp_path / str(seed)
        honest = trees_of(job, room / "honest")
        if not honest.fabricated.needed:
            continue
        lying = lying_trees(trees_of(job, room / "hiding", hiding(job.program)), Side.TRAINER)
        assert honest.claim.root != lying.claim.root
        model = new_game(lying, honest)
        play(model, Player(Side.CHALLENGER, honest), Player(Side.TRAINER, lying))
        stop = honest.trace(0).stop
        assert stop is not None and model.outcome is Outcome.CHALLENGER_WON, (seed, model.reason)
        if model.reason is Reason.PROOF:
            assert model.level is Level.OPERATOR or model.path[2] == stop.operator
            stops[job.program.nodes[stop.operator].op, model.level.name] += 1
    assert {"take", "gather", "loss", "store"} == {op for op, _ in stops}, stops
    assert {level for _, level in stops} == {"CHUNK"}, stops


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_a_copy_of_the_operators_half_does_not_help(stops: bool, tmp_path: Path) -> None:
    """The trainer opens after the challenger, and opens the same half, below another state."""
    copied = 0
    for seed, job in hostile_jobs(25) if stops else [(seed, random_job(seed)) for seed in range(8)]:
        room, rng = tmp_path / str(seed), Random(seed)
        honest = trees_of(job, room / "honest")
        if stops != honest.fabricated.needed:
            continue
        if stops:
            lying = trees_of(job, room / "liar", hiding(job.program))
        else:
            lying = trees_of(job, room / "liar", tampered(job.program, FLOAT32, [lies_of(job, rng)]))
        if lying.claim.root == honest.claim.root:
            continue
        theirs, ours = lying.trace(0), honest.trace(0)
        trainer = Player(Side.TRAINER, lying)
        trainer.known.trees[STEP] = Trace(StepTrace(operators=ours.operators, states=theirs.states, stop=None))
        model = new_game(lying, honest)
        moves = play(model, Player(Side.CHALLENGER, honest), trainer)
        assert (model.outcome, model.reason, model.level) == (Outcome.CHALLENGER_WON, Reason.PROOF, Level.OPERATOR)
        assert isinstance(moves[-1], ProveStore)
        copied += 1
    assert copied >= 5


class CopyingTrees:
    """Running results as the other side has them, but for the last, which comes to the trainer's claim."""

    def __init__(self, lying: DisputeTrees, honest: DisputeTrees) -> None:
        self._own, self._theirs = lying, honest
        self.claim, self.job = lying.claim, lying.job

    def tree(self, place: tuple[int, ...]) -> object:
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

        return Copied()  # type: ignore[return-value]


def test_a_copy_of_running_results_does_not_help(tmp_path: Path, short_segments: None) -> None:
    copied = 0
    for seed, job in [(seed, random_job(seed)) for seed in range(20)]:
        room = tmp_path / str(seed)
        sums = [q for q in range(len(job.program.nodes)) if is_long_sum(job, q)]
        if not sums:
            continue
        honest = trees_of(job, room / "honest")
        lies = [Lie(step=0, operator=Random(seed).choice(sums))]
        lying = trees_of(job, room / "liar", tampered(job.program, FLOAT32, lies))
        if lying.claim.root == honest.claim.root:
            continue
        model = new_game(lying, honest)
        moves = play(model, Player(Side.CHALLENGER, honest), Player(Side.TRAINER, CopyingTrees(lying, honest)))
        assert (model.outcome, model.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF), seed
        copied += isinstance(moves[-1], ProveSegment) and model.index == model.operator.segments - 1
    assert copied >= 2


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


@pytest.mark.slow_but("special0-*")
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
@pytest.mark.parametrize(
    ("special", "right", "lie"),
    [
        ({5: torch.inf}, INFINITY, ONE),
        ({0: torch.inf, 19: torch.inf}, INFINITY, NAN),
        ({3: torch.inf, 12: -torch.inf}, NAN, INFINITY),
        ({3: torch.inf, 12: -torch.inf}, NAN, ONE),
        ({}, 0x41A00000, INFINITY),
    ],
)
def test_a_lie_about_a_sum_with_infinities_loses(
    special: dict[int, float], right: int, lie: int, liar: Side, tmp_path: Path, short_segments: None
) -> None:
    terms = [special.get(place, 1.0) for place in range(20)]
    job = job_of_a_sum(terms, right)
    assert is_long_sum(job, 1)
    found = dispute(job, tmp_path, [Lie(step=0, operator=1, claimed=lie)], liar)
    assert found is not None
    model, moves = found
    assert (model.outcome, model.reason) == (won(liar.other), Reason.PROOF)
    assert isinstance(moves[-1], ProveSegment)


@pytest.mark.slow
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_a_function_that_the_contract_does_not_decide_is_the_referees(liar: Side, tmp_path: Path) -> None:
    asked = 0
    for seed in range(60):
        job = random_job(seed)
        functions = [q for q in range(len(job.program.nodes)) if describe(job.program, q).family == Family.FUNCTION]
        if not functions:
            continue
        q, rng = functions[0], Random(seed)
        lie = Lie(step=0, operator=q, element=rng.randrange(job.program.nodes[q].type.numel))
        honest = trees_of(job, tmp_path / f"{seed}")
        lying = trees_of(job, tmp_path / f"{seed} liar", tampered(job.program, FLOAT32, [lie]))
        if honest.claim.root == lying.claim.root:
            continue
        sides = {liar: lying, liar.other: honest}
        model = new_game(sides[Side.TRAINER], sides[Side.CHALLENGER], undecided=True)
        play(model, Player(liar.other, honest), Player(liar, lying))
        assert model.phase is Phase.REFEREE and model.disputed.element == lie.element
        argument = next(iter(job.program.nodes[q].inputs))
        value = honest.trace(0).outputs[argument].reshape(-1)[lie.element]
        # The model's hash of a descriptor is not the contract's.
        asked_of = asked_operator(job.program, q, bytes(keccak(model.descriptor)))
        bits = verdict(asked_of, int(value.view(torch.int32)) & 0xFFFFFFFF, FLOAT32, model.disputed.claimed)
        model.adjudicate(bits)
        assert (model.outcome, model.reason) == (won(liar.other), Reason.VERDICT)
        asked += 1
    assert asked >= 4


def test_a_silent_party_loses_at_every_level(tmp_path: Path, short_segments: None) -> None:
    """Every game against a liar is played again with one who falls silent, after each number of moves."""
    ended: Counter[str] = Counter()
    for seed in (0, 3, 5, 11):
        job = random_job(seed)
        sums = [q for q in range(len(job.program.nodes)) if is_long_sum(job, q)]
        lie = Lie(step=0, operator=sums[0] if sums else 0)
        for liar in Side:
            room = tmp_path / f"{seed} {liar.name}"
            honest = trees_of(job, room / "honest")
            lying = lying_trees(trees_of(job, room / "liar", tampered(job.program, FLOAT32, [lie])), liar)
            if honest.claim.root == lying.claim.root:
                continue
            sides = {liar: lying, liar.other: honest}
            for silent_after in range(30):
                talk = iter([True] * silent_after)
                model = new_game(sides[Side.TRAINER], sides[Side.CHALLENGER])
                other = Player(liar, lying, lambda game, move, talk=talk: move if next(talk, False) else None)
                play(model, Player(liar.other, honest), other)
                assert model.outcome is won(liar.other)
                ended[f"{model.reason.name} {model.level.name}"] += 1
                if next(talk, False):
                    break
    assert {"TIMEOUT STEP", "TIMEOUT OPERATOR", "TIMEOUT PARTIAL"} <= set(ended), ended
