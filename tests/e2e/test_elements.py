"""Disputes to the end: one wrong number, found and computed by the contract, whoever lies, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from roundlog.adjudication.adjudicate import segments
from roundlog.capture import Task
from roundlog.descriptors import Descriptor, Family, describe
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.execution import Executor
from roundlog.program import Program, first_store
from roundlog.training.job import Job
from tiebreak.contract.enums import Level, Outcome, Phase, Reason, Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.engines import execution_of, lying
from tiebreak_demo.adversary.parties import tampering_auditor, tampering_trainer
from tiebreak_demo.adversary.tampering import Lie
from torch import nn

from tests.adversaries import hiding_trainer
from tests.e2e.world import World, small_job

STEP = 3


def wide_sum_task() -> Task:
    """Its matrix products read a chunk a term, so that their sums are several segments long; with dropout."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(100, 300), nn.Tanh(), nn.Dropout(0.2), nn.Linear(300, 3))
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        dataset={"x": torch.randn(9, 100), "y": torch.randint(0, 3, (9,))},
        batch_size=4,
        steps=4,
        interval=2,
        seed=3,
    )


def first(program: Program, fits: Callable[[Descriptor], bool]) -> int:
    return next(q for q in range(len(program.nodes)) if fits(describe(program, q)))


def is_long_sum(descriptor: Descriptor) -> bool:
    return descriptor.family in REDUCTIONS and len(segments(descriptor)) > 1


def of(family: Family) -> Callable[[Program], int]:
    return lambda program: first(program, lambda descriptor: descriptor.family == family)


KINDS: dict[str, tuple[Callable[[Program], int], Level, dict[str, object]]] = {
    "a data row": (of(Family.DATA), Level.CHUNK, {"element": 250, "bit": 20}),
    "the learning rate": (of(Family.SCHEDULE), Level.CHUNK, {"bit": 10}),
    "a dropout mask": (of(Family.UNIFORM), Level.CHUNK, {"element": 1100, "bit": 23}),
    "a loaded slot": (of(Family.STATE), Level.CHUNK, {"element": 299, "bit": 12}),
    "an elementary function": (of(Family.FUNCTION), Level.CHUNK, {"element": 700, "bit": 12}),
    "a sum": (lambda program: first(program, is_long_sum), Level.PARTIAL, {"element": 700, "bit": 12}),
    "an exact operator": (
        lambda program: first(program, lambda d: d.family == Family.MAP and d.elements > 900),
        Level.CHUNK,
        {"element": 900, "bit": 12},
    ),
    "a stored slot": (first_store, Level.OPERATOR, {"element": 77, "bit": 0, "only_stored": True}),
}


@pytest.mark.slow_but("a sum-trainer")
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_number_is_found_and_whoever_lies_about_it_loses(quick_world: World, kind: str, liar: Side) -> None:
    world = quick_world
    world.post(Job.from_task(wide_sum_task))
    program = Job.read(world.root / "files").program
    operator, level, where = KINDS[kind]
    lie = Lie(step=STEP, operator=operator(program), **where)  # type: ignore[arg-type]
    stations = world.context("trainer"), world.context("auditor")
    roles: tuple[JobRole, JobRole]
    if liar is Side.TRAINER:
        roles = tampering_trainer(stations[0], world.job, lies=[lie]), AuditorRole(stations[1], world.job)
    else:
        roles = TrainerRole(stations[0], world.job), tampering_auditor(stations[1], world.job, lies=[lie])
    world.run(*roles)
    game = world.game()
    assert [found.index for found in game.levels[:2]] == [1, 1]
    assert game.current.level is level
    if not lie.only_stored:
        assert game.levels[Level.OPERATOR].index == lie.operator
    if level is Level.PARTIAL:
        assert game.disputed.element == lie.element and game.operator.segments > 1
    if liar is Side.CHALLENGER and level is Level.CHUNK:
        # It cannot prove a right element wrong, and the clock runs on.
        assert game.phase is Phase.PROVING and world.said("ElementIsRight")
        world.pass_time(game.deadlines[Side.CHALLENGER])
        world.run(roles[0])
        assert (world.game().outcome, world.game().reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    else:
        right = Outcome.CHALLENGER_WON if liar is Side.TRAINER else Outcome.TRAINER_WON
        assert (game.phase, game.outcome, game.reason) == (Phase.OVER, right, Reason.PROOF)
    assert not any("cannot move" in notice.text for notice in world.notices if notice.role in honest_roles(liar))


def honest_roles(liar: Side) -> tuple[str, ...]:
    return ("auditor",) if liar is Side.TRAINER else ("trainer",)


@pytest.mark.slow
def test_another_program_is_found_at_its_first_other_operator(quick_world: World) -> None:
    """The trainer's momentum is 0.8 instead of 0.9, and it claims that it has executed the posted program."""
    world = quick_world
    world.post(small_job(3, 3))
    posted = Job.read(world.root / "files").program
    q = next(q for q, node in enumerate(posted.nodes) if node.attributes.get("bits") == (0x3F666666,))
    nodes = list(posted.nodes)
    nodes[q] = replace(nodes[q], attributes={"bits": (0x3F4CCCCD,)})
    other = replace(posted, nodes=tuple(nodes))

    swapping = lying(world.context("trainer"), execution_of(lambda job: Executor(other)))
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(TrainerRole(swapping, world.job), auditor)
    assert world.game().levels[Level.OPERATOR].index == q
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a sum", "a data row", "a run without an end"])
def test_parties_that_are_born_again_after_every_move_play_the_same_game(quick_world: World, kind: str) -> None:
    """Processes end after every move; only the disk and the chain outlive them."""
    world = quick_world
    task = wide_sum_task()
    if kind == "a run without an end":
        task = replace(task, schedule=lambda step: 1.0 if step < STEP - 1 else 3e39)
    world.post(Job.from_task(lambda: task))
    program = Job.read(world.root / "files").program
    lies = []
    if kind != "a run without an end":
        operator, _, where = KINDS[kind]
        lies = [Lie(step=STEP, operator=operator(program), **where)]  # type: ignore[arg-type]

    def trainer() -> JobRole:
        context = silenced(world.context("trainer"), moves=1)
        if kind == "a run without an end":
            return hiding_trainer(context, world.job)
        return tampering_trainer(context, world.job, lies=lies)

    for _ in range(60):
        trainer().step()
        AuditorRole(silenced(world.context("auditor"), moves=1), world.job).step()
        if world.contract.job(world.job).game_count and world.game().phase is Phase.OVER:
            break
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.contract.job(world.job).game_count == 1
