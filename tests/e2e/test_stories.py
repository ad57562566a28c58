"""Whole stories from the posted job to the last withdrawal: who wins, at which step, and every wei."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from roundlog.commitments import state_root
from roundlog.execution import StepExecutor
from roundlog.storage import load_tensors
from roundlog.training.job import Job
from roundlog.training.job import Job as EngineJob
from tiebreak.contract.enums import JobStatus, Outcome, Phase, Reason, Side
from tiebreak.roles import referee_role as referees
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.background_jobs import BackgroundJobs
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import LruCache
from tiebreak.roles.job_role import JobFollower, JobRole, Role
from tiebreak.roles.notices import What
from tiebreak.roles.player import HEAD_START
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order
from tiebreak_demo.adversary.engines import Lie, execution_of, lying, prescribed_executor
from tiebreak_demo.adversary.parties import (
    SilentQueue,
    lying_auditor,
    poisoning_trainer,
    silenced,
    tampering_auditor,
    tampering_trainer,
)

from tests.adversaries import log_forging_trainer
from tests.e2e.world import TERMS, Ticks, World, acts, ended, function_of, small_job, wide_task, with_terms
from tests.engine.kept_jobs import kept_job


def rejected_gains(world: World) -> dict[str, int]:
    """The payments of a claim that is found wrong."""
    shares = world.shares()
    return {"customer": shares.customer, "trainer": -TERMS.trainer_bond, "auditor": shares.winner}


def disputed(world: World, game: int = 1) -> tuple[int, ...]:
    """The interval and the step that a game has found."""
    return tuple(level.index for level in world.game(game).levels[:2])


@pytest.mark.slow_but("anvil")
def test_an_honest_trainer_is_attested_and_paid_and_the_customer_gets_the_model(each_world: World) -> None:
    world = each_world
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
    assert world.gains() == {"customer": -TERMS.reward, "trainer": TERMS.reward}
    assert world.contract_balance() == 0
    job = Job.read(world.root / "files")
    model = load_tensors(world.root / "model.safetensors", job.program.states)
    assert state_root(model.values()) == world.contract.job(world.job).claim.final_state_root


def test_a_poisoned_batch_is_found_at_exactly_its_step(world: World) -> None:
    step = 7
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


def lied_about(world: World, lie: Lie) -> tuple[JobRole, JobRole]:
    """A trainer that lies about a number, and an auditor; played until nobody has a move."""
    trainer = tampering_trainer(world.context("trainer"), world.job, lies=[lie])
    roles = trainer, AuditorRole(world.context("auditor"), world.job)
    world.run(*roles)
    return roles


@pytest.mark.slow
def test_the_contract_decides_about_a_row_that_fits_no_transaction(world: World) -> None:
    world.post(Job.from_task(wide_task))
    load = next(q for q, node in enumerate(Job.read(world.root / "files").program.nodes) if node.op == "data")
    roles = lied_about(world, Lie(step=2, operator=load, element=17_001, bit=22))
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
        "trainer": -TERMS.trainer_bond + world.shares(1).winner,
        "auditor": world.shares(2).winner,
        "second": -TERMS.challenger_bond,
    }
    assert world.contract_balance() == 0


@pytest.mark.slow
def test_a_forged_log_is_seen_and_does_not_mislead_an_audit_of_all_entries(world: World) -> None:
    world.post()
    trainer = log_forging_trainer(world.context("trainer"), world.job)
    auditor = AuditorRole(world.context("auditor"), world.job, verify_log=1.0)
    world.run(trainer, auditor)
    assert world.said("the log is wrong at step")
    assert world.contract.job(world.job).attestations == 1


@pytest.mark.slow
def test_a_trainer_left_alone_claims_the_timeout_and_its_reward_by_itself(world: World) -> None:
    world.post(small_job(2, 1), with_terms(clock_allowance=3_598, challenge_window=3_600))
    hasty = Policy(least_clock=1)
    trainer = TrainerRole(replace(world.context("trainer"), policy=hasty), world.job)
    auditor = silenced(replace(world.context("auditor"), policy=hasty))
    world.run(trainer, lying_auditor(auditor, world.job, first_wrong_step=0))
    # Seconds before the clock is out, and the window closed.
    world.pass_time(
        min(world.game().deadlines[Side.CHALLENGER], world.contract.job(world.job).claim.challenge_deadline) - 3
    )
    end = threading.Timer(60, trainer.stop.set)
    end.start()
    progress = trainer.run(poll=0.2)
    end.cancel()
    assert progress.finished
    assert world.status is JobStatus.FINAL
    assert (world.game().outcome, world.game().reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    # A call that is due with the next block, and refused in the newest one, is no failure.
    assert not world.said("TooEarly")


def falsely_accused(world: World) -> tuple[TrainerRole, tampering_auditor]:
    """An honest trainer whose challenger lies about a function's value; up to the referee's turn."""
    world.post()
    lies = [Lie(step=2, operator=function_of(world.root / "files"), element=5, bit=12)]
    trainer = TrainerRole(world.context("trainer"), world.job)
    liar = tampering_auditor(world.context("auditor"), world.job, lies=lies)
    world.run(trainer, liar)
    assert world.game().phase is Phase.REFEREE and world.game().disputed.element == 5
    return trainer, liar


@pytest.mark.slow
def test_a_referee_answers_only_a_game_that_lies_deep_enough(doubtful: None, world: World) -> None:
    """Its answer names no hash, and after a reorganisation the number may be that of another game."""
    falsely_accused(world)
    world.node.confirmations = 3
    referee = world.referee()
    for _ in range(4):
        referee.step()
        assert not world.said("decide about") and world.game().phase is Phase.REFEREE
    for _ in range(3):
        world.node.advance_time(12)
    world.run(referee)
    assert world.said("decide about") and world.game().outcome is Outcome.TRAINER_WON


def test_a_silent_referee_costs_an_honest_trainer_its_reward(doubtful: None, world: World) -> None:
    trainer, liar = falsely_accused(world)
    world.pass_time(world.game().referee_deadline)
    world.run(liar, trainer, world.customer())
    assert (world.game().outcome, world.status) == (Outcome.UNDECIDED, JobStatus.REJECTED)
    # The bonds go back, the liar's too; the reward goes back to the customer, and the work was for nothing.
    assert world.gains() == {}


@pytest.mark.slow
def test_a_lying_referee_costs_an_honest_trainer_its_bond(
    doubtful: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, liar = falsely_accused(world)
    honest = referees.function_value
    monkeypatch.setattr(referees, "function_value", lambda *question: honest(*question) ^ 1 << 12)
    world.run(world.referee(), trainer, liar, world.customer())
    assert (world.game().outcome, world.game().reason) == (Outcome.CHALLENGER_WON, Reason.VERDICT)
    assert world.gains()["trainer"] == -TERMS.trainer_bond


@pytest.mark.slow
def test_the_games_of_one_job_go_on_while_another_job_is_trained(world: World) -> None:
    disputed = world.post()
    world.run(TrainerRole(world.context("trainer"), disputed))
    liar = lying_auditor(world.context("auditor"), disputed, first_wrong_step=7)
    long = world.post(small_job(40, 4), with_terms(reward=2 * 10**15, trainer_bond=10**15, challenger_bond=10**15))
    world.run(liar)
    held, goes_on = threading.Event(), threading.Event()

    def slow(job: EngineJob) -> StepExecutor:
        """Stands still before its first step, as if every step took hours."""
        if job.spec.steps == 40:
            held.set()
            assert goes_on.wait(60)
        return prescribed_executor(job)

    context = lying(replace(world.context("trainer"), background_jobs=BackgroundJobs()), execution_of(slow))
    follower = JobFollower(context, "trainer", lambda job, posted: TrainerRole(context, job))
    while not held.is_set():
        follower.step()
    for _ in range(400):
        progress, liars = follower.step(), liar.step()
        world.run(world.referee())
        if world.game().outcome is Outcome.TRAINER_WON:
            break
        if not (progress.acted or liars.acted):
            time.sleep(0.02)
    assert world.game().outcome is Outcome.TRAINER_WON and not goes_on.is_set()
    assert world.contract.job(long).status is JobStatus.OPEN
    goes_on.set()
    for _ in range(2000):
        follower.step()
        if world.contract.job(long).status is JobStatus.CLAIMED:
            break
        time.sleep(0.02)
    assert world.contract.job(long).status is JobStatus.CLAIMED
    assert context.background_jobs.close(10)


@pytest.mark.slow
def test_a_job_that_breaks_its_role_does_not_stop_the_others(world: World) -> None:
    broken, sound = world.post(small_job(2, 1)), world.post(small_job(4, 2))

    def breaking(job: EngineJob) -> StepExecutor:
        raise RuntimeError("an operator nobody has thought of")

    context = world.context("trainer")
    contexts = {broken: lying(context, execution_of(breaking)), sound: context}
    follower = JobFollower(context, "trainer", lambda job, posted: TrainerRole(contexts[job], job))
    for _ in range(5):
        follower.step()
    assert world.contract.job(sound).status is JobStatus.CLAIMED
    assert len(world.said("the training did not succeed: RuntimeError: an operator nobody has thought of")) == 1


LIARS = {"auditor": 8, "second": 7, "deployer": 4}


class CountingExecutor:
    """Counts executions of steps, observed or not, by step."""

    def __init__(self, honest: StepExecutor, executed: Counter[tuple[int, bool]]) -> None:
        self.program, self.f32_format = honest.program, honest.f32_format
        self._honest, self._executed = honest, executed

    def run(self, inputs, rounding, observe=None):  # type: ignore[no-untyped-def]
        self._executed[inputs.step, observe is not None] += 1
        return self._honest.run(inputs, rounding, observe)


@pytest.mark.slow
def test_games_in_turn_execute_nothing_twice_and_their_moves_go_out_together(world: World) -> None:
    world.post(terms=with_terms(concurrent_games=2))
    executed: Counter[tuple[int, bool]] = Counter()
    execution = execution_of(lambda job: CountingExecutor(prescribed_executor(job), executed))
    trainer = TrainerRole(lying(world.context("trainer"), execution), world.job)
    world.run(trainer)
    liars = [lying_auditor(world.context(name), world.job, first_wrong_step=step) for name, step in LIARS.items()]
    for liar in liars:
        liar.step()
    assert world.contract.job(world.job).live_games == 2 and world.contract.job(world.job).queued_games == 1
    world.run(trainer, *liars, world.referee())
    assert [world.game(game).outcome for game in (1, 2, 3)] == [Outcome.TRAINER_WON] * 3
    # Each disputed step is executed once for its trace, whatever is opened of it; the roots of the two disputed
    # intervals, with what comes before a disputed step in its interval, a second time after the training.
    assert {step for step, observed in executed if observed} == set(LIARS.values())
    assert all(times == 1 for (_, observed), times in executed.items() if observed)
    moves = [notice for notice in world.notices if notice.role == "trainer" and notice.game and notice.receipt]
    transactions = Counter(notice.receipt.transaction for notice in moves if notice.receipt)
    assert max(transactions.values()) == 2


def test_what_was_used_last_is_kept_and_never_more_than_allowed() -> None:
    kept: LruCache[int, str] = LruCache(100)
    for key in range(5):
        kept.put(key, str(key), 30)
        kept.get(0)
    assert list(kept) == [3, 4, 0] and kept.get(1) is None
    kept.put(9, "large", 1000)
    assert list(kept) == [9]


@pytest.mark.slow
def test_an_auditor_that_comes_too_late_moves_for_a_silent_one_that_is_right(world: World) -> None:
    world.post()
    trainer = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    silent = AuditorRole(silenced(world.context("second")), world.job)
    world.run(trainer, silent)
    world.pass_time(world.contract.job(world.job).claim.challenge_deadline - TERMS.clock_allowance // 4)
    late = AuditorRole(world.context("auditor"), world.job)
    other = lying_auditor(silenced(world.context("deployer")), world.job, first_wrong_step=1)
    world.run(other)
    world.pass_challenge_window()
    assert world.contract.job(world.job).live_games == 2
    world.run(late)
    # The first game's clock is out, nothing can be done about it; the liar is nobody to help.
    assert [world.game(i).search.height for i in (1, 2)] == [3, 3]


def until(done: Callable[[], bool], *roles: Role) -> None:
    """Let roles step, with their work in threads, until something has come about."""
    for _ in range(3000):
        acted = [role.step().acted for role in roles]
        if done():
            return
        if not any(acted):
            time.sleep(0.01)
    raise AssertionError("it does not come about")


@pytest.mark.slow
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


ONE_AT_A_TIME = with_terms(concurrent_games=1)


class ColludingQueue(SilentQueue):
    """Sends some moves, and never ends a game."""

    def put(self, order: Order) -> bool:
        return order.call.function != "claimTimeout" and super().put(order)


def colluding(context: RoleContext, *, moves: int = 0) -> RoleContext:
    return replace(context, make_queue=lambda contract, sender: ColludingQueue(contract, sender, moves=moves))


def head_start(auditor: AuditorRole) -> int:
    return int(HEAD_START * auditor.context.queue.block_seconds()) + 1


@pytest.mark.slow
def test_a_queued_challenger_ends_the_game_before_its_own_and_wins(world: World) -> None:
    world.post(terms=ONE_AT_A_TIME)
    # The first move is the puppet's, so a trainer that never moves loses nothing by it.
    trainer = poisoning_trainer(colluding(world.context("trainer")), world.job, poisoned_step=7)
    world.run(trainer)
    puppet = lying_auditor(colluding(world.context("second")), world.job, first_wrong_step=4)
    world.run(puppet)
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(trainer, puppet, auditor)
    assert world.game(1).deadlines[Side.CHALLENGER] and world.game(2).phase is Phase.QUEUED

    world.pass_time(world.game(1).deadlines[Side.CHALLENGER])
    world.run(trainer, puppet)
    assert world.game(1).phase is not Phase.OVER
    world.pass_time(world.game(1).deadlines[Side.CHALLENGER] + head_start(auditor))
    world.run(trainer, puppet, auditor)
    assert (world.game(1).outcome, world.game(1).reason) == (Outcome.TRAINER_WON, Reason.TIMEOUT)
    assert len(world.said("end a game of others whose clock ran out")) == 1

    assert world.game(2).deadlines[Side.TRAINER]
    world.pass_time(world.game(2).deadlines[Side.TRAINER])
    world.run(trainer, puppet, auditor, world.customer())
    assert (world.game(2).outcome, world.status) == (Outcome.CHALLENGER_WON, JobStatus.REJECTED)
    gains = world.gains()
    assert gains["auditor"] == world.shares(2).winner > 0 and gains["customer"] > 0
    assert gains["trainer"] + gains["second"] < 0


@pytest.mark.slow
def test_a_queued_challenger_ends_the_wait_for_a_silent_referee(doubtful: None, world: World) -> None:
    """The end of that wait rejects the claim, so that the queued game is void: its bond returns."""
    world.post(terms=ONE_AT_A_TIME)
    lies = [Lie(step=2, operator=function_of(world.root / "files"), element=5, bit=22)]
    trainer = tampering_trainer(colluding(world.context("trainer"), moves=1000), world.job, lies=lies)
    accomplice = AuditorRole(colluding(world.context("second"), moves=1000), world.job)
    world.run(trainer, accomplice)
    assert world.game(1).phase is Phase.REFEREE
    auditor = AuditorRole(world.context("auditor"), world.job)
    world.run(auditor)
    assert world.game(2).phase is Phase.QUEUED
    world.pass_time(world.game(1).referee_deadline + head_start(auditor))
    world.run(trainer, accomplice, auditor)
    assert (world.game(1).outcome, world.status) == (Outcome.UNDECIDED, JobStatus.REJECTED)
    assert world.game(2).outcome is Outcome.VOID and not world.game(2).bond_held
    assert "auditor" not in world.gains()


@pytest.mark.slow
def test_a_trainer_ends_silent_games_before_its_run_is_at_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.post(terms=ONE_AT_A_TIME)
    first = TrainerRole(world.context("trainer"), world.job)
    world.run(first)
    silent = lying_auditor(colluding(world.context("auditor")), world.job, first_wrong_step=4)
    world.run(silent, first)
    fresh = TrainerRole(world.context("trainer"), world.job)
    monkeypatch.setattr(fresh._run, "trees", lambda *arguments: None)
    world.pass_time(world.game(1).deadlines[Side.CHALLENGER])
    for _ in range(3):
        fresh.step()
    assert world.game(1).outcome is Outcome.TRAINER_WON
