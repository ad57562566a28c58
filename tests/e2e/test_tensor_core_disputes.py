"""A job whose products are those of tensor cores, from the task to the verdict: who lies by one ulp of one of them
loses, at that very element."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task
from roundlog.descriptors import Family, describe
from roundlog.program import DType
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Reason, Side
from tiebreak.contract.events import ElementProven, SegmentProven
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak_demo.adversary.frauds import fraudulent_trainer
from tiebreak_demo.adversary.places import wrong_activation
from torch import nn
from torch.nn import functional as F

from tests.e2e.world import World

STEP, INTERVAL = 3, 2


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


@pytest.mark.slow_cases("embedded-hopper-200")
@pytest.mark.parametrize(("arithmetic", "wide"), [("hopper", 200), pytest.param("ampere", 20, marks=pytest.mark.slow)])
def test_a_trainer_that_lies_by_one_ulp_of_a_product_loses_at_that_element(
    world: World, tmp_path: Path, arithmetic: str, wide: int
) -> None:
    """Sums of one segment, and of several, whose running results are searched as well."""
    job = Job.from_task(lambda: task(wide), arithmetic=arithmetic)
    right = Trainer(job, tmp_path / "run").run()
    fraud = wrong_activation(Run(job, tmp_path / "run"), STEP)
    node, descriptor = job.program.nodes[fraud.operator], describe(job.program, fraud.operator)
    assert (node.op, node.type.dtype, descriptor.family) == ("tensor_core_matmul", DType.BF16, Family.CHAIN)
    assert abs(fraud.claimed - fraud.right) == 1, "neighbours in BF16"

    world.post(job)
    trainer = fraudulent_trainer(world.context("trainer"), world.job, fraud)
    world.run(world.customer(), trainer, AuditorRole(world.context("auditor"), world.job), world.referee())
    game = world.game()
    roots = game.levels[Level.CHECKPOINT].roots
    assert roots[Side.CHALLENGER] == right.checkpoint_root != roots[Side.TRAINER]
    place = tuple(level.index for level in game.levels[: Level.OPERATOR + 1])
    assert place == (*divmod(STEP, INTERVAL), fraud.operator)
    segments = -(-wide // descriptor.segment)
    assert game.operator.segments == segments and (segments > 2) == (wide > 100)
    events = world.contract.events(game=1)
    if segments == 1:
        (proof,) = [event for event in events if isinstance(event, ElementProven)]
        assert (proof.element, proof.claimed) == (fraud.element, fraud.claimed)
        assert (proof.finding, proof.bits) == (Finding.VALUE, fraud.right), "what the contract has computed"
    else:
        assert (game.disputed.element, game.disputed.claimed) == (fraud.element, fraud.claimed)
        (shown,) = [event for event in events if isinstance(event, SegmentProven)]
        assert (shown.finding, shown.segment) == (Finding.VALUE, segments // 2), "where the liar's begin to differ"
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
