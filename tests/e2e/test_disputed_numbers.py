"""Disputes to the end: one wrong number, found and computed by the contract, whoever lies, whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from roundlog.adjudication.adjudicate import segments
from roundlog.capture import Task
from roundlog.descriptors import Family, describe
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.execution import Executor
from roundlog.program import DType, Program
from roundlog.rounding.policies import without_log
from roundlog.training.job import Job
from roundlog.training.repetition import replay_state
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import ElementProven, SegmentProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak_demo.adversary.engines import Lie, tampered
from tiebreak_demo.adversary.parties import silenced, tampering_trainer
from torch import nn
from torch.nn import functional as F

from tests.e2e.world import World

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


def long_sum(program: Program) -> int:
    """The first sum of several segments."""
    descriptors = (describe(program, q) for q in range(len(program.nodes)))
    return next(q for q, d in enumerate(descriptors) if d.family in REDUCTIONS and len(segments(d)) > 1)


@pytest.mark.slow
def test_parties_that_are_born_again_after_every_move_play_the_same_game(world: World) -> None:
    """Processes end after every move; only the disk and the chain outlive them."""
    world.post(Job.from_task(wide_sum_task))
    lie = Lie(step=STEP, operator=long_sum(Job.read(world.root / "files").program), element=700, bit=12)
    for _ in range(60):
        tampering_trainer(silenced(world.context("trainer"), moves=1), world.job, lies=[lie]).step()
        AuditorRole(silenced(world.context("auditor"), moves=1), world.job).step()
        if world.contract.job(world.job).game_count and world.game().phase is Phase.OVER:
            break
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.contract.job(world.job).game_count == 1


INTERVAL = 2


def classify(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def task(wide: int) -> Task:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(wide, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
    return Task(
        model=model,
        loss=classify,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(20, wide), "y": torch.randint(0, 3, (20,))},
        batch_size=4,
        steps=4,
        interval=INTERVAL,
        seed=1,
    )


def first_lie(run: Run) -> tuple[Lie, int]:
    """A lie by one ulp about the first product of tensor cores in STEP, of the largest element that changes the next
    state, and that element's right bits."""
    job, outputs = run.job, dict[int, torch.Tensor]()
    inputs, rounding = run.inputs(STEP, replay_state(run, STEP)), without_log(job.spec)
    right = Executor(job.program).run(inputs, rounding, observe=outputs.__setitem__)
    operator = next(q for q, node in enumerate(job.program.nodes) if node.op == "tensor_core_matmul")
    output = outputs[operator].reshape(-1)
    for element in output.abs().argsort(descending=True).tolist():
        lie = Lie(step=STEP, operator=operator, element=element)
        told = tampered(job.program, job.spec.f32_format, [lie]).run(inputs, rounding)
        if not all(map(torch.equal, told.states, right.states)):
            return lie, int(output[element].view(torch.int16)) & 0xFFFF
    raise AssertionError("no element matters")


@pytest.mark.slow
@pytest.mark.parametrize(("arithmetic", "wide"), [("hopper", 200), ("ampere", 20)])
def test_a_trainer_that_lies_by_one_ulp_of_a_product_loses_at_that_element(
    world: World, tmp_path: Path, arithmetic: str, wide: int
) -> None:
    """Sums of one segment, and of several, whose running results are searched as well."""
    job = Job.from_task(lambda: task(wide), arithmetic=arithmetic)
    right = Trainer(job, tmp_path / "run").run()
    lie, bits = first_lie(Run(job, tmp_path / "run"))
    node, descriptor = job.program.nodes[lie.operator], describe(job.program, lie.operator)
    assert (node.op, node.type.dtype, descriptor.family) == ("tensor_core_matmul", DType.BF16, Family.CHAIN)

    world.post(job)
    trainer = tampering_trainer(world.context("trainer"), world.job, lies=[lie])
    world.run(world.customer(), trainer, AuditorRole(world.context("auditor"), world.job), world.referee())
    game = world.game()
    roots = game.levels[Level.CHECKPOINT].roots
    assert roots[Side.CHALLENGER] == right.checkpoint_root != roots[Side.TRAINER]
    place = tuple(level.index for level in game.levels[: Level.OPERATOR + 1])
    assert place == (*divmod(STEP, INTERVAL), lie.operator)
    segments = -(-wide // descriptor.segment)
    assert game.operator.segments == segments and (segments > 2) == (wide > 100)
    events = world.contract.events(game=1)
    if segments == 1:
        (proof,) = [event for event in events if isinstance(event, ElementProven)]
        assert (proof.element, proof.claimed) == (lie.element, bits ^ 1)
        assert (proof.finding, proof.bits) == (Finding.VALUE, bits), "what the contract has computed"
    else:
        assert (game.disputed.element, game.disputed.claimed) == (lie.element, bits ^ 1)
        (shown,) = [event for event in events if isinstance(event, SegmentProven)]
        assert (shown.finding, shown.segment) == (Finding.VALUE, segments // 2), "where the liar's begin to differ"
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
