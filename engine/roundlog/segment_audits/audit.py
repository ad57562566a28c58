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
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from roundlog.commitments import MerkleTree, state_root
from roundlog.data import fetched_bytes
from roundlog.segment_audits.plan import (
    Facts,
    IntervalResult,
    Plan,
    Reports,
    SegmentAudit,
    Sharing,
    draw_sample,
    units,
)
from roundlog.segment_audits.segment import (
    Listing,
    Segment,
    SegmentOrder,
    StateSource,
    UnusableState,
    WorkerAnswer,
    execute,
    keep_state,
    starting_state,
)
from roundlog.segment_audits.workers import Assignment, NoWorkersError, Worker, WorkerPool
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions, StepEvent
from roundlog.training.receipt import WrongInterval
from roundlog.training.run import Run, RunError

ROLE = "parallel auditor"
"""The role of a run directory of such an audit, as it stands on disk: an audit that was begun under it carries on."""

_MOST_LOSSES = 10
"""Workers in a row that may be lost over one segment, before it is the segment's fault."""
_SLOW = 4.0
"""A worker that takes so many times as long as the slowest so far is not waited for alone."""
_MOST_WORDS = 300
"""Most characters of a worker's words about what went wrong."""
_HERE = "this process"


def audit_by_segments(
    job: Job,
    listing: Listing,
    source: StateSource,
    run_dir: Path,
    sharing: Sharing,
    options: RunOptions = DEFAULT_OPTIONS,
    *,
    challenged: bytes | None = None,
    reports: Reports | None = None,
    poll: float = 0.2,
) -> SegmentAudit:
    """Audit a run that has ended until all of it is audited, or one interval is wrong. A killed audit carries on in its
    directory, which afterwards is that of a run with the roots of the result.

    challenged: the checkpoint root of a challenge that rests on an earlier audit; the wrong interval that it is about
    is looked for. poll: most seconds between two reports.

    Raises RunError for a directory of another run and a job whose log decides, ValueError for shares and numbers that
    make no sense and for a listing of other than all intervals, NoWorkersError, OSError, and what `reports.progress`
    raises."""
    if job.spec.log_decides:
        raise RunError(
            f"this job rounds by the policy `{job.spec.policy_name}`, under which the log decides: audit it as a whole"
        )
    if sharing.workers < 1 or not 0 <= sharing.repeat_share <= 1 or not 0 < sharing.share <= 1:
        raise ValueError("an audit needs 1 or more workers, and shares between 0 and 1")
    if (count := len(listing.roots)) != job.spec.intervals:
        raise ValueError(f"{count} state roots are published of a run of {job.spec.intervals} intervals")
    audits: list[_Audit] = []

    def on_step(event: StepEvent) -> None:
        # Execution in this process may take long; the listener may end it between two steps.
        for audit in audits:
            audit.report_progress()

    here = Run(job, run_dir, replace(options, continue_after_stop=True, keep_every=1, on_step=on_step), role=ROLE)
    scratch = run_dir.resolve() / "scratch"
    with here.locked_record() as record:
        shutil.rmtree(scratch, ignore_errors=True)  # of workers that were killed
        scratch.mkdir()
        try:
            audits.append(_Audit(here, listing, source, sharing, reports or Reports(), challenged, poll))
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
        listing: Listing,
        source: StateSource,
        sharing: Sharing,
        reports: Reports,
        challenged: bytes | None,
        poll: float,
    ) -> None:
        self._here, self._source, self._sharing = here, source, sharing
        self._reports, self._challenged, self._poll = reports, challenged, poll
        spec = here.job.spec
        self._wanted = draw_sample(listing, sharing.share) if sharing.share < 1 else None
        self._plan = Plan(listing, spec.initial_state_root, wanted=self._wanted)
        self._record = Facts(here.directory, spec.run_id)
        for fact, worker in self._record.read():
            self._plan.learn(fact, worker)
        self._plan.begin()
        self._unsettled: list[Assignment] = []
        """Answered tasks that are to be repeated, and are not yet."""
        self._found: list[WrongInterval] = []
        self._losses: dict[Segment, int] = {}
        self._slowest = 0.0
        """Seconds of an interval of the slowest answer; 0 while there is none."""
        self._busy = 0.0
        self._fetched = 0
        self._unusable: list[str] = []
        self._distrusted: list[str] = []
        self._first_wrong: WrongInterval | None = None
        self._random = random.SystemRandom()

    def report_progress(self) -> None:
        """Report how much is audited. Raises what `reports.progress` raises."""
        self._reports.progress(*self._plan.progress)

    def run(self) -> SegmentAudit:
        with closing(WorkerPool(self._sharing.make, self._sharing.workers)) as pool:
            while not self._plan.is_done or self._unsettled:
                self.report_progress()
                self._hand_out(pool)
                for task in pool.wait(0.0 if self._found else self._poll):
                    self._take(pool, task)
                while self._found:
                    if self._ends_with(wrong := self._found.pop(0)):
                        return self._result(wrong, pool)
            self.report_progress()
            return self._result(self._first_wrong, pool)

    def _ends_with(self, wrong: WrongInterval) -> bool:
        """Return whether the search ends with this interval."""
        self._first_wrong = self._first_wrong or wrong
        if self._challenged is None or MerkleTree(self._roots(wrong)).root == self._challenged:
            return True
        self._plan.give_up(wrong.interval)
        return False

    def _roots(self, wrong: WrongInterval | None) -> list[bytes]:
        roots = list(self._plan.listing.roots)
        if wrong is not None:
            roots[wrong.interval] = wrong.root
        return roots

    def _result(self, wrong: WrongInterval | None, pool: WorkerPool) -> SegmentAudit:
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
                self._plan.hand_out_again(answered.order.segment)
                pool.give(worker, answered.order, is_extra=True, repeats=answered)
            elif (segment := self._plan.next()) is not None:
                pool.give(worker, self._order(segment))
            elif (late := self._late(pool, worker)) is not None:
                self._plan.hand_out_again(late.order.segment)
                pool.give(worker, late.order, is_extra=True, repeats=late.repeats)
        # Where there is no second worker, this process is one.
        for answered in [task for task in self._unsettled if not self._can_be_repeated(pool, task)]:
            self._unsettled.remove(answered)
            self._arbitrate(pool, [answered])

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

    def _repetition_for(self, pool: WorkerPool, worker: Worker) -> Assignment | None:
        """Return an answer that this worker can repeat, since it was another one's."""
        in_hand = [task.repeats for task in pool.tasks()]
        return next((one for one in self._unsettled if one.worker is not worker and one not in in_hand), None)

    def _can_be_repeated(self, pool: WorkerPool, answered: Assignment) -> bool:
        """Return whether a second worker may repeat an answer. One that has answered nothing in the end may wait for a
        place in a cluster."""
        others = [worker for worker in pool.workers if worker is not answered.worker]
        return any(worker.names or not self._plan.is_done for worker in others)

    def _late(self, pool: WorkerPool, worker: Worker) -> Assignment | None:
        """Return a task that takes another worker very long, and that nobody else has or has answered: that worker may
        hang."""
        tasks = pool.tasks()
        for task in tasks:
            alone = not task.is_answered and sum(other.order == task.order for other in tasks) == 1
            fits = task.repeats is None or task.repeats.worker is not worker
            if alone and fits and 0 < _SLOW * self._slowest * len(task.order.segment) < task.age:
                return task
        return None

    # Taking answers.

    def _take(self, pool: WorkerPool, task: Assignment) -> None:
        """Take up how a task has ended."""
        worker, answer, segment = task.worker, task.answer, task.order.segment
        if worker not in pool.workers:
            # An answer that came at the same time has shown that this worker lies.
            self._give_back(task)
            return
        if answer is None and task.error is None:
            self._losses[segment] = self._losses.get(segment, 0) + 1
            if self._losses[segment] >= _MOST_LOSSES:
                raise NoWorkersError(
                    f"{_MOST_LOSSES} workers in a row were lost over interval {segment.first + 1}: look for what ends "
                    "them (most often they lack memory: take fewer, or cut batches with --micro-batches)"
                )
            self._give_back(task)
            return
        if answer is None or not _fits(answer, task.order):
            self._give_back(task)
            if answer is None:
                self._dismiss(pool, worker, f"it failed ({type(task.error).__name__}: {_shown(str(task.error))})")
            else:
                why = f"it answers with {len(answer.roots)} roots for {len(segment)} intervals"
                self._distrust(pool, worker, why)
            return
        self._losses.pop(segment, None)
        self._busy += answer.seconds
        self._fetched += answer.fetched
        if task.repeats in self._unsettled:
            self._unsettled.remove(task.repeats)
        if answer.unusable is not None:
            self._go_without(pool, task, _shown(answer.unusable))
        else:
            self._believe(pool, task, answer)

    def _go_without(self, pool: WorkerPool, task: Assignment, why: str) -> None:
        """Use the state no more that an answer says cannot be used."""
        segment = task.order.segment
        self._unusable.append(why)
        self._reports.event(f"a published state is not used: {why}")
        self._plan.drop_state(segment.first)
        self._plan.answered(segment, 0)
        if task.repeats is not None:
            self._arbitrate(pool, [task.repeats])

    def _believe(self, pool: WorkerPool, task: Assignment, answer: WorkerAnswer) -> None:
        """Take up what an answer says, and decide by whom it is to be repeated."""
        segment, name = task.order.segment, task.worker.name(answer)
        self._slowest = max(self._slowest, answer.seconds / len(segment))
        for other_task in pool.tasks():
            other_task.is_answered |= other_task.order == task.order
        facts = _facts(task, answer)
        for fact in facts:
            self._plan.learn(fact, name)
        self._record.add(facts, name)
        self._plan.answered(segment, 0 if task.is_extra else len(segment))
        if task.repeats is not None:
            other = task.repeats.answer
            assert other is not None, "an answer is repeated"
            if (other.roots, other.stopped is None) != (answer.roots, answer.stopped is None):
                self._arbitrate(pool, [task.repeats, task])
        elif answer.roots != self._plan.listing.roots[segment.first : segment.stop]:
            self._arbitrate(pool, [task])
        elif self._random.random() < self._sharing.repeat_share:
            self._unsettled.append(task)

    def _give_back(self, task: Assignment) -> None:
        """Hand a task out again that has no answer."""
        if task.is_extra:
            self._plan.answered(task.order.segment, 0)
        else:
            self._plan.lost(task.order.segment)

    def _arbitrate(self, pool: WorkerPool, tasks: list[Assignment]) -> None:
        """Repeat a segment here, and believe the workers no more whose answers were others."""
        computed = self._compute(tasks[0].order.segment)
        for task in tasks:
            if not _agrees(task, computed):
                self._distrust(pool, task.worker, "its answer could not be repeated here")

    def _compute(self, segment: Segment) -> Computed:
        """Execute a segment here, and take up what it comes to."""
        computed = compute_here(self._here, self._source, self._plan, segment, self._unusable.append)
        for fact in computed.facts:
            self._plan.learn(fact, _HERE)
        self._record.add(computed.facts, _HERE)
        if computed.wrong is not None:
            self._found.append(computed.wrong)
        return computed

    def _distrust(self, pool: WorkerPool, worker: Worker, why: str) -> None:
        """Forget what only this worker has computed, and use it no more. Raises NoWorkersError."""
        self._unsettled = [one for one in self._unsettled if one.worker is not worker]
        self._record.distrust(worker.names)
        self._plan.distrust(worker.names)
        self._dismiss(pool, worker, why)

    def _dismiss(self, pool: WorkerPool, worker: Worker, why: str) -> None:
        """Use a worker no more, if it was used. Raises NoWorkersError."""
        if worker not in pool.workers:
            return
        text = f"{worker.shown} is not used any more: {why}"
        self._distrusted.append(f"{worker.shown}: {why}")
        self._reports.event(text)
        task = pool.dismiss(worker)
        if task is not None:
            self._give_back(task)
        if not pool.workers:
            raise NoWorkersError(f"no worker is left: {text}")


