"""What people are shown of accounts and roles, held against the contract: `status`, limits on spending, the monitor."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, RenderableType
from tiebreak.cli.account_summary import AccountRole, AccountSummary, read_summary
from tiebreak.cli.summary_text import (
    account_text,
    games_text,
    job_text,
    jobs_table,
    next_step,
    plain_summary,
)
from tiebreak.contract.contract_watch import find_rows
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Side
from tiebreak.game.moves import Leaves
from tiebreak.game.strategy import Known, forced_move
from tiebreak.operation.messenger import Messenger
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import Cause, RoleMonitor
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Look, Notice, Progress, What
from tiebreak.roles.player import call_of
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.chain_errors import ChainUnavailable
from tiebreak.store.store_errors import StoreUnavailable
from tiebreak.transactions.spending import DAY
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

from tests.e2e.market import CID, FEE, OPEN, by
from tests.e2e.world import NAMES, TERMS, World


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


@pytest.mark.slow
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


def summaries(world: World) -> Iterator[tuple[str, AccountSummary]]:
    for name in NAMES:
        yield name, read_summary(world.contract, world.senders[name].address)


def stakes(world: World) -> dict[str, int]:
    """Bonds and escrows of every account that has any. INVARIANT: with credits they are what lies in the contract."""
    found = dict(summaries(world))
    assert sum(one.bonds + one.escrow + one.due + one.credit for one in found.values()) == world.contract_balance()
    held = {name: one.bonds + one.escrow + one.due for name, one in found.items()}
    return {name: wei for name, wei in held.items() if wei}


def steps(world: World, *names: str) -> list[str]:
    """The next step as each is told it."""
    found = dict(summaries(world))
    return [next_step(found[name].jobs[0], found[name].now) for name in names]


def tree(world: World, last: int) -> Leaves:
    """A claim by nobody's training: its last state is another one for another `last`."""
    intervals = world.contract.job(world.job).spec.training.intervals
    return Leaves([bytes([1]) * 32] * (intervals - 1) + [bytes([last]) * 32])


@pytest.mark.slow
def test_attestations_and_appeals_are_counted_until_the_verdict_is_paid(world: World) -> None:
    world.post(terms=OPEN)
    posted, claimed, better = world.contract.job(world.job), tree(world, 2), tree(world, 3)
    by(world, "trainer").send(
        world.contract.commit(
            world.job,
            spec_hash=posted.spec_hash,
            claimed=claimed.as_next_root(),
            final_state_root=claimed.payloads[-1],
            log_cid=CID,
            model_cid=CID,
            bond=OPEN.trainer_bond,
        )
    )
    by(world, "second").send(
        world.contract.attest(
            world.job,
            spec_hash=posted.spec_hash,
            checkpoint_root=claimed.root,
            log_cid=CID,
            model_cid=CID,
            bond=OPEN.attestation_bond,
        )
    )
    by(world, "auditor").send(
        world.contract.challenge(
            world.job,
            spec_hash=posted.spec_hash,
            claimed_root=claimed.root,
            checkpoint_root=better.root,
            bond=OPEN.challenger_bond,
        )
    )
    all_bonds = {
        "customer": OPEN.reward + FEE,
        "trainer": OPEN.trainer_bond,
        "second": OPEN.attestation_bond,
        "auditor": OPEN.challenger_bond,
    }
    assert stakes(world) == all_bonds

    play_silent_trainer(world, 1, better)
    assert world.game(1).outcome is Outcome.CHALLENGER_WON and world.status is JobStatus.APPEALABLE
    assert stakes(world) == all_bonds
    assert all(said.startswith("appeal, in") for said in steps(world, "second", "auditor", "trainer"))

    by(world, "second").send(world.contract.appeal(world.job, spec_hash=posted.spec_hash, bond=OPEN.challenger_bond))
    assert stakes(world) == all_bonds | {"second": OPEN.attestation_bond + OPEN.challenger_bond}
    assert dict(summaries(world))["second"].jobs[0].games[1].side is Side.TRAINER
    assert steps(world, "auditor")[0].startswith("your move in game 2, in")
    play_silent_trainer(world, 2, better)
    assert stakes(world) == all_bonds
    world.pass_time(world.contract.job(world.job).audits.appeal_deadline)
    assert steps(world, "auditor") == ["finalize"]
    by(world, "auditor").send(world.contract.finalize(world.job))
    assert world.status is JobStatus.REJECTED and world.contract.job(world.job).audits.lost
    assert stakes(world) == {} and steps(world, "second", "auditor") == ["over", "over"]
    (audit,) = world.contract.audits_of(world.job)
    assert audit.status is AuditStatus.ATTESTED


