"""The base of all roles: repeated looks at the chain, in a loop that outlives outages.

The base of roles in one job: looks at the job, and leaves it in the end; and the follower of many jobs in one process,
which looks for new ones and gives each a role. No job waits for another."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from roundlog.arithmetic import MachineError

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import Phase
from tiebreak.contract.structs import JobView
from tiebreak.http_client import Pauses
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles.background_jobs import Interrupted
from tiebreak.roles.fetched_content import Refused
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import OUTAGES, Notice, Progress, Warnings, What, sentence, together
from tiebreak.roles.transaction_queue import Order
from tiebreak.rpc.chain_errors import AccountError, ChainError, ContractError, NotConfirmed
from tiebreak.transactions.spending import SpendingLimit

if TYPE_CHECKING:
    from tiebreak.contract.structs import AuditView, GameView
    from tiebreak.roles.context import RoleContext
    from tiebreak.rpc.answers import TransactionReceipt
    from tiebreak.transactions.signer import Funds


LOOKS = 3
"""Times in a row that a role has to see the same reason. A single answer may come from a node that lags behind, or from
a block that is taken back."""


class Role(ABC):
    """A role that works one `step` at a time. All that it keeps in memory it can find again."""

    name: str
    job: int | None = None
    """The job that the role is about, if it is about one."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self.stop = context.contract.node.stop or threading.Event()
        """Once set, the role ends at its next wait, and long work at its next training step."""
        self._warnings = Warnings()

    @abstractmethod
    def look(self) -> Progress:
        """Decide what is due, on the newest view of the chain, and order it. Waits for nothing.

        Raises ChainError, StoreError and OSError when something cannot be reached now, Interrupted when told to
        stop."""

    @abstractmethod
    def doing(self) -> list[str]:
        """Long work under way, one clause each."""

    def step(self) -> Progress:
        """Return one look at the chain, and all calls that can be made now."""
        queue = self.context.queue
        queue.look()
        progress = self.look()
        if (reached := queue.reached_limit()) is not None:
            # One job of many may be held back: the others' next instant counts if it is earlier.
            until = min((one for one in (reached.until, progress.until) if one is not None), default=None)
            progress = replace(progress, until=until)
        return replace(progress, acted=queue.flush() or progress.acted, working=progress.working or queue.is_busy)

    def run(self, *, poll: float = 1.0, heartbeat: float = 60.0) -> Progress:
        """Step until the role has finished or `stop` is set. Waits `poll` seconds when there is nothing to do, and
        longer and longer during an outage of the chain, the store or the disk, which it reports. Tells a heartbeat
        every `heartbeat` seconds."""
        progress = Progress(state="not started")
        pauses = Pauses(first=poll, most=max(poll, 30.0))
        next_beat = float("-inf")
        try:
            while not self.stop.is_set() and not progress.finished:
                try:
                    progress = self.step()
                    self.context.on_look(progress, None)
                    pauses.reset()
                    pause = poll
                except AccountError:
                    raise
                except OUTAGES as error:
                    progress = Progress(state=sentence(error), stake=progress.stake, deadline=progress.deadline)
                    self.tell(What.WARNING, progress.state)
                    self.context.on_look(progress, error)
                    pause = pauses.next()
                except Interrupted:
                    progress, pause = Progress(state="interrupted"), poll
                if (now := self.context.clock()) >= next_beat and not progress.finished:
                    next_beat = now + heartbeat
                    self.tell(What.HEARTBEAT, self._state_line(progress))
                if not progress.acted and not progress.finished:
                    self.stop.wait(pause)
        finally:
            # However the role ends: nobody waits for what its threads would come to.
            self.context.background_jobs.close()
        return progress

    def _state_line(self, progress: Progress) -> str:
        """Return the state of the role, in one sentence."""
        parts = [*self.doing(), progress.state or "waits"]
        parts.append(f"{in_ether(progress.stake)} at stake" if progress.stake else "nothing at stake")
        if progress.deadline is not None:
            left = progress.deadline - self.context.now()
            parts.append(f"has to move within {in_time(left)}" if left >= 0 else "is out of time")
        if progress.until is not None:
            parts.append(f"nothing to do for {in_time(max(0, progress.until - self.context.now()))}")
        return "; ".join(parts)

    def tell(
        self,
        what: What,
        text: str,
        *,
        job: int | None = None,
        game: int | None = None,
        receipt: TransactionReceipt | None = None,
    ) -> None:
        """Tell a notice; a warning, or what is at stake, only if it is new. text: one sentence without a full stop.
        job: None for the role's own, if it has one; 0 for none."""
        about = self.job if job is None else job or None
        notice = Notice(role=self.name, what=what, text=text, job=about, game=game, receipt=receipt)
        if what not in (What.WARNING, What.STAKED) or self._warnings.is_new(notice):
            self.context.notify(notice)

    def order(self, text: str, call: ContractCall, *, job: int | None = None, game: int | None = None) -> bool:
        """Order a call of the contract, to be sent with this look. text: what it does, in one clause. If the contract
        refuses it, mostly because another account was faster, the next look sees that. False if the call is under way
        already, or held back."""

        def sent(receipt: TransactionReceipt) -> None:
            self.tell(What.SENT, text, job=job, game=game, receipt=receipt)

        def failed(error: ChainError) -> None:
            if isinstance(error, ContractError) and error.name == "TooEarly":
                # Nodes try calls at the time of their newest block, which is earlier than the time of the next one.
                return
            self.tell(What.WARNING, f"could not {text}: {error}", job=job, game=game)

        return self.context.queue.put(Order(call=call, sent=sent, failed=failed))

    def withdraw(self) -> bool:
        """Withdraw this account's credit from the contract. False if there is none."""
        credit = self.context.queue.credit()
        if credit:
            self.order(f"withdraw {in_ether(credit)}", ContractCall.of("withdraw"), job=0)  # of all jobs
        return credit > 0


