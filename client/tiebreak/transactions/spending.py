"""Spending: what an account has put into new undertakings, on disk, and the limits on it by day and by job.

Limits hold back what begins something (`tiebreak.rpc.transport.UNDERTAKINGS`) and nothing else: a move in a live
game, the opening of a seal or an appeal that is not made costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payment:
    """One undertaking. `at`: chain time; `by_us`: this machine's time; `wei`: value and fee; `settled`: whether that is
    what it came to."""

    job: str
    at: int
    by_us: int
    wei: int
    settled: bool = False


@dataclass(slots=True, kw_only=True)
class _Record:
    """The payments by their names. `earlier`: wei by job, of payments that were settled more than a day ago."""

    payments: dict[str, _Payment] = field(default_factory=dict)
    earlier: dict[str, int] = field(default_factory=dict)


_RECORD = TypeAdapter(_Record)


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
        self._record: _Record | None = None

    def require(self, name: str | None, job: int, wei: int, now: int) -> None:
        """Raise SpendingLimit if a payment of `wei` for a job is more than a limit allows now; never for one that was
        entered under that name before. name: None for one that is only thought of."""
        if self._per_day is None and self._per_job is None:
            return
        record, place = self._read(), self._job(job)
        payments = record.payments
        if name in payments or (name is None and any(not one.settled for one in payments.values() if one.job == place)):
            return
        spent = record.earlier.get(place, 0) + sum(one.wei for one in payments.values() if one.job == place)
        if self._per_job is not None and spent + wei > self._per_job:
            raise SpendingLimit(
                f"--spend-per-job {in_ether(self._per_job)} does not allow another undertaking in job {job} (spent: "
                f"{in_ether(spent)}): raise it, or leave the job alone"
            )
        if self._per_day is not None:
            self._require_day(self._per_day, list(payments.values()), wei, now)

    def enter(self, name: str, job: int, wei: int, now: int) -> None:
        """Remember a payment before it is signed. Raises SpendingLimit if that cannot be put on record."""
        record = self._read()
        if name not in record.payments:
            by_us = now if self._today is None else int(self._today())
            record.payments[name] = _Payment(job=self._job(job), at=now, by_us=by_us, wei=wei)
            for old, one in list(record.payments.items()):
                if one.settled and not self._left(one, now):
                    record.earlier[one.job] = record.earlier.get(one.job, 0) + one.wei
                    del record.payments[old]
            self._write(record)

    def settle(self, name: str, wei: int, *, failed: bool = False) -> None:
        """Take in what a payment has come to. failed: whether its transaction failed in its block, so that it took gas
        only, and the next attempt under this name is another payment."""
        record = self._read()
        payments = record.payments
        if (known := payments.get(name)) is None or known.settled:
            return
        if failed:
            del payments[name]
            name = f"{name}, failed"
            before = payments.get(name)
            wei += before.wei if before is not None else 0
        payments[name] = replace(known, wei=wei, settled=True)
        self._write(record)

    def cancel(self, name: str) -> None:
        """Forget a payment that was not sent."""
        record = self._read()
        if (known := record.payments.get(name)) is not None and not known.settled:
            del record.payments[name]
            self._write(record)

    def last_day(self, now: int) -> int:
        """Return the wei of the last 24 hours."""
        return sum(one.wei for one in self._read().payments.values() if self._left(one, now))

    def _left(self, payment: _Payment, now: int) -> int:
        """Return seconds for which a payment counts still. A clock that has gone back since it was entered says
        nothing."""
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

    def _read(self) -> _Record:
        """Return the record, which is read at its first use: by then this process has the directory alone."""
        if self._record is None:
            try:
                found = _RECORD.validate_python(read_record(self._path, _MOST_BYTES)) if self._path.exists() else None
            except (StorageError, OSError) as error:
                raise self._unusable(str(error)) from error
            except ValueError as error:
                raise self._unusable("it is not what was written there") from error
            self._record = found or _Record()
        return self._record

    def _write(self, record: _Record) -> None:
        try:
            self._reserve.write(lambda: write_record(self._path, asdict(record)))
        except (StorageError, OSError) as error:
            self._record = None  # read again: what is not on disk would be forgotten by the next process
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> SpendingLimit:
        return SpendingLimit(
            f"the record of what was spent, {self._path}, cannot be used ({why}), so that nothing new is begun: make "
            "room, or move it away if a day has passed since the last bond"
        )