def play_silent_trainer(world: World, number: int, mine: Leaves) -> None:
    """The challenger finds the checkpoint and opens it, and the trainer's side lets its clock run out."""
    known = Known({(): mine})
    for _ in range(2):
        game = world.game(number)
        index, interval = game.search.index, world.contract.job(world.job).spec.training.interval
        known.trees[(index,)] = Leaves([bytes([step]) * 32 for step in range(interval - 1)] + [mine.payloads[index]])
        known.rows = find_rows(world.contract, number, game)
        move = forced_move(game, Side.CHALLENGER, known)
        by(world, "auditor").send(call_of(world.contract, number, move))  # type: ignore[arg-type]
    world.pass_time(world.game(number).deadlines[Side.TRAINER])
    by(world, "auditor").send(world.contract.claim_timeout(number))


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


@pytest.mark.slow
def test_an_auditor_above_its_limit_leaves_a_wrong_claim_alone(world: World) -> None:
    world.post()
    cheat = poisoning_trainer(world.context("trainer"), world.job, poisoned_step=7)
    auditor = AuditorRole(limited(world, "auditor", job=TERMS.challenger_bond - 1), world.job)
    world.run(cheat, auditor)
    assert world.status is JobStatus.CLAIMED
    assert world.contract.game_count() == 0
    said = [one.text for one in world.notices if one.what is What.WARNING and "--spend-per-job" in one.text]
    assert len(said) == 1


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

    def step(self, role: Role) -> Progress:
        """One look of the role, as `Role.run` would have it watched, and one of the monitor."""
        progress = role.step()
        self.context.on_look(Look(progress=progress))
        self.pass_by(1.0)
        return progress

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
        self.monitor.tick()

    @property
    def causes(self) -> list[tuple[object, object, object]]:
        return [(one["cause"], one["resolved"], one["game"]) for one in self.messenger.sent]

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.metrics.text().decode())
        return next(one.value for family in families for one in family.samples if one.name == f"tiebreak_{name}")


@pytest.mark.slow
def test_a_person_is_called_once_when_half_a_clock_is_gone(world: World) -> None:
    world.post()
    watched = Watched(world, "trainer")
    trainer = TrainerRole(watched.context, world.job)
    auditor = lying_auditor(world.context("auditor"), world.job, first_wrong_step=4)
    while not (world.contract.game_count() and world.game().deadlines[Side.TRAINER]):
        watched.step(trainer)
        auditor.step()
    watched.step(trainer)
    assert watched.metric("games_live") == 1 and watched.metric("stake_ether") == TERMS.trainer_bond / 10**18
    assert watched.causes == []
    # The trainer looks on, and does not move: its machine is busy, say.
    while watched.context.queue.is_busy or not world.game().deadlines[Side.TRAINER]:
        watched.context.queue.look()  # a move of its own may still be on its way
        auditor.step()
    world.pass_time(world.game().deadlines[Side.TRAINER] - TERMS.clock_allowance // 2 + 10)
    for _ in range(3):
        watched.context.queue.look()
        watched.context.on_look(Look(progress=Progress(state="is busy")))
        watched.pass_by(1.0)
    assert watched.causes == [(Cause.CLOCK_HALF_GONE, False, 1)]
    assert watched.metric("least_clock_ratio") < 0.5
    for _ in range(200):
        progress = watched.step(trainer)
        if not (auditor.step().acted or progress.acted or progress.working) and world.game().outcome:
            break
    assert world.game().outcome is Outcome.TRAINER_WON
    while trainer.step().acted or watched.context.queue.is_busy:
        pass
    watched.step(trainer)
    assert watched.causes == [(Cause.CLOCK_HALF_GONE, False, 1), (Cause.CLOCK_HALF_GONE, True, 1)]
    assert watched.metric("games_live") == 0 and watched.metric("least_clock_ratio") == 1.0
    sent = [notice.receipt for notice in watched.told if notice.what is What.SENT and notice.receipt is not None]
    assert watched.metric("transactions_total") == len(sent) > 3
    assert watched.metric("gas_total") == sum(receipt.gas_used for receipt in sent)
    alerts = [notice.text for notice in watched.told if notice.what is What.ALERT]
    assert [text.split(":")[0] for text in alerts] == ["clock-half-gone", "resolved"]


def test_funds_store_and_chain_are_looked_after(world: World) -> None:
    watched = Watched(world, "trainer")
    monitor = watched.monitor
    look = Look(progress=Progress(state="waits"))
    monitor.look(look)
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
    monitor.look(Look(progress=look.progress, outage=ChainUnavailable("no answer \x1b[2J.")))
    watched.pass_by(1.0)
    is_ready, facts = monitor.ready()
    assert not is_ready and "no answer" in str(facts["chain"]) and "\x1b" not in str(facts["chain"])
    assert monitor.health()[0] is True and watched.metric("chain_reachable") == 0
    monitor.look(look)
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