class Ending:
    """A count of how often in a row a role has seen the same reason to end."""

    def __init__(self, confirmations: int) -> None:
        self._confirmations = confirmations
        self._why = ""
        self._looks = 0
        self._first_block = 0

    def seen(self, why: str, block: int) -> bool:
        """Count a sight of `why` (one clause; another clause starts the count anew) at the newest block `block`.
        Returns whether the role may leave."""
        if why != self._why or block < self._first_block:
            self._why, self._looks, self._first_block = why, 0, block
        self._looks += 1
        return self._looks >= LOOKS and block >= self._first_block + self._confirmations

    def clear(self) -> None:
        """Forget the reason, because there is something to do after all."""
        self._why = ""


class JobRole(Role):
    """A role in one job. Its parts stand in classes of their own, and tell notices, order calls and leave through it.

    A part keeps nothing that the chain could take back; after a kill, or a reorganisation, it decides anew. A call that
    was ordered stays ordered, whatever fails later in the same look: a clock that has run out is claimed although the
    trees of another game cannot be had."""

    job: int

    def __init__(self, context: RoleContext, job: int) -> None:
        super().__init__(context)
        self.job = job
        self.address = context.address
        """The role's account."""
        self.chain_id = context.contract.node.chain_id
        self.calls = context.contract
        """Maker of calls of the contract; it sends none."""
        self.policy = context.policy
        self._ending = Ending(context.contract.node.confirmations)
        self.long_work = LongWork(context, job, role=self.name, tell=self.tell, stops=lambda: self.stop.is_set())
        self._leaves = False

    # Looking.

    def look(self) -> Progress:
        self.context.queue.watch.follow(self.job)
        posted = self.posted()
        if posted is None:
            # The node may lag behind, or the job may be posted later.
            return Progress(state=f"there is no job {self.job} yet")
        if posted.spec_hash != self.long_work.spec_hash:
            self._begin_anew(posted)
        self.long_work.mend_files()
        self._leaves = False
        try:
            progress = self.consider(posted)
        except Refused as error:
            if held := self.bond_held(posted):
                # Memory may be short at present, or a limit lower than when the bond was paid.
                self.tell(What.WARNING, self.refusal(str(error)))
                self.long_work.try_again()
                progress = Progress(state=self.refusal(str(error)), stake=held)
            else:
                progress = self.leave(self.refusal(str(error)))
                if progress.finished:
                    self._give_up_room(posted, refused=True)
                    return progress
        if not self._leaves:
            # There is something to do after all, so a reason to leave from an earlier look is void.
            self._ending.clear()
        if progress.finished:
            self._give_up_room(posted, refused=False)
        return progress

    def _give_up_room(self, posted: JobView, *, refused: bool) -> None:
        """Remove the fetched files of a job that was refused; all else of a job that was left goes when space is
        short."""
        room = self.context.room(self.job, posted)
        if refused:
            self.long_work.drop()
            self.context.rooms.remove_fetched(room)
        elif not self.bond_held(posted):
            self.context.rooms.leave(room)

    @abstractmethod
    def consider(self, posted: JobView) -> Progress:
        """Order what is due for the job in its present state. Raises Refused if nothing can ever be done."""

    @abstractmethod
    def refusal(self, why: str) -> str:
        """Return a sentence for leaving a job that the role cannot work on. why: a clause."""

    def bond_held(self, posted: JobView) -> int:
        """Return the wei of this account that the job holds as a bond. A role with a bond at stake does not leave when
        it cannot work at present."""
        return 0

    def leave(self, why: str) -> Progress:
        """End the role for a reason (a clause), after it has seen the same one often enough and deep enough, and has
        withdrawn all that it is owed."""
        self._leaves = True
        if self.context.contract.node.agreement.undecided:
            self._ending.clear()  # a node may have made the reason up
            return Progress(working=True, state=f"{why}, if the chain's nodes agree")
        if self.context.queue.is_busy or self.withdraw():
            return Progress(working=True, state=why)
        if not self._ending.seen(why, self.newest_block()):
            return Progress(working=True, state=f"{why}; looks once more")
        return Progress(finished=True, state=why)

    def _begin_anew(self, posted: JobView) -> None:
        """Drop results of another job. Results belong to a spec, not to the number that the chain has given to it."""
        if self.long_work.spec_hash is not None:
            self.tell(
                What.WARNING, f"job {self.job} is another job than before: a reorganisation has given its number away"
            )
        self.long_work.drop()
        self.long_work.spec_hash = posted.spec_hash
        self.context.rooms.enter(self.context.room(self.job, posted))

    def doing(self) -> list[str]:
        return self.long_work.doing()

    def close(self) -> None:
        """Free the memory of a finished role."""
        self.long_work.drop()
        self.context.queue.watch.unfollow(self.job)

    # The job as the chain shows it. All methods raise the errors of ChainNode.

    def now(self) -> int:
        """Return seconds since 1970 by the chain's clock: the timestamp of a block mined now."""
        return self.context.now()

    def newest_block(self) -> int:
        """Return the number of the newest block seen."""
        head = self.context.queue.watch.head
        assert head is not None, "look first"
        return head.number

    def posted(self) -> JobView | None:
        """Return the job as the chain shows it now; None if it shows none."""
        try:
            return self.context.queue.watch.job(self.job)
        except ContractError as error:
            if error.name == "WrongJobStatus":
                return None
            raise

    def _confirmed_job(self) -> JobView | None:
        """Return the job as blocks show it that lie deep enough; None if they do not show it yet."""
        try:
            return self.context.queue.watch.confirmed_job(self.job)
        except NotConfirmed:
            return None

    def confirmed(self, posted: JobView) -> bool:
        """Return whether the job and the claim on it are confirmed. Only then is a bond put on them."""
        deep = self._confirmed_job()
        if deep is None:
            return False
        return (deep.spec_hash, deep.terms, deep.claim) == (posted.spec_hash, posted.terms, posted.claim)

    def confirmed_verdict(self, posted: JobView) -> bool:
        """Return whether the verdict on the claim is confirmed. Only then is a bond put on an appeal."""
        deep = self._confirmed_job()
        return deep is not None and deep.status is posted.status and deep.audits.verdict == posted.audits.verdict

    def is_confirmed_after(self, instant: int) -> bool:
        """Return whether the newest block that lies deep enough is later than an instant (seconds since 1970), so that
        no reorganisation lets anybody act as if before it."""
        node = self.context.contract.node
        if node.confirmations == 0:
            return True
        block = node.block(max(0, self.newest_block() - node.confirmations))
        return block is not None and block.timestamp > instant

    def games(self, wanted: Callable[[GameView], bool]) -> dict[int, GameView]:
        """Return games of this job for which `wanted` is true, by their numbers."""
        found = self.context.queue.games_of(self.job)
        return {number: game for number, game in found.items() if wanted(game)}

    def live_games(self) -> dict[int, GameView]:
        """Return games of this job that are not over, including queued ones."""
        return self.games(lambda game: game.phase is not Phase.OVER)

    def audits(self) -> list[AuditView]:
        """Return audits of this job with a bond, in the order of their places."""
        return self.context.queue.watch.audits_of(self.job)

    def audit(self) -> AuditView | None:
        """Return this account's audit with a bond; None if it has none."""
        return next((audit for audit in self.audits() if audit.auditor == self.address), None)

    def missing_funds(self, bond: int) -> str | None:
        """Return the funds that this account lacks for a bond and the gas of a whole dispute, or the limit on spending
        that forbids the bond, in one sentence, which is told; None if there is neither. bond: wei."""
        found = self._funds(bond)  # first: limits are reckoned at its price of gas
        try:
            self.context.queue.require_allowed(self.job, bond)
        except SpendingLimit as error:
            self.tell(What.WARNING, str(error))
            return str(error)
        return self._tell_missing(found)

    def missing_reserve(self, wei: int) -> str | None:
        """Return the funds that this account lacks for an amount that no limit on spending holds back, and the gas of a
        whole dispute, in one sentence, which is told; None if none."""
        return self._tell_missing(self._funds(wei))

    def _funds(self, wei: int) -> Funds:
        return self.context.queue.funds(wei, self.context.clock(), job=self.job)

    def _tell_missing(self, found: Funds) -> str | None:
        """Return the sentence about missing funds, told; None if none are missing."""
        if not found.missing:
            return None
        self.tell(What.WARNING, found.sentence)
        return found.sentence


