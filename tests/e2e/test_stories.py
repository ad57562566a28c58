"""Whole stories from the posted job to the last withdrawal: who wins, at which step, and every wei."""

from __future__ import annotations

import pytest
from roundlog.commitments import state_root
from roundlog.storage import load_tensors
from roundlog.training.job import Job
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer, tampering_auditor, tampering_trainer
from tiebreak_demo.adversary.tampering import Lie

from tests.adversaries import cheating, fabricating_trainer, log_forging_trainer
from tests.e2e.world import TERMS, World, acts, ended, function_of, wide_task
from tests.engine.kept_jobs import kept_job

REWARD, TRAINER_BOND, CHALLENGER_BOND = TERMS.reward, TERMS.trainer_bond, TERMS.challenger_bond


def rejected_gains(world: World) -> dict[str, int]:
    """The payments of a claim that is found wrong."""
    shares = world.shares()
    return {"customer": shares.customer, "trainer": -TRAINER_BOND, "auditor": shares.winner}


def disputed(world: World, game: int = 1) -> tuple[int, ...]:
    """The interval and the step that a game has found."""
    return tuple(level.index for level in world.game(game).levels[:2])


@pytest.mark.slow_but("anvil")
def test_an_honest_trainer_is_attested_and_paid_and_the_customer_gets_the_model(world: World) -> None:
    world.post(kept_job("convolution"))
    trainer, auditor = (
        TrainerRole(world.context("trainer"), world.job),
        AuditorRole(world.context("auditor"), world.job),
    )
    customer = world.customer()
    world.run(customer, trainer, auditor)
    assert world.status is JobStatus.CLAIMED
    assert world.contract.job(world.job).attestations == 1
    assert ended(auditor).finished
    world.pass_challenge_window()
    assert acts(customer)  # anyone may finalize
    assert ended(trainer).finished and ended(customer).finished
    assert world.status is JobStatus.FINAL
    assert world.gains() == {"customer": -REWARD, "trainer": REWARD}
    assert world.contract_balance() == 0
    job = Job.read(world.root / "files")
    model = load_tensors(world.root / "model.safetensors", job.program.states)
    assert state_root(model.values()) == world.contract.job(world.job).claim.final_state_root


@pytest.mark.slow
def test_a_poisoned_batch_is_found_at_exactly_its_step(world: World) -> None:
    poisoned_batch(world, 7)


def poisoned_batch(world: World, step: int) -> None:
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=step)
    auditor = AuditorRole(world.context("auditor"), world.job)
    customer = world.customer()
    world.run(trainer, auditor, world.referee())
    assert disputed(world) == divmod(step, 3)
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    assert world.status is JobStatus.REJECTED
    assert all(ended(role).finished for role in (trainer, auditor, customer))
    assert world.gains() == rejected_gains(world)
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_a_lying_challenger_pays_the_honest_trainer_and_the_claim_becomes_final(world: World) -> None:
    world.post()
    trainer = TrainerRole(world.context("trainer"), world.job)
    liar = lying_auditor(world.context("auditor"), world.job, first_wrong_step=8)
    customer = world.customer()
    world.run(customer, trainer, liar, world.referee())
    assert disputed(world) == (2, 2)
    assert world.game().outcome is Outcome.TRAINER_WON
    world.pass_challenge_window()
    world.run(trainer, customer)
    assert world.status is JobStatus.FINAL
    assert world.gains() == {
        "customer": -REWARD + world.shares().customer,
        "trainer": REWARD + world.shares().winner,
        "auditor": -CHALLENGER_BOND,
    }
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_a_challenger_that_falls_silent_loses_its_bond_by_the_clock(world: World) -> None:
    silent_challenger(world, 0)


def silent_challenger(world: World, moves: int) -> None:
    world.post()
    trainer = TrainerRole(world.context("trainer"), world.job)
    silent = lying_auditor(silenced(world.context("auditor"), moves=moves), world.job, first_wrong_step=4)
    world.run(trainer, silent, world.referee())
    assert world.game().phase is not Phase.OVER
    waiting = trainer.step()
    assert not waiting.acted
    deadline = world.game().deadlines[Side.CHALLENGER]
    assert waiting.until == deadline + 1
    world.pass_time(deadline)
    world.run(trainer)
    assert (world.game().outcome, world.game().reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    world.pass_challenge_window()
    world.run(trainer, world.customer())
    assert world.gains() == {
        "customer": -REWARD + world.shares().customer,
        "trainer": REWARD + world.shares().winner,
        "auditor": -CHALLENGER_BOND,
    }


@pytest.mark.slow
def test_a_trainer_that_falls_silent_loses_the_claim_by_the_clock(world: World) -> None:
    silent_trainer(world, 0)


def silent_trainer(world: World, moves: int) -> None:
    world.post()
    trainer = poisoning_trainer(silenced(world.context("trainer"), moves=moves), world.job, poisoned_step=9)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, auditor)
    world.pass_time(world.game().deadlines[Side.TRAINER])
    world.run(trainer, auditor, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.TIMEOUT)
    assert world.status is JobStatus.REJECTED
    assert world.gains() == rejected_gains(world)


