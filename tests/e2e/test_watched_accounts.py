"""What people are shown of accounts and roles, held against the contract: `status`, limits on spending, the monitor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.cli.account_summary import AccountRole, AccountSummary, read_summary
from tiebreak.cli.summary_text import plain_summary, show_account
from tiebreak.contract.enums import JobStatus, Outcome, Side
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import Cause, Messenger, RoleMonitor
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Notice, Progress, What
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.store.store_errors import StoreUnavailable
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


class Kept(Messenger):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__([])
        self.sent: list[Mapping[str, object]] = []

    def send(self, message: Mapping[str, object]) -> None:
        self.sent.append(message)


class Watched:
    """A role's context with a monitor, whose clock only moves when told."""

    def __init__(self, world: World, name: str) -> None:
        self.seconds = 0.0
        self.told: list[Notice] = []
        self.messenger = Kept()
        self.metrics = Metrics(name)
        self.monitor = RoleMonitor(
            name,
            self.told.append,
            messenger=self.messenger,
            metrics=self.metrics,
            clock=lambda: self.seconds,
        )
        self.context = replace(world.context(name), notify=self.monitor.notice, on_look=self.monitor.look)
        self.monitor.attach(self.context)
        self.monitor.probe()

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.monitor.tick()

    @property
    def causes(self) -> list[tuple[object, object, object]]:
        return [(one["cause"], one["resolved"], one["game"]) for one in self.messenger.sent]

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.metrics.text().decode())
        return next(one.value for family in families for one in family.samples if one.name == f"tiebreak_{name}")


def test_funds_store_and_chain_are_looked_after(world: World) -> None:
    watched = Watched(world, "trainer")
    monitor = watched.monitor
    waits = Progress(state="waits")
    monitor.look(waits, None)
    watched.pass_by(1.0)
    assert watched.causes == [] and watched.metric("balance_ether") > watched.metric("needed_ether") > 0
    assert monitor.ready() == (True, {"role": "trainer", "chain": "", "store": ""})

    # All but a little of the account's ether goes away.
    sender, second = world.senders["trainer"], world.senders["second"].address
    left = world.balance("trainer")
    sender.send(second, b"", value=left - 10**15)
    monitor.probe()
    watched.pass_by(1.0)
    watched.pass_by(1.0)
    assert watched.causes == [(Cause.FUNDS_LOW, False, None)]
    world.senders["second"].send(sender.address, b"", value=10**18)
    monitor.probe()
    watched.pass_by(1.0)
    assert watched.causes[1:] == [(Cause.FUNDS_LOW, True, None)]
    assert watched.metric("alerts_total") == 1, "of funds-low, the first cause"

    # The chain is away, then the store.
    monitor.look(waits, ChainUnavailable("no answer \x1b[2J."))
    watched.pass_by(1.0)
    is_ready, facts = monitor.ready()
    assert not is_ready and "no answer" in str(facts["chain"]) and "\x1b" not in str(facts["chain"])
    assert monitor.health()[0] is True and watched.metric("chain_reachable") == 0
    monitor.look(waits, None)
    assert monitor.ready()[0] is True
    monitor.unreachable(StoreUnavailable("the store is away."))
    watched.pass_by(1.0)
    assert monitor.ready()[0] is False and watched.metric("store_reachable") == 0
    monitor.probe()  # the folder is there
    assert monitor.ready()[0] is True

    # And a loop that has stopped is what a supervisor is to restart it for.
    watched.pass_by(400)
    assert monitor.health()[0] is False
    assert len(watched.causes) == 2, "for all that nobody is called"