Make = Callable[[int, JobView], JobRole | None]
"""Makes the role of a job, in the follower's context; None for a job to be left alone for good."""


class JobFollower(Role):
    """A role that runs one role for each job on the chain. It never finishes by itself: set `stop`."""

    def __init__(self, context: RoleContext, name: str, make: Make) -> None:
        super().__init__(context)
        self.name = name
        self._make = make
        self._seen = 0
        self._roles: dict[int, JobRole] = {}

    def look(self) -> Progress:
        self._look_for_jobs()
        found = []
        for number, role in list(self._roles.items()):
            progress = self._guarded(role)
            found.append(progress)
            if progress.finished:
                self._roles.pop(number).close()
                self.tell(What.COMPUTED, progress.state, job=number)
        count = len(self._roles)
        return together(found, f"follows {count} {'job' if count == 1 else 'jobs'}")

    def doing(self) -> list[str]:
        return [clause for role in self._roles.values() for clause in role.doing()]

    def _look_for_jobs(self) -> None:
        queue = self.context.queue
        for number, posted in queue.jobs_after(self._seen):
            role = self._make(number, posted)
            if role is None:
                queue.watch.unfollow(number)
            else:
                role.stop = self.stop
                self._roles[number] = role
            self._seen = number

    def _guarded(self, role: JobRole) -> Progress:
        try:
            return role.look()
        except (Interrupted, MachineError, AccountError):
            raise  # not the job's fault, so that it says nothing about the job
        except OUTAGES as error:
            role.tell(What.WARNING, sentence(error))
            return Progress(state=sentence(error))
        except Exception as error:
            # An error in one job must not end the others; this job is looked at again.
            role.tell(What.WARNING, f"could not look after job {role.job} ({type(error).__name__}: {error})")
            return Progress(state=str(error))
