"""Markets of audits in one process: parties that misbehave or sleep, slow blocks, kills, and a store that is away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from eth_account import Account
from eth_hash.auto import keccak
from tiebreak.cli.summary_text import UNDECIDED, next_step, read_summary
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus, Phase
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.rpc.chain_errors import ContractError, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.store import FolderStore
from tiebreak.store.store_errors import StoreUnavailable
from tiebreak.transactions.keys import devnet_account

from tests.chaos.judge import left_behind, losses
from tests.chaos.machine import Round
from tests.chaos.misbehaving import WRONG_CLAIMS, Kind, auditor_of, trainer_of
from tests.client.inline_jobs import Paced
from tests.e2e.market import BLIND, FEE, OPEN, context
from tests.e2e.world import CountingSender, World

TRAINERS = (None, None, None, Kind.POISON, Kind.POISON, Kind.FABRICATE, Kind.RESIGN, Kind.HESITATE, Kind.SLEEP)
AUDITORS = (None, None, Kind.LIE, Kind.CHEAT, Kind.LAZY, Kind.SLEEP, Kind.RESIGN, Kind.HESITATE)
AUDITOR_NAMES = ("auditor", "second", "third", "fourth", "fifth")
MOST_TURNS = 600


class SlowChain(Transport):
    """A chain on which transactions wait for the next block: several at once, those of all accounts in any order."""

    name = "the slow chain"

    def __init__(self, draw: Random) -> None:
        super().__init__()
        self._chain, self._draw = EmbeddedChain(), draw
        self._pool: list[tuple[str, str]] = []
        self.is_slow = False

    def request(self, method: str, params: list[Any]) -> object:
        if method == "eth_sendRawTransaction" and self.is_slow:
            self._pool.append((str(Account.recover_transaction(params[0])), params[0]))
            return "0x" + keccak(bytes.fromhex(params[0][2:])).hex()
        if method == "eth_getTransactionCount" and params[1] == "pending":
            mined = self._chain.request(method, [params[0], "latest"])
            waiting = {raw for account, raw in self._pool if account == params[0]}
            return hex(int(str(mined), 16) + len(waiting))
        return self._chain.request(method, params)

    def mine(self) -> bool:
        """Take what waits. Return whether anything did."""
        pool, self._pool = self._pool, []
        for account in self._draw.sample(all_ := sorted({account for account, _ in pool}), len(all_)):
            for _, raw in (one for one in pool if one[0] == account):
                with suppress(RpcRefused):  # sent twice, or replaced
                    self._chain.request("eth_sendRawTransaction", [raw])
        return bool(pool)


class ShakyStore:
    """A store that is away at times."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if self.is_away and not name.startswith("address_of"):
            raise StoreUnavailable("the store is away: try again later.")
        return found


@dataclass
class Party:
    """`make`: its role, made anew after a kill. `wakes`: the share of turns in which it looks."""

    name: str
    kind: Kind | None
    make: Callable[[], JobRole]
    wakes: float = 1.0
    paced: Paced | None = None
    """Its background jobs, if its runs take time."""
    role: JobRole | None = None
    last: str = ""

    @property
    def honest(self) -> bool:
        return self.kind is None

    @property
    def finished(self) -> bool:
        return self.last.startswith("finished")


