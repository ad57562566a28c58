"""The contract lets more specs pass than the engine can follow: nobody puts a bond on such a job, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roundlog.spec import TrainingSpec
from tiebreak.contract.enums import JobStatus
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.trainer_role import TrainerRole

from tests.client.disputes import made
from tests.e2e.world import TERMS, World, ended, small_job

pytestmark = pytest.mark.slow

UNFOLLOWABLE: list[dict[str, int]] = [
    {"log_guard": 3},
    {"steps": 1 << 33, "interval": 1 << 33},
    {"steps": 1 << 40, "interval": 1 << 40},
    {"operator_count": (1 << 32) + 1},
    {"batch_size": 49},
    {"chunk_size": 8},
    {"chunk_size": 1 << 16},
    {"log_version": 1},
]


@pytest.fixture(scope="module")
def spec() -> TrainingSpec:
    return replace(small_job().spec, steps=15, interval=15)


@pytest.mark.parametrize("change", UNFOLLOWABLE, ids=lambda change: ", ".join(f"{k} {v}" for k, v in change.items()))
def test_a_spec_that_the_contract_takes_and_the_engine_does_not_gets_no_bond(
    change: dict[str, int], spec: TrainingSpec, quick_world: World
) -> None:
    world = quick_world
    customer = world.contract.by(world.senders["customer"])
    # A CID that leads nowhere: the spec alone is reason enough.
    cid = "Qm" + "1" * 44
    world.job, _ = made(customer, customer.post_job(world.spec(replace(spec, **change)), TERMS, cid))
    funds = {name: world.balance(name) for name in ("trainer", "auditor")}

    progress = ended(TrainerRole(world.context("trainer"), world.job))
    assert progress.finished and progress.state.startswith(
        f"job {world.job} cannot be trained: the posted spec cannot be followed: {next(iter(change))} "
    )
    assert world.status is JobStatus.OPEN

    world.claim_anything(1, cid)
    progress = ended(AuditorRole(world.context("auditor"), world.job))
    assert progress.finished and progress.state.startswith(
        f"job {world.job} cannot be audited: the posted spec cannot be followed: {next(iter(change))} "
    )
    assert world.contract.job(world.job).game_count == 0
    assert {name: world.balance(name) for name in funds} == funds
