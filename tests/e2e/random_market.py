"""Markets of audits, drawn from a seed: who takes part, how each misbehaves, when it wakes, and how far apart blocks
are.

What has to hold in each is written down here without any knowledge of how roles or the contract work.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_hash.auto import keccak
from tiebreak.contract.enums import AuditStatus, JobStatus, Phase
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.rpc.chain_errors import ContractError, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.store import FolderStore
from tiebreak.store.store_errors import StoreUnavailable
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.dishonest_queues import SilentQueue
from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer

from tests.e2e.market import BLIND, FEE, OPEN, context
from tests.e2e.paced import Paced
from tests.e2e.world import CountingSender, World

HONEST = "honest"
TRAINERS = (HONEST, HONEST, HONEST, "poisoning", "poisoning", "resigning", "hesitating", "sleeping")
AUDITORS = (HONEST, HONEST, "lying", "lazy", "sealing", "resigning", "hesitating")
AUDITOR_NAMES = ("auditor", "second", "third", "fourth", "fifth")
OVER = (JobStatus.FINAL, JobStatus.LAPSED, JobStatus.REJECTED, JobStatus.EXPIRED)
MOST_ROUNDS = 600
_OPENINGS = ("openClaim", "openAudit")


class SlowChain(Transport):
    """A chain on which transactions wait for the next block: several at once, those of all accounts in any order."""

    name = "the slow chain"

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chain, self._chance = EmbeddedChain(), chance
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
        """Takes what waits. Returns whether anything did."""
        pool, self._pool = self._pool, []
        for account in self._chance.sample(all_ := sorted({account for account, _ in pool}), len(all_)):
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


class SleepyQueue(TransactionQueue):
    """A queue that never opens what was sealed."""

    def put(self, order: Order) -> bool:
        return order.call.function not in _OPENINGS and super().put(order)


def hesitating(chance: random.Random) -> Callable[[VerificationGame, Sender], TransactionQueue]:
    """A queue that forgets most of its orders, and so is late at times."""

    class HesitatingQueue(TransactionQueue):
        def put(self, order: Order) -> bool:
            return chance.random() < 0.3 and super().put(order)

    return HesitatingQueue


@dataclass
class Party:
    """`make`: its role, made anew after a kill. `wakes`: the share of rounds in which it looks."""

    name: str
    kind: str
    make: Callable[[], JobRole]
    wakes: float = 1.0
    paced: Paced | None = None
    """Its background jobs, if its runs take time."""
    role: JobRole | None = None
    last: str = ""

    @property
    def honest(self) -> bool:
        return self.kind == HONEST

    @property
    def finished(self) -> bool:
        return self.last.startswith("finished")


class RandomMarket(World):
    """A market with one job. `play` plays it to its end; `violations` says what must not have happened."""

    def __init__(self, seed: int, root: Path) -> None:
        self.chance = random.Random(seed)
        self.chain = SlowChain(self.chance)
        super().__init__(ChainNode(self.chain), root)
        self.shaky = ShakyStore(self.store)
        self.store = self.shaky  # type: ignore[assignment]
        for i, name in enumerate(AUDITOR_NAMES[2:]):
            self.senders[name] = CountingSender(self.node, devnet_account(6 + i))
            self.before[name] = self.balance(name)
        draw = self.chance
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
        self.trainer_kind = draw.choice(TRAINERS)
        trainer = Party("trainer", self.trainer_kind, lambda: self._trainer(self.trainer_kind))
        kinds = [HONEST, *(draw.choice(AUDITORS) for _ in range(draw.choice((1, 2, 3))))]
        draw.shuffle(kinds)
        auditors = [self.party(name, kind) for name, kind in zip(AUDITOR_NAMES, kinds, strict=False)]
        self.parties = [trainer, *auditors, Party("customer", HONEST, self.customer)]
        for party in self.parties:
            if not party.honest:
                party.wakes = draw.choice((0.2, 0.6, 1.0))

    # Parties that take part.

    def _context(
        self, name: str, queue: Callable[[VerificationGame, Sender], TransactionQueue] = TransactionQueue
    ) -> RoleContext:
        return replace(context(self, name), make_queue=queue)

    def _puppet(self, name: str) -> RoleContext:
        """The context of one that seals or attests wherever it stands."""
        return replace(context(self, name), policy=replace(self.policy, without_fee=True))

    def _trainer(self, kind: str) -> TrainerRole:
        match kind:
            case "poisoning":
                return poisoning_trainer(context(self, "trainer"), self.job, poisoned_step=7)
            case "resigning":
                return TrainerRole(self._context("trainer", SilentQueue), self.job)
            case "hesitating":
                return TrainerRole(self._context("trainer", hesitating(self.chance)), self.job)
            case "sleeping":
                return TrainerRole(self._context("trainer", SleepyQueue), self.job)
        return TrainerRole(context(self, "trainer"), self.job)

    def party(self, name: str, kind: str) -> Party:
        """An auditor, or whoever calls itself one."""
        step = self.chance.randrange(15)
        party = Party(name, kind, lambda: make())
        takes_time = kind == HONEST and self.chance.random() < 0.5

        def make() -> JobRole:
            if takes_time:
                if party.role is not None:
                    party.role.close()
                party.paced = Paced()
                return AuditorRole(replace(context(self, name), background_jobs=party.paced), self.job)
            match kind:
                case "lying":
                    return lying_auditor(self._puppet(name), self.job, first_wrong_step=step)
                case "lazy":
                    runs = list((self.root / "trainer").glob("job-*/run"))
                    if runs and self.is_blind:
                        return lazy_auditor(self._puppet(name), self.job, whispered=runs[0])
                case "sealing":
                    return AuditorRole(self._context(name, SleepyQueue), self.job)
                case "resigning":
                    return AuditorRole(self._context(name, SilentQueue), self.job)
                case "hesitating":
                    return AuditorRole(self._context(name, hesitating(self.chance)), self.job)
            return AuditorRole(context(self, name), self.job)

        return party

    # The course.

    def play(self) -> None:
        idle = waits = 0
        for _ in range(MOST_ROUNDS):
            draw = self.chance
            if self.is_shaky and draw.random() < (0.1 if self.shaky.is_away else 0.05):
                self.shaky.is_away = not self.shaky.is_away
            self.shaky.is_away &= self.status not in OVER
            busy = False
            for party in draw.sample(self.parties, len(self.parties)):
                if party.finished or draw.random() >= party.wakes:
                    continue
                if party.role is None or draw.random() < 0.03:
                    party.role = party.make()
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
            if self.status in OVER and all(party.finished for party in self.parties if party.honest):
                return
            idle = 0 if busy else idle + 1
            waits = waits + 1 if busy and self.shaky.is_away else 0
            if idle >= 3:
                idle = 0
                self._pass_time()
            elif waits >= 5:
                waits = 0  # what waits for the store has time to notice that it is late
                self._pass_time(at_most=3)
        raise AssertionError(f"the market does not end: {self.describe()}")

    def _pass_time(self, at_most: int = 1) -> None:
        """The next instant at which anything ends comes, the second before it, or the second after; or a part of the
        time until then, at most one of `at_most`. Nobody honest has anything to do before that it can do."""
        draw, now, view = self.chance, self.node.now(), self.view
        audits, claim = view.audits, view.claim
        ends = [audits.audit_deadline, audits.opening_deadline, audits.audit_opening_deadline, audits.appeal_deadline]
        ends += [claim.challenge_deadline, view.commit_deadline if view.status is JobStatus.OPEN else 0]
        for number in self.contract.games_of(self.job):
            ends += self.contract.game(number).deadlines
        left = [end + second - now for end in ends for second in (-1, 0, 1)]
        wait = min([one for one in left if one > 0], default=600)
        parts = at_most if draw.random() < 0.7 else draw.randint(max(2, at_most), 6)
        self.node.advance_time(max(1, wait // parts))

    # Rules that have to hold.

    @property
    def view(self) -> JobView:
        return self.contract.job(self.job)

    def violations(self) -> list[str]:
        honest = [party for party in self.parties if party.honest]
        found = [f"{party.name} has left {text}" for party in honest for text in self._left(party)]
        gains = self._clean_up()
        status, claimed_right = self.view.status, self.trainer_kind != "poisoning"
        found += [f"{one.name}, honest, has {gains[one.name]} wei" for one in honest if self._has_lost(one, gains)]
        if status is JobStatus.FINAL and not claimed_right:
            found.append("a wrong claim is FINAL")
        if status is JobStatus.REJECTED and self.trainer_kind == HONEST:
            found.append("the claim of an honest trainer is REJECTED")
        if self.contract_balance() != 0:
            found.append(f"{self.contract_balance()} wei are nobody's")
        return found

    def _has_lost(self, party: Party, gains: dict[str, int]) -> bool:
        if party.name == "customer":
            return gains["customer"] < -(self.terms.reward if self.view.status is JobStatus.FINAL else 0) - self._fees()
        return party.honest and gains[party.name] < self._share(party)

    def _fees(self) -> int:
        """What the customer pays at most for the attestations that it got, unless a verdict has taken them."""
        attested = sum(bool(audit.model_cid) for audit in self.contract.audits_of(self.job))
        if self.view.audits.lost or self.view.status is JobStatus.EXPIRED:
            return 0
        share = self.terms.audit_fee // self.terms.attestations_needed
        is_final = self.view.status is JobStatus.FINAL
        return self.terms.audit_fee if is_final else share * min(attested, self.terms.attestations_needed)

    def _share(self, party: Party) -> int:
        """What an honest auditor was sure of when it got its place; nothing if it challenges: then a game pays."""
        mine = self.senders[party.name].address
        first = self.contract.audits_of(self.job)[: self.terms.attestations_needed]
        if not any(audit.auditor == mine and audit.status is not AuditStatus.CHALLENGED for audit in first):
            return 0
        return self.terms.audit_fee // self.terms.attestations_needed

    def _left(self, party: Party) -> list[str]:
        address = self.senders[party.name].address
        found = ["credit"] if self.contract.credit_of(address) else []
        for audit in self.contract.audits_of(self.job):
            lost = self.view.audits.lost and audit.status is AuditStatus.ATTESTED
            if audit.auditor == address and audit.status in (AuditStatus.SEALED, AuditStatus.ATTESTED) and not lost:
                found.append(f"an audit, {audit.status.name}")
        for number in self.contract.games_of(self.job):
            game = self.contract.game(number)
            if game.bond_held and game.challenger == address and not game.is_appeal:
                found.append(f"the bond of game {number}")
        return found

    def _clean_up(self) -> dict[str, int]:
        """Gives everybody what is theirs, and returns what each has gained or lost, fees aside."""
        self.chain.mine()
        self.chain.is_slow = False
        for sender in self.senders.values():
            sender.poll()
        anyone = self.contract.by(self.senders["referee"])
        for audit in self.contract.audits_of(self.job):
            try:
                anyone.send(anyone.collect(self.job, audit.auditor))
            except ContractError as error:
                assert error.name in ("NothingToCollect", "TooEarly"), error
        for number in self.contract.games_of(self.job):
            if self.contract.game(number).bond_held:
                anyone.send(anyone.release_bond(number))
        for sender in self.senders.values():
            if self.contract.credit_of(sender.address):
                self.contract.by(sender).send(self.contract.by(sender).withdraw())
        return {
            name: self.balance(name) + sender.fees - self.before[name]
            for name, sender in self.senders.items()
            if name in ("customer", "trainer", *AUDITOR_NAMES)
        }

    def describe(self) -> str:
        games = [self.contract.game(number) for number in self.contract.games_of(self.job)]
        shown = [f"{one.phase.name} {one.outcome.name}{' appeal' if one.is_appeal else ''}" for one in games]
        live = sum(one.phase is not Phase.OVER for one in games)
        parties = "; ".join(f"{one.name} ({one.kind}): {one.last}" for one in self.parties)
        kinds = {"shaky": self.is_shaky, "slow": self.chain.is_slow, "blind": self.is_blind}
        shown_kinds = [kind for kind, holds in kinds.items() if holds]
        return f"{shown_kinds}, {self.status.name}, games {shown} ({live} live), {parties}"
