"""The engine of a role: trains and audits jobs on this machine, and gives the trees of a run, computed as deep as a
dispute needs them."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from roundlog.adjudication import needed
from roundlog.dispute import DisputedOperator, FabricatedValues, StepTrace, outputs_of, trace_step
from roundlog.execution.microbatch import samples_of
from roundlog.rounding import without_log
from roundlog.training import (
    DEFAULT_OPTIONS,
    Job,
    Run,
    RunOptions,
    StepEvent,
    Trainer,
    TrainingResult,
    Verdict,
    audit,
    replay_interval,
    replay_state,
    run_bytes,
)

from tiebreak.strategy import Leaves, Output, Place, Trace, Tree

if TYPE_CHECKING:
    from roundlog.training import Helpers

CACHE_BYTES = 1 << 30
"""Memory for computed trees and states; games at the same place share them."""

K = TypeVar("K")
V = TypeVar("V")

T = TypeVar("T")


class DisputeTrees:
    """Trees of a run that a party has executed in `run_dir`. Parts are executed again where a dispute asks for more.

    A disputed step is executed for the roots of all its outputs, and once more for each operator that is opened. One
    thread at a time may call `tree`; any thread may call `at_hand`."""

    def __init__(
        self, job: Job, run_dir: Path, state_roots: Sequence[bytes], options: RunOptions = DEFAULT_OPTIONS
    ) -> None:
        """state_roots: one an interval. options: as of the run."""
        self.job = job
        self.run_dir = run_dir
        self.fabricated = FabricatedValues(run_dir)
        self._options = options
        self._roots: dict[Place, Leaves] = {(): Leaves(state_roots)}
        # Games at different places take turns, so more than the newest item of each kind is kept.
        self._before: LruCache[int, list[torch.Tensor]] = LruCache(CACHE_BYTES // 4)
        self._traces: LruCache[int, Trace] = LruCache(CACHE_BYTES // 4)
        self._outputs: LruCache[Place, Output] = LruCache(CACHE_BYTES // 2)

    @property
    def claim(self) -> Leaves:
        """The tree over all checkpoints."""
        return self._roots[()]

    def at_hand(self, place: Place) -> Tree | None:
        """Return the tree at a place if it is kept in memory; None otherwise."""
        if len(place) < 2:
            return self._roots.get(place)
        return self._traces.get(self.step_at(place)) if len(place) == 2 else self._outputs.get(place)

    def tree(self, place: Place) -> Tree:
        """Return the tree at a place of the dispute; executes again what it needs. Raises KeyError for a place without
        a tree."""
        if (found := self.at_hand(place)) is not None:
            return found
        if len(place) == 1:
            self._roots[place] = Leaves(replay_interval(self._run, *place))
            return self._roots[place]
        if len(place) == 2:
            return self._trace(self.step_at(place))
        if len(place) == 3:
            output = self.output(self.step_at(place), place[2])
            kept = needed(self.job.program, place[2])
            self._outputs.put(place, output, sum(self.job.program.nodes[q].type.nbytes for q in kept))
            return output
        raise KeyError(place)

    def step_at(self, place: Place) -> int:
        """Return the step of a place, counted from 0."""
        return place[0] * self.job.spec.interval + place[1]

    def trace(self, step: int) -> StepTrace:
        """Return the trace of a step."""
        return self._trace(step).step

    def outputs(self, step: int, operators: Collection[int]) -> dict[int, torch.Tensor]:
        """Return the outputs of some operators of a step, as `outputs_of` does."""
        inputs = self._run.inputs(step, self._state_before(step))
        return outputs_of(self._run.executor, inputs, without_log(self.job.spec), operators)

    def output(self, step: int, q: int) -> DisputedOperator:
        """Return the output of operator q of a step, with all that can be opened of it."""
        stop = self.trace(step).stop
        return DisputedOperator(
            self.job,
            step,
            q,
            values=self.outputs(step, needed(self.job.program, q)),
            states=self._state_before(step),
            fabricated=self.fabricated,
            stop=stop,
        )

    # The engine.

    @cached_property
    def _run(self) -> Run:
        # A disputed step that stops has a fabricated state.
        return Run(self.job, self.run_dir, replace(self._options, continue_after_stop=True, on_step=None))

    def _trace(self, step: int) -> Trace:
        if (kept := self._traces.get(step)) is not None:
            return kept
        inputs = self._run.inputs(step, self._state_before(step))
        trace = Trace(trace_step(self._run.executor, inputs, without_log(self.job.spec), self.fabricated))
        self._traces.put(step, trace, 200 * (trace.tree.count + 1))
        return trace

    def _state_before(self, step: int) -> list[torch.Tensor]:
        if (kept := self._before.get(step)) is None:
            kept = self._replayed(step)
            self._before.put(step, kept, sum(tensor.nbytes for tensor in kept))
        return kept

    def _replayed(self, step: int) -> list[torch.Tensor]:
        """Return the state before a step, computed from the nearest kept state at or after the last checkpoint."""
        checkpoint = step - step % self.job.spec.interval
        near = max((known for known in self._before if checkpoint <= known < step), default=None)
        if near is None or (states := self._before.get(near)) is None:
            return replay_state(self._run, step)
        return next(after for done, after in self._run.replay(near, states) if done + 1 == step)


class LruCache(Generic[K, V]):
    """Cache of the values used last, with a limit on their bytes; one value is kept whatever its size."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not kept."""
        if (found := self._kept.get(key)) is None:
            return None
        with suppress(KeyError):  # another thread has just put it out
            self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes, and drop the values that were not used for the longest time."""
        self._kept[key] = value, size
        while sum(one for _, one in self._kept.values()) > self._most and len(self._kept) > 1:
            self._kept.popitem(last=False)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._kept))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A party's engine.

    `options`: of its runs; a training uses whole batches. `helpers`: the other ranks, which help with trainings and
    audits, and not with what a game needs. `warn`: is told when they do not."""

    options: RunOptions = field(default_factory=RunOptions)
    helpers: Helpers | None = None
    warn: Callable[[str], None] = lambda text: None

    def train(self, job: Job, run_dir: Path, on_step: Callable[[StepEvent], None]) -> TrainingResult:
        """Train a job. Raises as `Trainer.run`."""
        options = replace(self.options, micro_batches=1, on_step=on_step)
        return self._executed(job, options, lambda chosen: Trainer(job, run_dir, chosen).run())

    def audit(
        self,
        job: Job,
        run_dir: Path,
        on_step: Callable[[StepEvent], None],
        *,
        claim: bytes | None,
        log_dir: Path | None,
        verify_log: float,
        on_distrust: Callable[[str], None],
    ) -> Verdict:
        """Audit a claimed checkpoint root (None: one that is not known yet), and continue after a stop. Raises as
        `audit`."""
        options = replace(self.options_for(job), on_step=on_step, continue_after_stop=True)
        return self._executed(
            job,
            options,
            lambda chosen: audit(
                job,
                run_dir,
                chosen,
                claim=claim,
                log_dir=log_dir,
                verify_log=verify_log,
                on_distrust=on_distrust,
            ),
        )

    def _executed(self, job: Job, options: RunOptions, run: Callable[[RunOptions], T]) -> T:
        """Return the result of a run by these options; with the helpers, if there are some."""
        if self.helpers is None:
            return run(options)
        return self.helpers.execute(
            job, lambda execution: run(replace(options, execution=execution)), options.execution, self.warn
        )

    def trees(self, job: Job, run_dir: Path, state_roots: list[bytes]) -> DisputeTrees:
        """Return the dispute trees of a run that was executed in `run_dir`. state_roots: one an interval."""
        return DisputeTrees(job, run_dir, state_roots, self.options_for(job))

    def recall(self, job: Job, run_dir: Path) -> DisputeTrees | None:
        """Return the dispute trees of a run that an earlier process has finished; None if there is none."""
        roots = Run(job, run_dir).recorded_roots()
        return self.trees(job, run_dir, roots) if len(roots) == job.spec.intervals else None

    def dispute_bytes(self, job: Job) -> int:
        """Most memory of a game about a step of a job: a step in micro-batches, the state before another step, and an
        operator's inputs and output."""
        nodes, count = job.program.nodes, self.options_for(job).micro_batches
        operators = (sum(nodes[value].type.nbytes for value in needed(job.program, q)) for q in range(len(nodes)))
        another = sum(kind.nbytes for kind in job.program.moved_states.values())
        return run_bytes(job.program, job.spec, count) + another + max(operators)

    def step_seconds(self, job: Job) -> float:
        """Return seconds of a step of a job as this process executes it for games, without the helpers."""
        return step_seconds(job, self.options_for(job))

    def options_for(self, job: Job) -> RunOptions:
        """Return the options of an audit of a job: at most as many micro-batches as there are samples."""
        return replace(self.options, micro_batches=min(self.options.micro_batches, samples_of(job.program)))


def step_seconds(job: Job, options: RunOptions = DEFAULT_OPTIONS) -> float:
    """Return seconds of the first step of a job, by this process alone, on the device and in the micro-batches of
    `options`: the faster of two executions, because the first one compiles."""
    seen: list[float] = []
    measured = RunOptions(
        device=options.device,
        micro_batches=options.micro_batches,
        on_step=lambda event: seen.append(event.seconds),
        continue_after_stop=True,
    )
    with tempfile.TemporaryDirectory(prefix="tiebreak-step-") as name:
        run = Run(job, Path(name), measured)
        for _ in range(2):
            run.step(0, list(job.initial.values()), without_log(job.spec))
    return min(seen)
