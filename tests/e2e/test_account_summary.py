"""The view of `status` of an account's jobs, bonds, clocks and gas, held against the contract and the accounts."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console, RenderableType
from tiebreak.cli.account_summary import AccountRole, AccountSummary, read_summary
from tiebreak.cli.summary_text import (
    account_text,
    games_text,
    job_text,
    jobs_table,
    plain_summary,
)
from tiebreak.contract.enums import Outcome, Side
from tiebreak.roles.job_role import Role
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.parties import lying_auditor

from tests.e2e.world import TERMS, World


def printed(*parts: RenderableType) -> str:
    """Output on a terminal of 80 columns. It must cut nothing and need no wider line."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=False)
    for part in parts:
        console.print(part)
    assert all(len(line) <= 80 for line in file.getvalue().splitlines())
    assert "…" not in file.getvalue()
    return file.getvalue()


def summary(world: World, name: str) -> AccountSummary:
    return read_summary(world.contract, world.senders[name].address)


def play(world: World, roles: Sequence[Role], looks: int) -> None:
    for _ in range(looks):
        for role in roles:
            role.step()


@pytest.mark.slow_but("anvil*")
def test_an_account_sees_its_bonds_clocks_moves_and_gas_from_the_post_to_the_end(world: World) -> None:
    world.post()
    nobody = summary(world, "second")
    assert nobody.jobs == () and "no job yet" in printed(jobs_table(nobody))
    customer = summary(world, "customer")
    assert (customer.escrow, customer.bonds) == (TERMS.reward, 0)
    assert [job.parts for job in customer.jobs] == [(AccountRole.CUSTOMER,)]
    assert "commit, in" in printed(account_text(customer), jobs_table(customer))

    trainer = TrainerRole(world.context("trainer"), world.job)
    auditor = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    while not world.contract.job(world.job).game_count:
        play(world, [trainer, auditor], 1)
    # In a search one side is to move; while a level is opened, both are.
    while not world.game().spent[Side.TRAINER] or sum(bool(clock.started_at) for clock in world.game().clocks) != 1:
        play(world, [trainer, auditor], 1)
    mine, theirs = summary(world, "trainer"), summary(world, "auditor")
    (game,) = mine.games
    assert mine.bonds == TERMS.trainer_bond and theirs.bonds == TERMS.challenger_bond
    assert game.view == world.game() and game.side is Side.TRAINER and not game.view.outcome
    assert mine.spent == world.game().spent[Side.TRAINER] > 0
    assert (mine.balance, mine.credit) == (world.balance("trainer"), 0)
    on_move = [one for one in (mine, theirs) if any(game.deadline for game in one.games)]
    assert len(on_move) == 1 and "your move in game 1, in" in printed(jobs_table(on_move[0]))
    for one in (mine, theirs):
        text = printed(account_text(one), jobs_table(one), *games_text(one))
        assert f"Account {one.account}" in text and "at most" in text and "trainer" in text and "running" in text
        for side in Side:
            (their_game,) = one.games
            left = their_game.view.left(side, one.now)
            clock = world.game().clocks[side]
            assert 0 < left <= clock.remaining <= TERMS.clock_allowance
            assert (left < clock.remaining) <= bool(clock.started_at)
    ends = [plain_summary(one)["bonds_wei"] for one in (mine, theirs)]
    assert ends == [str(TERMS.trainer_bond), str(TERMS.challenger_bond)]

    world.run(trainer, auditor)
    assert world.game().outcome is Outcome.TRAINER_WON
    # The gas to come was at most what was said.
    moves = {name: world.game().spent[side] for name, side in (("trainer", Side.TRAINER), ("auditor", Side.CHALLENGER))}
    for one, name in ((mine, "trainer"), (theirs, "auditor")):
        assert moves[name] <= one.spent + one.to_come
        assert summary(world, name).to_come == 0
    assert summary(world, "auditor").bonds == 0
    world.pass_challenge_window()
    world.run(trainer, world.customer())
    over = summary(world, "trainer")
    assert (over.bonds, over.escrow) == (0, 0) and "over" in printed(jobs_table(over))
    assert "challenge by" not in printed(job_text(world.job, world.contract.job(world.job), over.now))