@pytest.mark.slow
def test_a_trainer_that_has_trained_nothing_cannot_open_its_root(quick_world: World) -> None:
    quick_world.post()
    trainer = fabricating_trainer(quick_world.context("trainer"), quick_world.job)
    auditor = AuditorRole(quick_world.context("auditor"), quick_world.job)
    quick_world.run(trainer, auditor)
    assert quick_world.said("root at level CHECKPOINT is not over the states at hand")
    quick_world.pass_time(quick_world.game().deadlines[Side.TRAINER])
    quick_world.run(auditor, trainer, quick_world.customer())
    assert quick_world.game().outcome is Outcome.CHALLENGER_WON
    assert quick_world.gains() == rejected_gains(quick_world)


@pytest.mark.slow
def test_a_party_that_lies_about_its_nodes_is_refused_and_its_clock_runs_on(quick_world: World) -> None:
    quick_world.post()
    trainer = TrainerRole(quick_world.context("trainer"), quick_world.job)
    cheat = lying_auditor(cheating(quick_world.context("auditor")), quick_world.job, first_wrong_step=4)
    quick_world.run(trainer, cheat)
    assert quick_world.said("NotWhatIsDue")
    assert quick_world.game().search.height == 3  # five checkpoints, and nobody has moved
    quick_world.pass_time(quick_world.game().deadlines[Side.CHALLENGER])
    quick_world.run(trainer)
    assert quick_world.game().outcome is Outcome.TRAINER_WON


def lied_about(world: World, liar: str, lie: Lie) -> tuple[JobRole, JobRole]:
    """Trainer and auditor, of which one lies about a number; played until nobody has a move."""
    trainer, auditor = world.context("trainer"), world.context("auditor")
    roles: tuple[JobRole, JobRole]
    if liar == "trainer":
        roles = tampering_trainer(trainer, world.job, lies=[lie]), AuditorRole(auditor, world.job)
    else:
        roles = TrainerRole(trainer, world.job), tampering_auditor(auditor, world.job, lies=[lie])
    world.run(*roles)
    return roles


@pytest.mark.slow
@pytest.mark.parametrize("liar", ["trainer", "auditor"])
def test_a_referee_decides_about_a_rounding_that_the_contract_does_not(
    doubtful: None, quick_world: World, liar: str
) -> None:
    world = quick_world
    world.post()
    roles = lied_about(world, liar, Lie(step=2, operator=function_of(world.root / "files"), element=5, bit=22))
    assert world.game().phase is Phase.REFEREE and world.game().disputed.element == 5
    world.run(world.referee(), *roles, world.customer())
    won = Outcome.CHALLENGER_WON if liar == "trainer" else Outcome.TRAINER_WON
    assert (world.game().outcome, world.game().reason) == (won, Reason.VERDICT)


@pytest.mark.slow
def test_the_contract_decides_about_a_row_that_fits_no_transaction(quick_world: World) -> None:
    world = quick_world
    world.post(Job.from_task(wide_task))
    load = next(q for q, node in enumerate(Job.read(world.root / "files").program.nodes) if node.op == "data")
    roles = lied_about(world, "trainer", Lie(step=2, operator=load, element=17_001, bit=22))
    world.run(*roles, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)


@pytest.mark.slow
def test_of_two_challengers_the_wrong_one_loses_and_the_right_one_still_rejects_the_claim(world: World) -> None:
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=10)
    wrong = lying_auditor(world.context("second"), world.job, first_wrong_step=2)
    right = AuditorRole(world.context("auditor"), world.job)
    customer, referee = world.customer(), world.referee()
    world.run(trainer, wrong, referee, customer)
    assert disputed(world) == (0, 2)
    # In this game the poisoned trainer is right, and gets half of the bond.
    assert world.game().outcome is Outcome.TRAINER_WON
    assert world.status is JobStatus.CLAIMED
    world.run(trainer, right, referee, customer)
    assert disputed(world, 2) == (3, 1)
    assert world.game(2).outcome is Outcome.CHALLENGER_WON
    world.run(wrong, right, trainer, customer)
    assert world.gains() == {
        "customer": world.shares(1).customer + world.shares(2).customer,
        "trainer": -TRAINER_BOND + world.shares(1).winner,
        "auditor": world.shares(2).winner,
        "second": -CHALLENGER_BOND,
    }
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_a_forged_log_is_seen_and_does_not_mislead_an_audit_of_all_entries(quick_world: World) -> None:
    quick_world.post()
    trainer = log_forging_trainer(quick_world.context("trainer"), quick_world.job)
    auditor = AuditorRole(quick_world.context("auditor"), quick_world.job, verify_log=1.0)
    quick_world.run(trainer, auditor)
    assert quick_world.said("the log is wrong at step")
    assert quick_world.contract.job(quick_world.job).attestations == 1
