"""Auditors that have claims audited by many workers, from published checkpoints: who wins, at which step, every wei."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from roundlog.execution import StepResult
from roundlog.operators import StepInputs
from roundlog.program import first_store
from roundlog.rounding import Rounding
from roundlog.segment_audits.plan import Sharing
from roundlog.segment_audits.segment import CHECKPOINTS_FILE, MakeWorker
from roundlog.training.job import Job
from tiebreak.contract.enums import JobStatus, Outcome, Reason, Side
from tiebreak.devnet.embedded import embedded_node
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.shared_audits import SHARED, Workers
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.engines import Lie, execution_of, lying, tampered, turned
from tiebreak_demo.adversary.parties import poisoned_batches

from tests.adversaries import spoiling, withholding
from tests.e2e.world import TERMS, World, ended, small_job
from tests.engine.segment_audits.audit_workers import honest

pytestmark = pytest.mark.slow
STEPS, INTERVAL = 12, 2
WRONG = 5
"""The last step of the third interval."""


MakeTrainer = Callable[[World], TrainerRole]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(embedded_node(), tmp_path)
    world.post(small_job(STEPS, INTERVAL))
    return world


def auditor(world: World, *, make: MakeWorker = honest, count: int = 2, share: float = 1.0) -> AuditorRole:
    sharing = Sharing(make=make, workers=count, share=share, common_disk=True)
    workers = Workers(sharing=sharing, stores=(str(world.root / "store"),))
    return AuditorRole(world.context("auditor"), world.job, workers=workers)


def honest_trainer(world: World, every: int = 2) -> TrainerRole:
    return TrainerRole(world.context("trainer"), world.job, publish_every=every)


def poisoning(world: World) -> TrainerRole:
    """All that it claims follows from one step on wrong labels."""
    execution = execution_of(batches=lambda posted: poisoned_batches(posted, WRONG))
    return TrainerRole(lying(world.context("trainer"), execution), world.job, publish_every=1)


@dataclass
class Restoring:
    """Some steps store a number one ulp off, and some of the next ones read the right number again, so that behind a
    wrong state nothing that is claimed need be wrong (implements `roundlog.execution.StepExecutor`)."""

    job: Job
    lies: frozenset[int] = frozenset({WRONG})
    restores: frozenset[int] = frozenset({WRONG + 1})

    def __post_init__(self) -> None:
        program, f32_format = self.job.program, self.job.spec.f32_format
        self.program, self.f32_format = program, f32_format
        store = first_store(program)
        self._tampered = tampered(
            program, f32_format, [Lie(step=s, operator=store, only_stored=True) for s in self.lies]
        )

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        if inputs.step in self.restores:
            first, *others = inputs.states
            restored = first.clone()
            restored.view(-1)[0] = turned(restored.view(-1)[0], 0)
            inputs = replace(inputs, states=[restored, *others])
        return self._tampered.run(inputs, rounding, observe)


def restoring(world: World) -> TrainerRole:
    context = lying(world.context("trainer"), execution_of(Restoring), Side.TRAINER)
    return TrainerRole(context, world.job, publish_every=1)


def disputed(world: World) -> int:
    """The step that the game has found."""
    interval, step = (level.index for level in world.game().levels[:2])
    return interval * INTERVAL + step


def test_a_right_claim_is_attested_after_all_of_it_was_audited(world: World) -> None:
    trainer, role = honest_trainer(world), auditor(world)
    world.run(trainer, role)
    assert world.contract.job(world.job).attestations == 1 and ended(role).finished
    room = world.root / "auditor"
    assert list(room.rglob(f"{SHARED}/facts.jsonl")) and not list(room.rglob("alone")), "no second audit was made"


def test_after_a_share_nothing_is_attested(world: World) -> None:
    trainer, role = honest_trainer(world, every=1), auditor(world, share=0.3)
    world.run(trainer, role)
    assert "only 2 of its 6 intervals were audited" in ended(role).state
    assert world.contract.job(world.job).attestations == 0


@pytest.mark.parametrize(("liar", "count"), [(poisoning, 1), (restoring, 3)])
def test_a_wrong_interval_wins_a_game_whatever_is_claimed_behind_it(
    world: World, liar: MakeTrainer, count: int
) -> None:
    trainer, role, customer = liar(world), auditor(world, count=count), world.customer()
    world.run(trainer, role, customer, world.referee())
    # Of two wrong intervals any may be found: the one that ends in the wrong state, or the one that leaves it.
    assert disputed(world) in ({WRONG} if liar is poisoning else {WRONG, WRONG + 1})
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert all(ended(party).finished for party in (trainer, role, customer))
    shares = world.shares()
    assert world.gains() == {"customer": shares.customer, "trainer": -TERMS.trainer_bond, "auditor": shares.winner}
    assert world.contract_balance() == 0


def challenged(world: World, liar: MakeTrainer) -> tuple[TrainerRole, AuditorRole]:
    """A trainer and its challenger, before the game."""
    trainer, role = liar(world), auditor(world)
    while world.status is not JobStatus.CLAIMED:
        trainer.step()
    while not world.contract.job(world.job).game_count:
        role.step()
    return trainer, role


def test_a_killed_challenger_plays_on_without_its_directory(world: World) -> None:
    trainer, _ = challenged(world, restoring)
    shutil.rmtree(world.root / "auditor")
    again = auditor(world)
    world.run(trainer, again, world.referee())
    assert disputed(world) in {WRONG, WRONG + 1}
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.contract.job(world.job).game_count == 1


def mislisted(log: Path) -> None:
    """The list names another root than the claimed one."""
    record = json.loads((log / CHECKPOINTS_FILE).read_text())
    record["state_roots"][2] = "55" * 32
    (log / CHECKPOINTS_FILE).write_text(json.dumps(record))


def test_without_a_list_of_the_claimed_roots_the_claim_is_audited_as_a_whole(world: World) -> None:
    context = world.context("trainer")
    trainer = TrainerRole(replace(context, store=spoiling(context.store, mislisted)), world.job, publish_every=1)
    role = auditor(world)
    world.run(trainer, role)
    assert world.contract.job(world.job).attestations == 1 and ended(role).finished
    assert len(world.said("audits as a whole, in this process: ")) == 1


def test_states_that_are_listed_and_not_served_cost_time_and_no_verdict(world: World) -> None:
    trainer = TrainerRole(
        replace(world.context("trainer"), store=withholding(world.store, log=False)), world.job, publish_every=1
    )
    role = auditor(world)
    world.run(trainer, role)
    assert world.contract.job(world.job).attestations == 1 and ended(role).finished
    assert len(world.said("a published state is not used")) == 5 and not world.said("as a whole")
    assert all(str(notice.text).isprintable() for notice in world.notices)