def _shown(text: str) -> str:
    """Return a worker's words, cut off, and without what controls a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_WORDS])


def _fits(answer: WorkerAnswer, order: SegmentOrder) -> bool:
    """Return whether an answer has a root for each interval of its order, or of those before a stop; or none, since the
    published state could not be used."""
    if answer.unusable is not None:
        return not answer.roots and order.start.address is not None
    most = len(order.segment)
    return len(answer.roots) < most if answer.stopped is not None else len(answer.roots) == most


def _facts(task: Assignment, answer: WorkerAnswer) -> list[IntervalResult]:
    """Return the facts that an answer states."""
    starts = (task.order.start.root, *answer.roots)
    return [
        IntervalResult(interval, start, end)
        for interval, (start, end) in enumerate(zip(starts, answer.roots, strict=False), task.order.segment.first)
    ]


def _agrees(task: Assignment, computed: Computed) -> bool:
    """Return whether this process came to what an answer says, as far as both have gone."""
    assert task.answer is not None, "it was answered"
    known = {(fact.interval, fact.start): fact.end for fact in computed.facts}
    if any(known.get((fact.interval, fact.start), fact.end) != fact.end for fact in _facts(task, task.answer)):
        return False
    first, wrong = task.order.segment.first, computed.wrong
    ended = first + len(task.answer.roots)
    if wrong is not None and wrong.stopped is not None and first <= wrong.interval < ended:
        return False
    return task.answer.stopped is None or ended not in {fact.interval for fact in computed.facts}


@dataclass(slots=True)
class Computed:
    """Results of this process for a segment."""

    facts: list[IntervalResult] = field(default_factory=list)
    """Intervals that came to a root without a stop."""
    wrong: WrongInterval | None = None
    """The first interval that is not as claimed; none behind it was executed."""


def compute_here(
    run: Run, source: StateSource, plan: Plan, segment: Segment, unusable: Callable[[str], None]
) -> Computed:
    """Execute a segment up to its first interval that is not as claimed, from its state, or else from the nearest
    before it that can be had. The state before that interval is left as a checkpoint of the run: games start from it.

    run: continues after a stop. unusable: is told of states that cannot be used. Raises as `Run.step`, OSError."""
    first, before = _nearest(run, source, plan, segment.first, unusable)
    segment = Segment(first, segment.stop)
    found, root_before = Computed(), plan.root_before(first)
    stopped_before, run.stopped = run.stopped, None
    ends = execute(run, segment, before)
    del before
    try:
        for interval, after in enumerate(ends, first):
            root = state_root(after)
            del after
            if run.stopped is None:
                found.facts.append(IntervalResult(interval, root_before, root))
            if run.stopped is not None or root != plan.listing.roots[interval]:
                stopped = None if run.stopped is None else str(run.stopped)
                found.wrong = WrongInterval(interval=interval, root=root, stopped=stopped)
                if interval:
                    ends.close()
                    _keep_before(run, source, plan, interval)
                break
            root_before = root
    finally:
        run.stopped = run.stopped or stopped_before
    return found


def _keep_before(run: Run, source: StateSource, plan: Plan, interval: int) -> None:
    """Leave the state before an interval as a checkpoint of the run: executed again, since a copy of every interval's
    would be kept in memory or written where nothing is wrong, too."""
    done, states = _nearest(run, source, plan, interval, lambda reason: None)
    ends = execute(run, Segment(done, interval), states)
    while done < interval:
        del states
        states, done = next(ends), done + 1
    keep_state(run, interval, states)


def _nearest(
    run: Run, source: StateSource, plan: Plan, first: int, unusable: Callable[[str], None]
) -> tuple[int, list[torch.Tensor]]:
    """(intervals done, state after them): the last state at or before `first` that can be used."""
    for done in reversed([start for start in plan.listing.starts() if start <= first]):
        try:
            return done, starting_state(
                run.job, source, done, plan.listing.start(done, run.job.spec.initial_state_root)
            )
        except UnusableState as error:
            unusable(str(error))
    raise AssertionError("the initial state can always be used")
