"""What people are shown of accounts and roles, held against the contract: `status`, limits on spending, the monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tiebreak.cli.summary_text import AccountRole, AccountSummary, plain_summary, read_summary, show_account
from tiebreak.contract.enums import JobStatus, Outcome, Side
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.transactions.spending import DAY
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import TERMS, World


def summary(world: World, name: str) -> AccountSummary:
    return read_summary(world.contract, world.senders[name].address)


def play(world: World, roles: Sequence[Role], looks: int) -> None:
    for _ in range(looks):
        for role in roles:
            role.step()


def test_an_account_sees_its_escrow_and_what_is_due_next(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.post()
    nobody = summary(world, "second")
    show_account(nobody)
    assert nobody.jobs == () and "no job yet" in capsys.readouterr().out
    customer = summary(world, "customer")
    assert (customer.escrow, customer.bonds) == (TERMS.reward, 0)
    assert [job.parts for job in customer.jobs] == [(AccountRole.CUSTOMER,)]
    show_account(customer)
    said = capsys.readouterr().out
    assert f"Account {customer.account}" in said and "commit, in" in said


@pytest.mark.slow
def test_an_account_sees_its_bonds_and_moves_until_the_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.post()
    trainer = TrainerRole(world.context("trainer"), world.job)
    auditor = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    while not world.contract.job(world.job).game_count:
        play(world, [trainer, auditor], 1)
    # In a search one side is to move; while a level is opened, both are.
    while not world.game().spent[Side.TRAINER] or sum(bool(clock.started_at) for clock in world.game().clocks) != 1:
        play(world, [trainer, auditor], 1)
    mine, theirs = summary(world, "trainer"), summary(world, "auditor")
    (game,) = mine.jobs[0].games
    assert mine.bonds == TERMS.trainer_bond and theirs.bonds == TERMS.challenger_bond
    assert game.view == world.game() and game.side is Side.TRAINER and not game.view.outcome
    assert (mine.balance, mine.credit) == (world.balance("trainer"), 0)
    on_move = [one for one in (mine, theirs) if one.jobs[0].games[0].deadline]
    assert len(on_move) == 1
    show_account(on_move[0])
    assert "your move in game 1, in" in capsys.readouterr().out
    ends = [plain_summary(one)["bonds_wei"] for one in (mine, theirs)]
    assert ends == [str(TERMS.trainer_bond), str(TERMS.challenger_bond)]

    world.run(trainer, auditor)
    assert world.game().outcome is Outcome.TRAINER_WON
    assert summary(world, "auditor").bonds == 0
    world.pass_challenge_window()
    world.run(trainer, world.customer())
    over = summary(world, "trainer")
    show_account(over)
    assert (over.bonds, over.escrow) == (0, 0) and " over" in capsys.readouterr().out


def limited(world: World, name: str, *, day: int | None = None, job: int | None = None) -> RoleContext:
    context = world.context(name)
    return replace(context, limits=replace(context.limits, wei_per_day=day, wei_per_job=job))


@pytest.mark.slow
def test_a_trainer_waits_for_its_day_and_says_until_when(world: World) -> None:
    first = world.post()
    trainer = TrainerRole(limited(world, "trainer", day=TERMS.trainer_bond * 3 // 2), first)
    for _ in range(10):
        trainer.step()
    assert world.status is JobStatus.CLAIMED
    claimed = world.contract.job(first).claim.committed_at
    second = world.post()
    context = limited(world, "trainer", day=TERMS.trainer_bond * 3 // 2)
    waiting = TrainerRole(context, second)
    seen = [waiting.step() for _ in range(5)][-1]
    assert seen.state.startswith("--spend-per-day 0.006000000000000001 ether is reached")
    assert seen.until is not None and abs(seen.until - (claimed + DAY)) <= 60
    warnings = [one for one in world.notices if one.what is What.WARNING and "--spend-per-day" in one.text]
    assert len(warnings) == 1 and warnings[0].job == second
    assert not context.room(second, world.contract.job(second)).exists(), "nothing is trained for nothing"
    world.pass_time(seen.until)
    assert world.contract.job(second).commit_deadline > world.node.now()
    for _ in range(10):
        waiting.step()
    assert world.contract.job(second).status is JobStatus.CLAIMED