class Market(World, Round):
    """A market with one job, on a chain and with a store in this process."""

    FAULTS = ("kill", "store", "time", "time", "time", "time")
    STRIKES = 40

    def __init__(self, draw: Random, room: Path) -> None:
        Round.__init__(self, draw, room)
        self.chain = SlowChain(Random(draw.random()))
        World.__init__(self, ChainNode(self.chain), room)
        self.shaky = ShakyStore(self.store)
        self.store = self.shaky  # type: ignore[assignment]
        for i, name in enumerate(AUDITOR_NAMES[2:]):
            self.senders[name] = CountingSender(self.node, devnet_account(6 + i))
            self.before[name] = self.balance(name)
        self.is_blind = draw.random() < 0.6
        terms = replace(
            BLIND if self.is_blind else OPEN,
            attestations_needed=draw.choice((1, 1, 2, 3)),
            concurrent_games=draw.choice((1, 1, 2, 5)),
            clock_allowance=20_000,
        )
        # Up to the most that the trainer's bond can make good.
        terms = replace(terms, audit_fee=draw.choice((FEE, terms.trainer_bond // 2, 0)))
        self.terms = replace(terms, opening_window=draw.choice((3600, 7200, 49_999))) if self.is_blind else terms
        self.post(terms=self.terms)
        self.chain.is_slow = draw.random() < 0.6
        self.is_shaky = draw.random() < 0.5
        kinds = [None, *(draw.choice(AUDITORS) for _ in range(draw.choice((1, 2, 3))))]
        draw.shuffle(kinds)
        trainer = self._trainer(draw.choice(TRAINERS))
        auditors = [self.auditor(name, kind) for name, kind in zip(AUDITOR_NAMES, kinds, strict=False)]
        self.parties = [trainer, *auditors, Party("customer", None, self.customer)]
        for party in self.parties:
            if not party.honest:
                party.wakes = draw.choice((0.2, 0.6, 1.0))
        shown = {"blind": self.is_blind, "slow": self.chain.is_slow, "shaky": self.is_shaky}
        self.told.append(" ".join(name for name, holds in shown.items() if holds) or "plain")
        self.told += [f"{one.name} {one.kind or 'honest'}" for one in self.parties]
        self._idle = self._waits = self._turns = 0

    # Parties that take part.

    def _puppet(self, name: str) -> RoleContext:
        """The context of one that seals or attests wherever it stands."""
        return replace(context(self, name), policy=replace(self.policy, without_fee=True))

    def _trainer(self, kind: Kind | None) -> Party:
        step = self.draw.randrange(15)
        own = Random(self.draw.random())
        return Party("trainer", kind, lambda: trainer_of(kind, context(self, "trainer"), self.job, step=step, draw=own))

    def auditor(self, name: str, kind: Kind | None) -> Party:
        """An auditor, or whoever calls itself one."""
        step, own = self.draw.randrange(15), Random(self.draw.random())
        party = Party(name, kind, lambda: make())
        takes_time = kind is None and self.draw.random() < 0.5

        def make() -> JobRole:
            if takes_time:
                if party.role is not None:
                    party.role.close()
                party.paced = Paced()
                return AuditorRole(replace(context(self, name), background_jobs=party.paced), self.job)
            where = self._puppet(name) if kind in (Kind.LIE, Kind.CHEAT, Kind.LAZY) else context(self, name)
            runs = list((self.root / "trainer").glob("job-*/run")) if self.is_blind else []
            return auditor_of(kind, where, self.job, step=step, draw=own, whispered=runs[0] if runs else None)

        return party

    # The course.

    def strike(self, fault: str, draw: Random) -> None:
        if fault == "kill":
            party = draw.choice(self.parties)
            party.role = party.role and party.make()
            self.counts["kills"] += 1
        elif fault == "store":
            self.shaky.is_away = self.is_shaky and not self.shaky.is_away
        for _ in range(draw.randint(1, 5)):
            if not self.is_over:
                self._turn(draw)
        if draw.random() < 0.1:
            self._require_what_status_shows()

    def _require_what_status_shows(self) -> None:
        """Bonds, escrows and credits of all accounts are what lies in the contract."""
        shown = [read_summary(self.contract, sender.address) for sender in self.senders.values()]
        assert all(next_step(job, one.now) for one in shown for job in one.jobs)
        held = sum(one.bonds + one.escrow + one.due + one.credit for one in shown)
        assert held == self.contract_balance(), f"{held} wei are shown, {self.contract_balance()} are there"

    def _turn(self, draw: Random) -> None:
        """Let everybody who is awake look once, and time pass."""
        self._turns += 1
        assert self._turns < MOST_TURNS, f"the market does not end: {self.describe()}"
        self.shaky.is_away &= self.status in UNDECIDED
        busy = False
        for party in draw.sample(self.parties, len(self.parties)):
            if party.finished or draw.random() >= party.wakes:
                continue
            party.role = party.role or party.make()
            progress = party.role.step()
            if party.paced is not None:
                party.paced.take(draw.randint(0, 6))
            party.last = f"{'finished: ' if progress.finished else ''}{progress.state}"
            if progress.acted:
                self.node.advance_time(draw.randint(1, 30))
            busy |= progress.acted or (party.honest and progress.working)
        if draw.random() < 0.8:
            busy |= self.chain.mine()
            self.node.advance_time(12)
        self.is_over = self.status not in UNDECIDED and all(party.finished for party in self.parties if party.honest)
        self._idle = 0 if busy else self._idle + 1
        self._waits = self._waits + 1 if busy and self.shaky.is_away else 0
        if self._idle >= 3:
            self._idle = 0
            self._pass_time(draw)
        elif self._waits >= 5:
            self._waits = 0  # what waits for the store has time to notice that it is late
            self._pass_time(draw, at_most=3)

    def _pass_time(self, draw: Random, at_most: int = 1) -> None:
        """The next instant at which anything ends comes, the second before it, or the second after; or a part of the
        time until then, at most one of `at_most`. Nobody honest has anything to do before that it can do."""
        now, view = self.node.now(), self.view
        audits, claim = view.audits, view.claim
        ends = [audits.audit_deadline, audits.opening_deadline, audits.audit_opening_deadline, audits.appeal_deadline]
        ends += [claim.challenge_deadline, view.commit_deadline if view.status is JobStatus.OPEN else 0]
        for number in self.contract.games_of(self.job):
            ends += self.contract.game(number).deadlines
        left = [end + second - now for end in ends for second in (-1, 0, 1)]
        wait = min([one for one in left if one > 0], default=600)
        parts = at_most if draw.random() < 0.7 else draw.randint(max(2, at_most), 6)
        self.node.advance_time(max(1, wait // parts))

    # Its end.

    @property
    def view(self) -> JobView:
        return self.contract.job(self.job)

    def end(self) -> list[str]:
        self.is_shaky = self.shaky.is_away = False
        while not self.is_over:
            self._turn(self.draw)
        self.told.append(self.status.name)
        self.counts["games"] += len(self.contract.games_of(self.job))
        addresses = {str(self.senders[party.name].address): party.name for party in self.parties if party.honest}
        found = left_behind(self.contract, self.job, addresses)
        found += losses(self.contract, self.job, addresses, self._clean_up())
        trainer = self.parties[0].kind
        if self.status is JobStatus.FINAL and trainer in WRONG_CLAIMS:
            found.append("a wrong claim is FINAL")
        if self.status is JobStatus.REJECTED and trainer is None:
            found.append("the claim of an honest trainer is REJECTED")
        if self.contract_balance() != 0:
            found.append(f"{self.contract_balance()} wei are nobody's")
        return [f"{one} ({self.describe()})" for one in found]

    def close(self) -> None:
        for party in self.parties:
            if party.role is not None:
                party.role.close()

    def _clean_up(self) -> dict[str, int]:
        """Give everybody what is theirs, and return what each has gained or lost, fees aside."""
        self.chain.mine()
        self.chain.is_slow = False
        for sender in self.senders.values():
            sender.poll()
        anyone = self.contract.by(self.senders["referee"])
        for audit in self.contract.audits_of(self.job):
            try:
                anyone.send(ContractCall.of("collect", self.job, audit.auditor))
            except ContractError as error:
                assert error.name in ("NothingToCollect", "TooEarly"), error
        for number in self.contract.games_of(self.job):
            if self.contract.game(number).bond_held:
                anyone.send(ContractCall.of("releaseBond", number))
        for sender in self.senders.values():
            if self.contract.credit_of(sender.address):
                self.contract.by(sender).send(ContractCall.of("withdraw"))
        return {name: self.balance(name) + one.fees - self.before[name] for name, one in self.senders.items()}

    def describe(self) -> str:
        games = [self.contract.game(number) for number in self.contract.games_of(self.job)]
        shown = [f"{one.phase.name} {one.outcome.name}{' appeal' if one.is_appeal else ''}" for one in games]
        live = sum(one.phase is not Phase.OVER for one in games)
        parties = "; ".join(f"{one.name} ({one.kind or 'honest'}): {one.last}" for one in self.parties)
        return f"{self.status.name}, games {shown} ({live} live), {parties}"
