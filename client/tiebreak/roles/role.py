"""The base of all roles: repeated looks at the chain, in a loop that outlives outages."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from tiebreak.deadlines import Pauses
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles.background_jobs import Interrupted
from tiebreak.roles.notices import OUTAGES, Look, Notice, Progress, Warnings, What, sentence
from tiebreak.roles.transaction_queue import Order
from tiebreak.rpc.chain_errors import AccountError, ChainError, ContractError

if TYPE_CHECKING:
    from tiebreak.contract.contract_calls import ContractCall
    from tiebreak.roles.context import RoleContext
    from tiebreak.rpc.answers import TransactionReceipt

LOOKS = 3
"""Times in a row that a role has to see the same reason. A single answer may come from a node that lags behind, or from
a block that is taken back."""


class Role(ABC):
    """A role that works one `step` at a time. All that it keeps in memory it can find again."""

    name: str

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self.stop = context.contract.node.stop or threading.Event()
        """Once set, the role ends at its next wait, and long work at its next training step."""
        self._warnings = Warnings()

    @abstractmethod
    def look(self) -> Progress:
        """Decides what is due, on the newest view of the chain, and orders it. Waits for nothing.

        Raises ChainError, StoreError and OSError when something cannot be reached now, Interrupted when told to
        stop."""

    @abstractmethod
    def doing(self) -> list[str]:
        """Long work under way, one clause each."""

    def step(self) -> Progress:
        """One look at the chain, and all calls that can be made now."""
        queue = self.context.queue
        queue.look()
        progress = self.look()
        if (held := queue.held()) is not None:
            # One job of many may be held back: the others' next instant counts if it is earlier.
            until = min((one for one in (held.until, progress.until) if one is not None), default=None)
            progress = replace(progress, until=until)
        return replace(progress, acted=queue.flush() or progress.acted, working=progress.working or queue.is_busy)

    def run(self, *, poll: float = 1.0, heartbeat: float = 60.0) -> Progress:
        """Steps until the role has finished or `stop` is set. Waits `poll` seconds when there is nothing to do, and
        longer and longer during an outage of the chain, the store or the disk, which it reports. Tells a heartbeat
        every `heartbeat` seconds."""
        progress = Progress(state="not started")
        pauses = Pauses(first=poll, most=max(poll, 30.0))
        pulse = Pulse(self, heartbeat)
        try:
            while not self.stop.is_set() and not progress.finished:
                try:
                    progress = self.step()
                    self.context.on_look(Look(progress=progress))
                    pauses.reset()
                    pause = poll
                except AccountError:
                    raise
                except OUTAGES as error:
                    progress = Progress(state=sentence(error), stake=progress.stake, deadline=progress.deadline)
                    self.tell(What.WARNING, progress.state)
                    self.context.on_look(Look(progress=progress, outage=error))
                    pause = pauses.next()
                except Interrupted:
                    progress, pause = Progress(state="interrupted"), poll
                pulse.beat(progress)
                if not progress.acted and not progress.finished:
                    self.stop.wait(pause)
        finally:
            # However the role ends: nobody waits for what its threads would come to.
            self.context.background_jobs.close()
        return progress

    def tell(
        self,
        what: What,
        text: str,
        *,
        job: int | None = None,
        game: int | None = None,
        receipt: TransactionReceipt | None = None,
    ) -> None:
        """Tells a notice; a warning only if it is new."""
        notice = Notice(role=self.name, what=what, text=text, job=job, game=game, receipt=receipt)
        if what is not What.WARNING or self._warnings.is_new(notice):
            self.context.notify(notice)

    def repeated_warnings(self) -> str:
        """Number of repeated warnings since the last call, in one clause; empty if there were none."""
        return self._warnings.summary()

    def order(self, text: str, call: ContractCall, *, job: int | None = None, game: int | None = None) -> bool:
        """Orders a call of the contract, to be sent with this look. If the contract refuses it, mostly because another
        account was faster, the next look sees that. False if the call is under way already, or held back."""

        def sent(receipt: TransactionReceipt) -> None:
            self.tell(What.SENT, text, job=job, game=game, receipt=receipt)

        def failed(error: ChainError) -> None:
            if isinstance(error, ContractError) and error.name == "TooEarly":
                # Nodes try calls at the time of their newest block, which is earlier than the time of the next one.
                return
            self.tell(What.WARNING, f"could not {text}: {error}", job=job, game=game)

        return self.context.queue.put(Order(call=call, sent=sent, failed=failed))

    def withdraw(self) -> bool:
        """Withdraws this account's credit from the contract. False if there is none."""
        credit = self.context.queue.credit()
        if credit:
            self.order(f"withdraw {in_ether(credit)}", self.context.contract.withdraw())
        return credit > 0


class Pulse:
    """A heartbeat at the first look, and then every `seconds` seconds."""

    def __init__(self, role: Role, seconds: float) -> None:
        self._role, self._seconds = role, seconds
        self._next = float("-inf")

    def beat(self, progress: Progress) -> None:
        """Tells the heartbeat if it is due."""
        now = self._role.context.clock()
        if now < self._next or progress.finished:
            return
        self._next = now + self._seconds
        self._role.tell(What.HEARTBEAT, self.line(progress))

    def line(self, progress: Progress) -> str:
        """The state of the role, in one sentence."""
        parts = [*self._role.doing(), progress.state or "waits"]
        parts.append(f"{in_ether(progress.stake)} at stake" if progress.stake else "nothing at stake")
        if progress.deadline is not None:
            left = progress.deadline - self._role.context.now()
            parts.append(f"has to move within {in_time(left)}" if left >= 0 else "is out of time")
        if progress.until is not None:
            parts.append(f"nothing to do for {in_time(max(0, progress.until - self._role.context.now()))}")
        if repeated := self._role.repeated_warnings():
            parts.append(repeated)
        return "; ".join(parts)


class Ending:
    """A count of how often in a row a role has seen the same reason to end."""

    def __init__(self, confirmations: int) -> None:
        self._confirmations = confirmations
        self._why = ""
        self._looks = 0
        self._first_block = 0

    def seen(self, why: str, block: int) -> bool:
        """Counts a sight of `why` (one clause; another clause starts the count anew) at the newest block `block`.
        Returns whether the role may leave."""
        if why != self._why or block < self._first_block:
            self._why, self._looks, self._first_block = why, 0, block
        self._looks += 1
        return self._looks >= LOOKS and block >= self._first_block + self._confirmations

    def clear(self) -> None:
        """Forgets the reason, because there is something to do after all."""
        self._why = ""
