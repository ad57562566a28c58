"""What all roles have in common: one step at a time, a loop around it, and a way to send that outlives races."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from roundlog.run import StepEvent

from tiebreak.chain.errors import ChainError, ContractError
from tiebreak.chain.node import Receipt
from tiebreak.chain.records import Job
from tiebreak.roles.notices import Notice, Progress, What
from tiebreak.roles.station import Station
from tiebreak.store import StoreError


class Interrupted(Exception):
    """The role was told to stop in the middle of long work, which it will take up again where it stood."""


class Role(ABC):
    """Does what is possible, one `step` at a time. Whatever it remembers in memory it can find again."""

    name: str

    def __init__(self, station: Station) -> None:
        self.station = station
        self.stop = threading.Event()
        """Set it, and the role stops at the next training step or the next wait."""
        self.meanwhile: Callable[[], None] | None = None
        """Called between the steps of long work, every few seconds: the place to look after other duties."""
        self.patience = 1.0
        self._looked_up = time.monotonic()

    @abstractmethod
    def step(self) -> Progress:
        """Does everything that can be done now, and says how things stand.

        Raises ChainError and StoreError when something cannot be reached now, Interrupted when told to stop."""

    def run(self, *, poll: float = 1.0) -> Progress:
        """Steps until the role has finished or `stop` is set; waits `poll` seconds where there is nothing to do, and
        after an outage of the chain or the store, which it reports and outlives."""
        self.patience = poll
        progress = Progress(state="not started")
        while not self.stop.is_set() and not progress.finished:
            try:
                progress = self.step()
            except (ChainError, StoreError) as error:
                progress = Progress(state=str(error))
                self.tell(What.WARNING, str(error))
            except Interrupted:
                progress = Progress(state="interrupted")
            if not progress.acted and not progress.finished:
                self.stop.wait(poll)
        return progress

    def tell(
        self,
        what: What,
        text: str,
        *,
        job: int | None = None,
        game: int | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        self.station.notify(Notice(role=self.name, what=what, text=text, job=job, game=game, receipt=receipt))

    def send(self, text: str, call: Callable[[], Receipt], *, job: int | None = None, game: int | None = None) -> bool:
        """Sends a transaction; False if the contract refuses it, mostly because somebody else has been faster. The
        next step looks again."""
        try:
            receipt = call()
        except ContractError as error:
            self.tell(What.WARNING, f"could not {text}: {error}", job=job, game=game)
            return False
        self.tell(What.SENT, text, job=job, game=game, receipt=receipt)
        return True

    def withdraw(self) -> bool:
        """Fetches what the contract owes to this account; False if that is nothing."""
        credit = self.station.contract.credit_of(self.station.address)
        return credit > 0 and self.send(f"withdraw {credit} wei", lambda: self.station.contract.withdraw()[1])

    def on_step(self, job: int, total: int, doing: str) -> Callable[[StepEvent], None]:
        """A callback for the engine: reports progress, looks after other duties, and obeys `stop`."""

        def told(event: StepEvent) -> None:
            self.station.notify(
                Notice(
                    role=self.name,
                    what=What.STEP,
                    text=doing,
                    job=job,
                    done=event.step + 1,
                    total=total,
                    loss=event.loss,
                )
            )
            if self.stop.is_set():
                raise Interrupted
            if self.meanwhile is not None and time.monotonic() - self._looked_up >= self.patience:
                self._looked_up = time.monotonic()
                self.meanwhile()

        return told


class JobRole(Role):
    """A role in one job."""

    def __init__(self, station: Station, job: int) -> None:
        super().__init__(station)
        self.job = job

    def posted(self) -> Job | None:
        """The job as the chain shows it now; None if there is no such job."""
        try:
            return self.station.contract.job(self.job)
        except ContractError as error:
            if error.name == "WrongJobStatus":
                return None
            raise

    @abstractmethod
    def attend(self) -> Progress:
        """The part of `step` that cannot wait: moves in games, deadlines, money. Starts no long work."""

    def no_job(self) -> Progress:
        return Progress(finished=True, state=f"there is no job {self.job}")

    def notify_job(self, what: What, text: str, *, game: int | None = None) -> None:
        self.tell(what, text, job=self.job, game=game)
