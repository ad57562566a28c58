"""Spending: what an account has put into new undertakings, on disk, and the limits on it by day and by job.

Limits hold back what begins something (`tiebreak.rpc.transport.UNDERTAKINGS`) and nothing else: a move in a live
game, the opening of a seal or an appeal that is not made costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from roundlog.storage import StorageError, read_record, write_record

from tiebreak.quantities import in_ether, in_utc
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.transactions.journal import Reserve

DAY = 86_400
"""Seconds of a day: the last 24 hours, whenever they begin. They are over once both clocks say so, the chain's and this
machine's: a node can make its time up."""

UNDERTAKING_GAS = 600_000
"""Gas reckoned for a new undertaking until it is paid; the dearest takes 433,190 (docs/how-to/operating.md)."""

_MOST_BYTES = 64 << 20


class SpendingLimit(ChainError):
    """A limit on spending holds an undertaking back. `until`: the instant (chain time) from which it may be paid; None
    if no time makes it possible."""

    def __init__(self, text: str, until: int | None = None) -> None:
        self.until = until
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class _Payment:
    """One undertaking. `at`: chain time; `by_us`: this machine's time; `wei`: value and fee; `settled`: whether that is
    what it came to."""

    job: str
    at: int
    wei: int
    settled: bool
    by_us: int


class Spending:
    """The payments of one account, kept in `directory`/spending.json from one process to the next.

    `per_day`, `per_job`: the most wei; None: any. `place`: chain and contract, whose jobs are counted apart. `today`:
    seconds since 1970 by this machine; None for a development chain, whose clock is set by hand. `reserve`: the disk's,
    which this record may take: without it nothing is paid."""

    def __init__(
        self,
        directory: Path,
        place: str,
        *,
        per_day: int | None = None,
        per_job: int | None = None,
        today: Callable[[], float] | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self._reserve = reserve or Reserve(None)
        self._path = directory / "spending.json"
        self._place = place
        self._per_day, self._per_job, self._today = per_day, per_job, today
        self._payments: dict[str, _Payment] | None = None
        self._earlier: dict[str, int] = {}
        """Wei by job, of payments that were settled more than a day ago."""
        self._seen: tuple[int, int, int] | None = None
        """Identity of the record's file when it was read or written last; None: it was not there."""

    def require(self, name: str | None, job: int, wei: int, now: int) -> None:
        """Raises SpendingLimit if a payment of `wei` for a job is more than a limit allows now; never for one that was
        entered under that name before. name: None for one that is only thought of."""
        if self._per_day is None and self._per_job is None:
            return
        payments, place = self._read(), self._job(job)
        if name in payments or (name is None and any(not one.settled for one in payments.values() if one.job == place)):
            return
        spent = self._earlier.get(place, 0) + sum(one.wei for one in payments.values() if one.job == place)
        if self._per_job is not None and spent + wei > self._per_job:
            raise SpendingLimit(
                f"--spend-per-job {in_ether(self._per_job)} does not allow another undertaking in job {job} (spent: "
                f"{in_ether(spent)}): raise it, or leave the job alone"
            )
        if self._per_day is not None:
            self._require_day(self._per_day, list(payments.values()), wei, now)

    def enter(self, name: str, job: int, wei: int, now: int) -> None:
        """Remembers a payment before it is signed. Raises SpendingLimit if that cannot be put on record."""
        payments = self._read()
        if name not in payments:
            payments[name] = _Payment(
                self._job(job), now, wei, False, now if self._today is None else int(self._today())
            )
            self._forget_old(now)
            self._write()

    def settle(self, name: str, wei: int, *, failed: bool = False) -> None:
        """Takes in what a payment has come to. failed: whether its transaction failed in its block, so that it took gas
        only, and the next attempt under this name is another payment."""
        payments = self._read()
        if (known := payments.get(name)) is None or known.settled:
            return
        if failed:
            del payments[name]
            name = f"{name}, failed"
            before = payments.get(name)
            wei += before.wei if before is not None else 0
        payments[name] = replace(known, wei=wei, settled=True)
        self._write()

    def cancel(self, name: str) -> None:
        """Forgets a payment that was not sent."""
        payments = self._read()
        if (known := payments.get(name)) is not None and not known.settled:
            del payments[name]
            self._write()

    def last_day(self, now: int) -> int:
        """Wei of the last 24 hours."""
        return sum(one.wei for one in self._read().values() if self._left(one, now))

    def _left(self, payment: _Payment, now: int) -> int:
        """Seconds for which a payment counts still. A clock that has gone back since it was entered says nothing."""
        passed = [now - payment.at] + ([] if self._today is None else [int(self._today()) - payment.by_us])
        known = [one for one in passed if one >= 0]
        return max(0, DAY - min(known)) if known else DAY

    def _require_day(self, most: int, payments: list[_Payment], wei: int, now: int) -> None:
        recent = sorted((left, one.wei) for one in payments if (left := self._left(one, now)))
        spent = sum(paid for _, paid in recent)
        if spent + wei <= most:
            return
        if wei > most:
            raise SpendingLimit(
                f"one undertaking costs more than --spend-per-day {in_ether(most)} allows: raise it, or ask for jobs "
                "with lower bonds (--most-bond)"
            )
        rest = spent
        for left, paid in recent:
            rest -= paid
            if rest + wei <= most:
                until = now + left
                raise SpendingLimit(
                    f"--spend-per-day {in_ether(most)} is reached ({in_ether(spent)} in 24 hours): nothing new is "
                    f"begun until {in_utc(until)}, and all that was begun goes on",
                    until,
                )

    def _job(self, job: int) -> str:
        return f"{self._place} {job}"

    def _forget_old(self, now: int) -> None:
        assert self._payments is not None
        for name, one in list(self._payments.items()):
            if one.settled and not self._left(one, now):
                self._earlier[one.job] = self._earlier.get(one.job, 0) + one.wei
                del self._payments[name]

    def _read(self) -> dict[str, _Payment]:
        """The payments. They are read again if another process has written: it is refused the journal, but may have
        come this far."""
        payments: dict[str, _Payment] = {}
        try:
            seen = self._look()
            if self._payments is not None and seen == self._seen:
                return self._payments
            self._earlier = {}
            if seen is not None:
                record = read_record(self._path, _MOST_BYTES)
                for name, (job, at, wei, settled, *by_us) in record["payments"].items():
                    # Earlier versions knew the chain's time only.
                    payments[name] = _Payment(str(job), int(at), int(wei), bool(settled), int((*by_us, at)[0]))
                self._earlier = {str(job): int(wei) for job, wei in record["earlier"].items()}
        except (StorageError, OSError) as error:
            raise self._unusable(str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unusable("it is not what was written there") from error
        self._payments, self._seen = payments, seen
        return payments

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _write(self) -> None:
        assert self._payments is not None
        payments = {
            name: [one.job, one.at, str(one.wei), one.settled, one.by_us] for name, one in self._payments.items()
        }
        earlier = {job: str(wei) for job, wei in self._earlier.items()}
        try:
            record = {"payments": payments, "earlier": earlier}
            self._reserve.write(lambda: write_record(self._path, record))
            self._seen = self._look()
        except (StorageError, OSError) as error:
            self._payments = None  # read again: what is not on disk would be forgotten by the next process
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> SpendingLimit:
        return SpendingLimit(
            f"the record of what was spent, {self._path}, cannot be used ({why}), so that nothing new is begun: make "
            "room, or move it away if a day has passed since the last bond"
        )
