"""One job as the chain shows it to an account, and the decisions of the parts of a role about it, in the manner of
`tiebreak.game`: a part says what is due, and the role alone tells and orders it (`JobRole.carry_out`).

A part yields each action when it has decided on it, and goes on once the role has taken it. So an error later in the
same look takes no decision back: a clock that has run out is claimed although the trees of another game cannot be had.
A part keeps nothing that the chain could take back; after a kill, or a reorganisation, it decides anew.

A call of a function that decides does nothing by itself: another part takes its decisions by `yield from`, and a role
by `carry_out` or `progress_of`. tests/client/roles/test_job_decisions.py finds a call whose decisions nobody takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tiebreak.contract.enums import Phase
from tiebreak.roles.notices import Progress, What
from tiebreak.rpc.chain_errors import ContractError, NotConfirmed
from tiebreak.transactions.spending import SpendingLimit

if TYPE_CHECKING:
    from tiebreak.contract.contract_calls import ContractCall, GameCalls
    from tiebreak.contract.structs import AuditView, GameView, JobView
    from tiebreak.game.moves import Row
    from tiebreak.roles.context import RoleContext
    from tiebreak.transactions.signer import Funds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a notice about the job, or about the game `game` of it; a warning only if it is new.

    text: one sentence without a full stop."""

    what: What
    text: str
    game: int | None = None


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Order a call of the contract, about the job or about the game `game` of it, to be sent with this look.

    text: what the call does, in one clause."""

    text: str
    call: ContractCall
    game: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the job for the reason `why` (a clause), once it was seen often and deep enough and nothing is owed."""

    why: str


Action = Tell | MakeCall
"""An action of the role, taken when a part yields it."""

Decisions = Generator[Action, bool | None, T]
"""The actions of a part, and then its result. It is sent whether an ordered call was taken: a call that is under way
already, or held back, is not."""

WholeLook = Decisions[Progress | Leave]
"""The decisions of a whole look: the result is the progress, or a reason to leave."""


class JobOnChain:
    """The view of one job on the chain, in a role's context. All methods raise the errors of ChainNode."""

    def __init__(self, context: RoleContext, job: int) -> None:
        self.job = job
        self.chain_id = context.contract.node.chain_id
        self.address = context.address
        """The role's account."""
        self.calls: GameCalls = context.contract
        """Maker of calls of the contract; it sends none."""
        self.policy = context.policy
        self._context = context

    def now(self) -> int:
        """Seconds since 1970 by the chain's clock: the timestamp of a block mined now."""
        return self._context.now()

    def newest_block(self) -> int:
        """Number of the newest block seen."""
        head = self._context.queue.watch.head
        assert head is not None, "look first"
        return head.number

    def block_seconds(self) -> float:
        """Seconds between two blocks; measured once."""
        return self._context.queue.block_seconds()

    def posted(self) -> JobView | None:
        """The job as the chain shows it now; None if it shows none."""
        try:
            return self._context.queue.watch.job(self.job)
        except ContractError as error:
            if error.name == "WrongJobStatus":
                return None
            raise

    def _confirmed_job(self) -> JobView | None:
        """The job as blocks show it that lie deep enough; None if they do not show it yet."""
        try:
            return self._context.queue.watch.confirmed_job(self.job)
        except NotConfirmed:
            return None

    def confirmed(self, posted: JobView) -> bool:
        """Whether the job and the claim on it are confirmed. Only then is a bond put on them."""
        deep = self._confirmed_job()
        if deep is None:
            return False
        return (deep.spec_hash, deep.terms, deep.claim) == (posted.spec_hash, posted.terms, posted.claim)

    def confirmed_verdict(self, posted: JobView) -> bool:
        """Whether the verdict on the claim is confirmed. Only then is a bond put on an appeal."""
        deep = self._confirmed_job()
        return deep is not None and deep.status is posted.status and deep.audits.verdict == posted.audits.verdict

    def is_confirmed_after(self, instant: int) -> bool:
        """Whether the newest block that lies deep enough is later than an instant (seconds since 1970), so that no
        reorganisation lets anybody act as if before it."""
        node = self._context.contract.node
        if node.confirmations == 0:
            return True
        block = node.block(max(0, self.newest_block() - node.confirmations))
        return block is not None and block.timestamp > instant

    def games(self, wanted: Callable[[GameView], bool]) -> dict[int, GameView]:
        """Games of this job for which `wanted` is true, by their numbers."""
        found = self._context.queue.games_of(self.job)
        return {number: game for number, game in found.items() if wanted(game)}

    def live_games(self) -> dict[int, GameView]:
        """Games of this job that are not over, including queued ones."""
        return self.games(lambda game: game.phase is not Phase.OVER)

    def audits(self) -> list[AuditView]:
        """Audits of this job with a bond, in the order of their places."""
        return self._context.queue.watch.audits_of(self.job)

    def audit(self) -> AuditView | None:
        """This account's audit with a bond; None if it has none."""
        return next((audit for audit in self.audits() if audit.auditor == self.address), None)

    def shown_rows(self, game: int, *, everywhere: bool = False) -> tuple[Row, ...]:
        """Rows that the other side may have shown in a game (`ContractWatch.shown_rows`)."""
        return self._context.queue.watch.shown_rows(game, everywhere=everywhere)

    def posted_chunk(self, game: int) -> bytes | None:
        """The chunk that the trainer has posted in a game; None if the node does not show it."""
        return self._context.queue.watch.posted_chunk(game)

    def intention(self, posted: JobView) -> str:
        """The job's part in the name of a payment that is made once. A job's number alone is not unique: other
        contracts use it, too, and a reorganisation may give it to another job."""
        return f"job {self.job} of {self._context.contract.address} with spec 0x{posted.spec_hash.hex()}"

    def missing_funds(self, bond: int) -> Decisions[str | None]:
        """The funds that this account lacks for a bond and the gas of a whole dispute, or the limit on spending that
        forbids the bond, in one sentence, which is told; None if there is neither. bond: wei."""
        found = self._funds(bond)  # first: limits are reckoned at its price of gas
        try:
            self._context.queue.require_allowed(self.job, bond)
        except SpendingLimit as error:
            yield Tell(What.WARNING, str(error))
            return str(error)
        return (yield from _missing(found))

    def missing_reserve(self, wei: int) -> Decisions[str | None]:
        """The funds that this account lacks for an amount that no limit on spending holds back, and the gas of a whole
        dispute, in one sentence, which is told; None if none."""
        return (yield from _missing(self._funds(wei)))

    def _funds(self, wei: int) -> Funds:
        return self._context.queue.funds(wei, self._context.clock(), job=self.job)


def _missing(found: Funds) -> Decisions[str | None]:
    if not found.missing:
        return None
    yield Tell(What.WARNING, found.sentence)
    return found.sentence
