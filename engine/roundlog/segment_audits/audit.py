"""The audit of a run by many workers that execute intervals, each from a published state.

It is correct by induction: the state before the first interval is the job's; if every interval, started from a state
with the root claimed before it, ends in the root claimed after it, the last root is right. So states may come from
the party that claims them: one with another root is not used, and costs the work of its intervals, not the verdict.

One wrong interval is enough, and it need not be the first: `state_roots` of the result are then the claimed ones, but
for the wrong one. The leftmost leaf in which the two trees differ is that interval. What stands before it is agreed,
and the contract computes from it, whatever the honest run would have been; what stands behind it is never asked for.

What a worker says is believed as far as a second one repeats it: a share of the right intervals by another worker, and
every wrong one by this process, before anything is concluded from it.
"""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.data import fetched_bytes
from roundlog.segment_audits.local import Computed, compute_here
from roundlog.segment_audits.plan import (
    Facts,
    IntervalResult,
    Plan,
    Reports,
    SegmentAudit,
    Sharing,
    Wrong,
    draw_sample,
    units,
)
from roundlog.segment_audits.segment import Listing, Look, Segment, SegmentOrder, StateSource, WorkerAnswer, settled
from roundlog.segment_audits.workers import (
    Assignment,
    AuditPace,
    NoWorkersError,
    Purpose,
    StandIn,
    Worker,
    WorkerPool,
    WorkerReport,
    plainly,
)
from roundlog.storage import StorageError
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions, StepEvent
from roundlog.training.run import Run, RunError

ROLE = "parallel auditor"
"""The role of a run directory of such an audit, as it stands on disk: an audit that was begun under it carries on."""

_MOST_LOSSES = 10
"""Workers in a row that may be lost over one segment, before it is the segment's fault."""
_HERE = "this process"


def audit_by_segments(
    job: Job,
    look: Look,
    source: StateSource,
    run_dir: Path,
    sharing: Sharing,
    options: RunOptions = DEFAULT_OPTIONS,
    *,
    challenged: bytes | None = None,
    reports: Reports | None = None,
    poll: float = 0.2,
) -> SegmentAudit:
    """Audits what `look` shows until all of it is audited, or one interval is wrong. A killed audit carries on in its
    directory, which afterwards is that of a run with the roots of the result.

    challenged: the checkpoint root of a challenge that rests on an earlier audit; the wrong interval that it is about
    is looked for. poll: seconds between two looks.

    Raises RunError for a directory of another run and a job whose log decides, ValueError for shares and numbers that
    make no sense, NoWorkersError, OSError, and what `reports.progress` and `look` raise."""
    if job.spec.log_decides:
        raise RunError(
            f"this job rounds by the policy `{job.spec.policy_name}`, under which the log decides: audit it as a whole"
        )
    if sharing.workers < 1 or not 0 <= sharing.repeat_share <= 1 or not 0 < sharing.share <= 1:
        raise ValueError("an audit needs 1 or more workers, and shares between 0 and 1")
    audits: list[_Audit] = []

    def on_step(event: StepEvent) -> None:
        # Repetition in this process may take long; the function that is told may end it between two steps.
        for audit in audits:
            audit.has_stepped()

    here = Run(job, run_dir, replace(options, continue_after_stop=True, keep_every=1, on_step=on_step), role=ROLE)
    scratch = run_dir.resolve() / "scratch"
    with here.held() as record:
        shutil.rmtree(scratch, ignore_errors=True)  # of workers that were killed
        scratch.mkdir()
        try:
            audits.append(_Audit(here, look, source, sharing, reports or Reports(), challenged, poll))
            found = audits[0].run()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        record(found.state_roots)
    return found


