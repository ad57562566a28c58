"""Nothing is given up on one look: lagging nodes, blocks that are taken back, disks that are full for a moment."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from roundlog.training.job import Job
from tiebreak.contract.enums import JobStatus, Outcome, Phase
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.background_jobs import BackgroundJobs
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

from tests.e2e.world import Ticks, World, ended, small_job

pytestmark = pytest.mark.slow


@pytest.fixture
def world(quick_world: World) -> World:
    return quick_world


def until(done: Callable[[], bool], *roles: Role) -> None:
    """Lets roles step, with their work in threads, until something has come about."""
    for _ in range(3000):
        acted = [role.step().acted for role in roles]
        if done():
            return
        if not any(acted):
            time.sleep(0.01)
    raise AssertionError("it does not come about")


def chains_state(world: World) -> Callable[[], None]:
    """The chain as it is now; call it to take back everything that comes after."""
    transport = world.node._transport
    if "anvil" not in str(transport.request("web3_clientVersion", [])):
        pytest.skip("only anvil takes blocks back")
    number = transport.request("evm_snapshot", [])
    return lambda: transport.request("evm_revert", [number]) and None


def mine(world: World, blocks: int) -> None:
    for _ in range(blocks):
        world.node._transport.request("evm_mine", [])


def test_of_two_honest_challengers_the_one_whose_game_is_void_gets_its_bond_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its view of the job is that of a moment before, in which the claim still stood."""
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=10)
    slow = AuditorRole(silenced(world.context("second")), world.job)
    fast = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, slow)
    before = world.contract.job(world.job)
    world.run(trainer, fast, world.referee())
    assert world.game(1).outcome is Outcome.VOID and world.game(1).bond_held
    watch = slow.context.queue.watch
    shown = [before]
    newest = watch.job
    monkeypatch.setattr(watch, "job", lambda job: shown.pop() if shown else newest(job))
    assert not slow.step().finished
    assert "REJECTED" in ended(slow).state
    assert not world.game(1).bond_held
    world.run(fast, trainer, world.customer())
    assert world.gains()["second"] >= 0 and world.contract_balance() == 0


def test_a_game_whose_end_is_taken_back_is_played_on(world: World) -> None:
    world.post()
    trainer = TrainerRole(world.context("trainer"), world.job)
    liar = lying_auditor(world.context("auditor"), world.job, first_wrong_step=8)
    world.run(trainer)
    liar.step()
    for role in itertools.cycle((trainer, liar)):
        take_back = chains_state(world)
        role.step()
        role.context.sender.settle()  # so that the next state to go back to is not one in which its move is on its way
        if world.game().phase is Phase.OVER:
            break
    trainer.step()
    assert world.said("game 1 ended: TRAINER_WON")
    take_back()
    assert world.game().phase is not Phase.OVER
    world.run(trainer, liar)
    assert world.game().outcome is Outcome.TRAINER_WON


def test_work_belongs_to_a_spec_and_not_to_the_number_of_a_job(world: World) -> None:
    """A reorganisation gives the number to another job, when the first one has been trained already."""
    take_back = chains_state(world)
    first = world.post()
    world.node.confirmations = 2
    trainer = TrainerRole(world.context("trainer"), first)
    for _ in range(5):
        trainer.step()
    assert world.said("trained to checkpoint root") and world.status is JobStatus.OPEN  # not deep enough for a bond
    take_back()
    world.node.confirmations = 0
    other = world.post(small_job(6, 2))
    world.node.confirmations = 2
    assert other == first
    mine(world, 3)
    world.run(trainer)
    assert world.status is JobStatus.CLAIMED
    auditor = AuditorRole(world.context("auditor"), world.job)
    for _ in range(8):
        auditor.step()
        mine(world, 1)
    assert world.contract.job(world.job).attestations == 1
    assert world.said("has given its number away")


def test_a_role_that_is_told_to_stop_ends_within_two_seconds(world: World) -> None:
    world.post(small_job(3000, 1000))
    context = replace(world.context("trainer"), background_jobs=BackgroundJobs())
    trainer = TrainerRole(context, world.job)
    while not [notice for notice in world.notices if notice.what is What.STEP]:
        trainer.step()
        time.sleep(0.02)
    running = threading.Thread(target=trainer.run, kwargs={"poll": 30.0})
    running.start()
    time.sleep(0.1)  # until it waits, or shortly before
    trainer.stop.set()
    started = time.monotonic()
    running.join(20.0)
    assert not running.is_alive() and time.monotonic() - started < 2.0


def test_work_begins_only_when_the_account_could_pay_for_a_dispute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.post()
    balance = world.node.balance
    monkeypatch.setattr(world.node, "balance", lambda account, **options: 1000)
    trainer = TrainerRole(replace(world.context("trainer"), clock=Ticks()), world.job)
    progress = trainer.step()
    assert not progress.finished and "has 1000 wei and needs" in progress.state
    assert not [notice for notice in world.notices if notice.what is What.STEP]
    monkeypatch.setattr(world.node, "balance", balance)
    world.run(trainer)
    assert world.status is JobStatus.CLAIMED
    assert Job.read(world.root / "files").spec == world.contract.job(world.job).spec.training
