"""Auditing: the repetition of a job that all statements and bonds of an auditor rest on.

An open audit is told what was claimed, and uses the trainer's log as a hint. A blind one needs nothing from the
trainer: it records a log of its own, so that the auditor can serve log and model by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from roundlog import training as engine
from roundlog.adjudication import NoAnswer
from roundlog.execution import StoppedError
from roundlog.training import StepEvent, Verdict, noted_stop

from tiebreak.contract.structs import JobView
from tiebreak.http_client import Pauses
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import require_decidable
from tiebreak.roles.long_work import MEASURED_STEPS, LongWork
from tiebreak.roles.notices import What
from tiebreak.roles.shared_audits import SHARED, SharedAudit, Workers
from tiebreak.store.store_errors import StoreUnavailable

ALONE, BLIND = "alone", "blind"
"""Names of an audit's directories in the job's room: of an open audit, and of one that records a log of its own."""

_AUDIT = "audit"

_FINDINGS_TOLD = 5
"""Findings that are told one by one. The log of a wrong training has hundreds of thousands, since almost all entries
after its first wrong step are wrong."""

_LOG_SHARE = 8
"""Part of the remaining time that fetching the log may take: 1 / `_LOG_SHARE`. After that the audit goes without the
log."""
_MOST_LOG_SECONDS = 3600.0


class _LogArrived(Exception):
    """The log has arrived while the audit without it is still in its first interval."""


class Auditing:
    """The audit of an auditor in one job."""

    def __init__(
        self, long_work: LongWork, *, verify_log: float, use_log: bool, workers: Workers | None = None
    ) -> None:
        """All arguments are as of `AuditorRole`."""
        self._long_work = long_work
        self._shared = None if workers is None else SharedAudit(long_work, workers)
        self._verify_log = verify_log
        self._use_log = use_log
        self._log_time: dict[tuple[str, bool], float] = {}
        """The instant (chain time) until which the log of a claim is waited for, without and with a bond."""
        self._log_pauses = Pauses(first=1.0, most=30.0)
        self._log_again: float | None = None
        self._without_list: bytes | None = None
        """Root of the claim that was audited as a whole since there was no list for workers."""
        self._is_fit = False

    @property
    def unaudited(self) -> str | None:
        """Part of the claim that the audit has left out, in one clause; None if it was whole."""
        return None if self._shared is None else self._shared.unaudited

    @property
    def is_under_way(self) -> bool:
        """Whether an audit runs, or waits for its turn."""
        return self._long_work.is_begun(_AUDIT) and not self._long_work.is_done(_AUDIT)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until a blind audit that runs now is done; None if that is not known yet, or if this machine could
        play no game about it."""
        return self._long_work.seconds_left(_AUDIT) if self._is_fit else None

    def rest(self) -> None:
        """Free the memory of an audit that nothing needs at present; it is on disk."""
        for what in (_AUDIT, "recalling", "stop"):
            self._long_work.forget(what)

    def trees(self, posted: JobView, priority: Priority, root: bytes) -> DisputeTrees | None:
        """Return the trees that games are played with; None until they are ready. An audit of a former process that
        came to the checkpoint root `root` is read; otherwise the job is audited again."""
        if not self._long_work.files_are_here(posted, priority):
            return None
        if not self._long_work.is_done(_AUDIT):
            recalled = self._long_work.recalled(
                posted, priority, (BLIND, ALONE, SHARED), "reading the audit again", root=root
            )
            if recalled is None:
                return None
            if recalled:
                return recalled[0]
        claimed = posted.claim.checkpoint_root
        found = self.audited(posted, priority, challenged=None if root == claimed else root)
        if found is not None and found.claim.root != root and self._shared is not None:
            self._go_back_to_workers(posted, priority)
        return found

    def _go_back_to_workers(self, posted: JobView, priority: Priority) -> None:
        """Have the audit made by workers, once the list that they start from can be had. A whole audit without it has
        not come to the root of the challenge, so that no game can be played with it."""
        log = self._log(posted, priority)
        if not log.done or self._without_list != posted.claim.checkpoint_root:
            return
        if log.error is None and log.result():
            self._without_list = None
            self._long_work.forget(_AUDIT)
        else:
            self._ask_again()

    def audited(self, posted: JobView, priority: Priority, *, challenged: bytes | None = None) -> DisputeTrees | None:
        """Return the audit, resumed or read from its directory; None until it is done. challenged: the root that this
        account has challenged the claim with, if it has."""
        if not priority.bonded:
            require_decidable(self._long_work.context, posted)
        if not self._long_work.files_are_here(posted, priority):
            return None
        root = posted.claim.checkpoint_root
        # A blind audit is one run, whether the claim is open already or not: it needs neither the claim nor a log.
        is_blind = bool(posted.terms.opening_window)
        wants_log = not is_blind and (self._use_log or self._shared is not None)
        log = self._log(posted, priority) if wants_log else None
        if self._shared is not None and log is not None:
            # The list of what is published lies beside the log.
            is_whole = self._without_list == root and self._long_work.is_begun(_AUDIT)
            if not is_whole and (not log.done or self._waits_for_store(posted, priority, log)):
                return None

        def work(background_job: BackgroundJob[DisputeTrees]) -> DisputeTrees:
            if is_blind:
                return self._repeat(posted, background_job, priority.bonded)
            if self._shared is not None and log is not None:
                return self._audit_shared(posted, log, background_job, priority, challenged)
            return self._audit(posted, log, background_job, priority.bonded)

        about = None if is_blind else root
        return self._long_work.result(Lane.RUNS, _AUDIT, work, priority, "the audit", about=about)

    def doubts(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> list[str | None] | None:
        """Return the reason, in one clause, not to put a bond on a game with these trees; None in the list if there is
        none. No list until that is known."""
        if (too_large := self.too_large(trees.job)) is not None:
            return [too_large]
        return self._long_work.result(
            Lane.GAMES,
            "stop",
            lambda background_job: [confirm_stop(trees)],
            priority,
            "asking for a second opinion on a stop",
            about=trees.claim.root,
        )

    def too_large(self, job: engine.Job) -> str | None:
        """Return the reason why a disputed step could not be executed here; None if it could."""
        context = self._long_work.context
        need, most = context.engine.dispute_bytes(job), context.limits.memory_bytes
        if need <= most:
            return None
        return (
            f"a disputed step of it takes up to {need} bytes of memory, more than the {most} allowed: allow more, or "
            "cut its batches into more micro-batches"
        )

    # Blind.

    def _repeat(self, posted: JobView, background_job: BackgroundJob[DisputeTrees], bonded: bool) -> DisputeTrees:
        """Repeat the run without its log and its claim, and record a log."""
        work = self._long_work
        job, room = work.read_job(posted), work.room(posted)
        taken, steps = work.on_step(background_job, posted, job, "auditing", bonded=bonded), 0
        self._is_fit = False

        def on_step(event: StepEvent) -> None:
            nonlocal steps
            taken(event)
            steps += 1
            # By then its clocks were judged.
            self._is_fit = steps >= MEASURED_STEPS and self.too_large(job) is None

        if engine.run_bytes(job.program, job.spec) <= work.context.limits.memory_bytes:
            # With a run that stops there is nothing to attest to, and the dispute about it needs fabricated values.
            with suppress(StoppedError):
                found = work.context.engine.train(job, room / BLIND, on_step)
                return self._finished(work.context.engine.trees(job, room / BLIND, found.state_roots))
        return self._judged(posted, job, None, None, on_step)

    # Open.

    def _log(self, posted: JobView, priority: Priority) -> BackgroundJob[list[Path]]:
        """Return the job that fetches the log. The audit does not wait for it; its result is an empty list if the log
        cannot be had."""
        work = self._long_work
        deadline = priority.deadline if priority.bonded else posted.claim.challenge_deadline
        now = work.context.now()
        share = min(_MOST_LOG_SECONDS, max(0.0, deadline - now) / _LOG_SHARE)
        until = self._log_time.setdefault((posted.claim.log_cid, priority.bonded), now + share)
        within = until - now if now < until else share

        def fetch(background_job: BackgroundJob[list[Path]]) -> list[Path]:
            found = work.content(posted, priority, within).log()
            return [] if found is None else [found]

        return work.begin(Lane.FILES, "log", fetch, priority, "fetching the log", about=posted.claim.log_cid)

    def _waits_for_store(self, posted: JobView, priority: Priority, log: BackgroundJob[list[Path]]) -> bool:
        """Return whether the log is asked for again because the store is away, for as long as a slow one is waited
        for."""
        if not isinstance(log.error, StoreUnavailable):
            return False
        if self._long_work.context.now() >= self._log_time[posted.claim.log_cid, priority.bonded]:
            return False
        text = (
            f"the list that workers start from is asked for again, before the claim is audited as a whole: {log.error}"
        )
        self._long_work.tell(What.WARNING, text)
        self._ask_again()
        return True

    def _ask_again(self) -> None:
        """Have the log asked for again, after a pause that grows."""
        now = self._long_work.context.clock()
        if self._log_again is None:
            self._log_again = now + self._log_pauses.next()
        elif now >= self._log_again:
            self._log_again = None
            self._long_work.forget("log")

    def _audit_shared(
        self,
        posted: JobView,
        log: BackgroundJob[list[Path]],
        background_job: BackgroundJob[DisputeTrees],
        priority: Priority,
        challenged: bytes | None,
    ) -> DisputeTrees:
        """Return the audit by many workers, or else as a whole. log: has arrived, or cannot be had."""
        assert self._shared is not None
        job = self._long_work.read_job(posted)
        directory = None if log.error is not None else next(iter(log.result()), None)
        self._without_list = posted.claim.checkpoint_root if directory is None else None
        found = self._shared.run(posted, job, directory, background_job, priority, challenged=challenged)
        if found is not None:
            return self._finished(found)
        return self._audit(posted, log if self._use_log else None, background_job, priority.bonded)

    def _audit(
        self,
        posted: JobView,
        log: BackgroundJob[list[Path]] | None,
        background_job: BackgroundJob[DisputeTrees],
        bonded: bool,
    ) -> DisputeTrees:
        """Return the audit of a claim. The log is a hint: if it comes late it is left out."""
        work = self._long_work
        job = work.read_job(posted)

        def arrived() -> list[Path]:
            return log.result() if log is not None and log.done and log.error is None else []

        def listener(*, until_log: bool) -> Callable[[StepEvent], None]:
            on_step = work.on_step(background_job, posted, job, "auditing", bonded=bonded)

            def told(event: StepEvent) -> None:
                if until_log and event.step < job.spec.interval and arrived():
                    raise _LogArrived
                on_step(event)

            return told

        claim = posted.claim.checkpoint_root
        if not arrived():
            if log is not None and log.done:
                text = f"the log {posted.claim.log_cid} cannot be had: the audit goes without it"
                work.tell(What.WARNING, text)
            with suppress(_LogArrived):
                return self._judged(posted, job, claim, None, listener(until_log=True))
        return self._judged(posted, job, claim, arrived()[0], listener(until_log=False))

    def _judged(
        self,
        posted: JobView,
        job: engine.Job,
        claim: bytes | None,
        log_dir: Path | None,
        on_step: Callable[[StepEvent], None],
    ) -> DisputeTrees:
        work = self._long_work
        verdict = work.context.engine.audit(
            job,
            work.room(posted) / ALONE,
            on_step,
            claim=claim,
            log_dir=log_dir,
            verify_log=self._verify_log,
            on_distrust=lambda why: work.tell(What.COMPUTED, f"auditing again without the log: {why}"),
        )
        self._tell(verdict)
        return self._finished(work.context.engine.trees(job, verdict.run_dir, verdict.state_roots))

    def _tell(self, verdict: Verdict) -> None:
        tell = self._long_work.tell
        for finding in verdict.findings[:_FINDINGS_TOLD]:
            where = f"step {finding.step}, operator {finding.operator}, element {finding.element}"
            tell(What.COMPUTED, f"the log is wrong at {where}: {finding.message}")
        if (more := len(verdict.findings) - _FINDINGS_TOLD) > 0:
            tell(What.COMPUTED, f"the log has {more} more wrong entries")
        for unreadable in verdict.unreadable:
            tell(What.WARNING, f"goes on without the log: {unreadable}")
        if verdict.stopped is not None:
            tell(What.COMPUTED, f"the run has no end: {verdict.stopped}")

    def _finished(self, trees: DisputeTrees) -> DisputeTrees:
        self._long_work.tell(What.COMPUTED, f"audited to checkpoint root 0x{trees.claim.root.hex()}")
        return trees


def confirm_stop(trees: DisputeTrees) -> str | None:
    """Return the reason why no bond may be paid on the trees of a run that stopped; None if it did not stop, or the
    stop is confirmed.

    After a stop (NaN, an infinity, an index out of range) a run has fabricated values. A game about it ends with the
    contract's answer on one element: the first one without a value here. If the contract has a value there, the bond is
    lost, however honest the run was. So the reference (`roundlog.adjudication`), which computes as the contract does
    and shares nothing with the engine's kernels, computes this element from its openings. The step is executed again as
    a whole: call this only if one fits into memory.

    Call it before every bond on `trees`; it executes nothing if the run did not stop. After a restart it reads the
    stop from the run's directory. Raises OSError, and StorageError for a damaged directory."""
    if not trees.fabricated.needed:
        return None
    noted = noted_stop(trees.run_dir)
    if noted is None:
        return f"the run stopped, but {trees.run_dir} does not say where: empty it and audit again"
    step, stop = noted
    program = trees.job.program
    where = f"step {step}: {program.describe(stop.operator)}"
    found = trees.trace(step).stop
    if found != stop:
        again = "goes through" if found is None else f"stops at operator {found.operator}, element {found.element}"
        return f"{where} stopped at element {stop.element}, and {again} when it is executed again: check this machine"
    answer = trees.output(step, stop.operator).answer(stop.element)
    if answer is NoAnswer.NO_VALUE:
        return None
    value = "leaves it to the referee" if isinstance(answer, NoAnswer) else f"has {answer:#x} there"
    return (
        f"{where} stops here at element {stop.element}, but the contract {value}: this machine or this release is "
        "wrong, so report it, and audit with another"
    )