class _Audit:
    """One audit on its way."""

    def __init__(
        self,
        here: Run,
        look: Look,
        source: StateSource,
        sharing: Sharing,
        reports: Reports,
        challenged: bytes | None,
        poll: float,
    ) -> None:
        self._here, self._look, self._source, self._sharing = here, look, source, sharing
        self._reports, self._challenged, self._poll = reports, challenged, poll
        spec = here.job.spec
        listing = self._published()
        wanted = None
        if sharing.share < 1:
            if not listing.complete:
                raise ValueError("a share can only be drawn of a run that has ended: wait for its end")
            wanted = draw_sample(listing, sharing.share)
            self._look = settled(listing)  # what the draw has told holds of these segments alone
        self._wanted = wanted
        self._plan = Plan(spec.initial_state_root, wanted=wanted)
        self._record = Facts(here.directory, spec.run_id)
        for fact, worker in self._record.read():
            self._plan.learn(fact, worker)
        self._plan.see(listing)
        self._unsettled: list[WorkerReport] = []
        """Answers that are to be repeated, and are not yet."""
        self._found: list[Wrong] = []
        self._losses: dict[Segment, int] = {}
        self._pace = AuditPace()
        self._stand_in = StandIn(self._plan, self._pace, spec.interval, self._compute, self._reports.event)
        self._busy = 0.0
        self._fetched = 0
        self._unusable: list[str] = []
        self._distrusted: list[str] = []
        self._first_wrong: Wrong | None = None
        self._random = random.SystemRandom()

    def has_stepped(self) -> None:
        """Takes note of a step of this process. Raises what `reports.progress` raises, and NotNeeded."""
        self._tell_progress()
        self._stand_in.has_stepped()

    def _tell_progress(self) -> None:
        self._reports.progress(*self._plan.progress)

    def run(self) -> SegmentAudit:
        with closing(WorkerPool(self._sharing.make, self._sharing.workers)) as pool:
            while not self._plan.is_done or self._unsettled:
                self._tell_progress()
                self._hand_out(pool)
                for report in pool.wait(0.0 if self._found else self._poll):
                    self._take(pool, report)
                while self._found:
                    if self._is_the_one(wrong := self._found.pop(0)):
                        return self._result(wrong, pool)
                self._plan.see(self._published())
            self._tell_progress()
            return self._result(self._first_wrong, pool)

    def _published(self) -> Listing:
        """The listing as it is published now. Raises ValueError if it is not of this run."""
        listing, intervals = self._look(), self._here.job.spec.intervals
        count = len(listing.roots)
        if count > intervals or (listing.complete and count != intervals):
            raise ValueError(f"{count} state roots are published of a run of {intervals} intervals")
        return listing

    def _is_the_one(self, wrong: Wrong) -> bool:
        """Whether the search ends with this interval."""
        self._first_wrong = self._first_wrong or wrong
        if self._challenged is None or MerkleTree(self._roots(wrong)).root == self._challenged:
            return True
        self._plan.give_up(wrong.interval)
        return False

    def _roots(self, wrong: Wrong | None) -> list[bytes]:
        roots = list(self._plan.listing.roots)
        if wrong is not None:
            roots[wrong.interval] = wrong.root
        return roots

    def _result(self, wrong: Wrong | None, pool: WorkerPool) -> SegmentAudit:
        parts = units(self._plan.listing)
        drawn = [part for part in parts if self._wanted is None or part.first in self._wanted]
        return SegmentAudit(
            state_roots=self._roots(wrong),
            right=self._plan.right(),
            wrong=wrong,
            sizes=[len(part) for part in parts],
            drawn=len(drawn),
            unusable=self._unusable,
            distrusted=self._distrusted,
            lost=pool.lost,
            busy_seconds=self._busy,
            fetched=self._fetched + fetched_bytes(self._here.job.dataset.values()),
        )

    # Handing out.

    def _hand_out(self, pool: WorkerPool) -> None:
        for worker in pool.idle():
            if (answered := self._repetition_for(pool, worker)) is not None:
                self._plan.repeats(answered.task.order.segment)
                pool.give(worker, answered.task.order, Purpose.REPEAT, answered)
            elif (segment := self._plan.next()) is not None:
                pool.give(worker, self._order(segment), Purpose.AUDIT)
            elif (late := self._late(pool, worker)) is not None:
                self._plan.repeats(late.order.segment)
                pool.give(worker, late.order, Purpose.DOUBLE if late.repeats is None else late.purpose, late.repeats)
        # Where there is no second worker, this process is one.
        for answered in [report for report in self._unsettled if not self._can_be_repeated(pool, report)]:
            self._unsettled.remove(answered)
            self._arbitrate(pool, [answered])
        self._stand_in.look(pool)

    def _order(self, segment: Segment) -> SegmentOrder:
        options = self._here.options
        return SegmentOrder(
            source=self._source,
            segment=segment,
            start=self._plan.start(segment),
            device=str(options.device),
            micro_batches=options.micro_batches,
            scratch=str(self._here.directory.resolve() / "scratch") if self._sharing.common_disk else None,
        )

    def _repetition_for(self, pool: WorkerPool, worker: Worker) -> WorkerReport | None:
        """An answer that this worker can repeat, since it was another one's."""
        in_hand = [task.repeats for _, task in pool.tasks()]
        return next((one for one in self._unsettled if one.worker is not worker and one not in in_hand), None)

    def _can_be_repeated(self, pool: WorkerPool, answered: WorkerReport) -> bool:
        """Whether a second worker may repeat an answer; one that hangs, or waits for a place in a cluster, may not."""
        others = [worker.task for worker in pool.workers if worker is not answered.worker]
        return any(task is None or not self._pace.is_late(task, patiently=True) for task in others)

    def _late(self, pool: WorkerPool, worker: Worker) -> Assignment | None:
        """A task that takes another worker very long, and that nobody else has or has answered: that worker may
        hang."""
        tasks = [task for _, task in pool.tasks()]
        for task in tasks:
            alone = not task.is_answered and sum(other.order == task.order for other in tasks) == 1
            fits = task.repeats is None or task.repeats.worker is not worker
            if alone and fits and self._pace.is_late(task):
                return task
        return None

    # Taking answers.

    def _take(self, pool: WorkerPool, report: WorkerReport) -> None:
        """Takes up how a task has ended."""
        worker, task, segment = report.worker, report.task, report.task.order.segment
        if worker not in pool.workers:
            # An answer that came at the same time has shown that this worker lies.
            self._give_back(task)
            return
        if report.error is not None:
            self._give_back(report.task)
            why = f"it failed ({type(report.error).__name__}: {plainly(report.error)})"
            self._dismiss(pool, worker, why, believed=isinstance(report.error, OSError | StorageError))
            return
        if report.answer is None:
            self._losses[segment] = self._losses.get(segment, 0) + 1
            if self._losses[segment] >= _MOST_LOSSES:
                raise NoWorkersError(
                    f"{_MOST_LOSSES} workers in a row were lost over interval {segment.first + 1}: look for what ends "
                    "them (most often they lack memory: take fewer, or cut batches with --micro-batches)"
                )
            self._give_back(task)
            return
        self._losses.pop(segment, None)
        self._busy += report.answer.seconds
        self._fetched += report.answer.fetched
        if task.repeats in self._unsettled:
            self._unsettled.remove(task.repeats)
        if report.answer.unusable is not None:
            self._go_without(pool, report, plainly(report.answer.unusable))
        else:
            self._believe(pool, report, report.answer)

    def _go_without(self, pool: WorkerPool, report: WorkerReport, why: str) -> None:
        """Uses the state no more that an answer says cannot be used."""
        segment = report.task.order.segment
        self._unusable.append(why)
        self._reports.event(f"a published state is not used: {why}")
        self._plan.drop_state(segment.first, report.task.order.start.root)
        self._plan.answered(segment, 0)
        if report.task.repeats is not None:
            self._arbitrate(pool, [report.task.repeats])

    def _believe(self, pool: WorkerPool, report: WorkerReport, answer: WorkerAnswer) -> None:
        """Takes up what an answer says, and decides by whom it is to be repeated."""
        task, segment, name = report.task, report.task.order.segment, report.worker.name(answer)
        self._pace.answered(answer.seconds, len(segment))
        for _, other_task in pool.tasks():
            other_task.is_answered |= other_task.order == task.order
        facts = _facts(report)
        for fact in facts:
            self._plan.learn(fact, name)
        self._record.add(facts, name)
        self._plan.answered(segment, len(segment) if task.purpose is Purpose.AUDIT else 0)
        other = task.repeats.answer if task.repeats is not None else None
        if task.repeats is not None and other is not None:
            if (other.roots, other.stopped is None) != (answer.roots, answer.stopped is None):
                self._arbitrate(pool, [task.repeats, report])
        elif self._differs(report):
            self._arbitrate(pool, [report])
        elif self._random.random() < self._sharing.repeat_share:
            self._unsettled.append(report)

    def _give_back(self, task: Assignment) -> None:
        """Hands a task out again that has no answer."""
        if task.purpose is Purpose.AUDIT:
            self._plan.lost(task.order.segment)
        else:
            self._plan.answered(task.order.segment, 0)

    def _differs(self, report: WorkerReport) -> bool:
        """Whether an answer says that an interval is not as claimed, and all before it are."""
        assert report.answer is not None
        plan, segment, answer = self._plan, report.task.order.segment, report.answer
        claimed = plan.listing.roots[segment.first : segment.stop]
        if not claimed or report.task.order.start.root != plan.root_before(segment.first):
            return False  # something else was published since
        return answer.roots[: len(claimed)] != claimed

    def _arbitrate(self, pool: WorkerPool, reports: list[WorkerReport]) -> None:
        """Repeats a segment here, and believes the workers no more whose answers were others."""
        computed = self._compute(reports[0].task.order.segment)
        for report in reports:
            if not _agrees(report, computed) and report.worker in pool.workers:
                self._dismiss(pool, report.worker, "its answer could not be repeated here", believed=False)

    def _compute(self, segment: Segment) -> Computed:
        """Executes a segment here, and takes up what it comes to."""
        computed = compute_here(self._here, self._source, self._plan, segment, self._unusable.append)
        for fact in computed.facts:
            self._plan.learn(fact, _HERE)
        self._record.add(computed.facts, _HERE)
        if computed.wrong is not None:
            interval, root = computed.wrong
            self._found.append(Wrong(interval=interval, root=root, stopped=computed.stopped))
        return computed

    def _dismiss(self, pool: WorkerPool, worker: Worker, why: str, *, believed: bool) -> None:
        """Uses a worker no more. believed: whether what it has answered still counts. Raises NoWorkersError."""
        told = worker.told
        text = f"{told} is not used any more: {why}"
        self._distrusted.append(f"{told}: {why}")
        self._reports.event(text)
        task = pool.dismiss(worker)
        if task is not None:
            self._give_back(task)
        if not believed:
            self._unsettled = [one for one in self._unsettled if one.worker is not worker]
            self._record.distrust(worker.names)
            self._plan.distrust(worker.names)
        if not pool.workers:
            raise NoWorkersError(f"no worker is left: {text}")


def _facts(report: WorkerReport) -> list[IntervalResult]:
    """Facts that an answer states."""
    assert report.answer is not None
    order = report.task.order
    starts = (order.start.root, *report.answer.roots)
    return [
        IntervalResult(interval, start, end)
        for interval, (start, end) in enumerate(zip(starts, report.answer.roots, strict=False), order.segment.first)
    ]


def _agrees(report: WorkerReport, computed: Computed) -> bool:
    """Whether this process came to what an answer says, as far as both have gone."""
    assert report.answer is not None
    known = {(fact.interval, fact.start): fact.end for fact in computed.facts}
    if any(known.get((fact.interval, fact.start), fact.end) != fact.end for fact in _facts(report)):
        return False
    first = report.task.order.segment.first
    ended = first + len(report.answer.roots)
    if computed.stopped is not None and computed.wrong is not None and first <= computed.wrong[0] < ended:
        return False
    return report.answer.stopped is None or ended not in {fact.interval for fact in computed.facts}
