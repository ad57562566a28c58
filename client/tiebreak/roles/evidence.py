"""A party's evidence: the trees that it believes in, computed by the engine as deep as a dispute needs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from roundlog.adjudication.openings import needed
from roundlog.batches import BatchSource
from roundlog.dispute import DisputedOperator, MadeUp, StepTrace, trace_step
from roundlog.executor import Executor
from roundlog.job import Job
from roundlog.policies import alone
from roundlog.replay import replay_interval, replay_state
from roundlog.run import Run

from tiebreak.game import Leaves, Output, Place, Trace, Tree


class Evidence:
    """What a party knows about a run that it has executed in `run_dir`, and executes again where it is asked.

    `state_roots`: one an interval. `batches`, `executor`: as in the run; None for what the spec prescribes.
    `micro_batches`: into how many parts batches are cut, to the same bits; a step that is disputed itself is executed
    whole."""

    def __init__(
        self,
        job: Job,
        run_dir: Path,
        state_roots: Sequence[bytes],
        *,
        batches: BatchSource | None = None,
        executor: Executor | None = None,
        device: torch.device | str = "cpu",
        micro_batches: int = 1,
    ) -> None:
        self.job = job
        self.run_dir = run_dir
        self.made_up = MadeUp(run_dir)
        self._batches = batches
        self._executor = executor
        self._device = device
        self._micro_batches = micro_batches
        self._roots: dict[Place, Leaves] = {(): Leaves(state_roots)}
        # Of each the last one that was asked for: games are played one after the other.
        self._before: tuple[int, list[torch.Tensor]] | None = None
        self._trace: tuple[Place, Trace] | None = None
        self._output: tuple[Place, Output] | None = None

    @classmethod
    def recall(
        cls,
        job: Job,
        run_dir: Path,
        *,
        batches: BatchSource | None = None,
        executor: Executor | None = None,
        device: torch.device | str = "cpu",
        micro_batches: int = 1,
    ) -> Evidence | None:
        """The evidence of a run that was executed to its end; None if it was not."""
        roots = Run(job, run_dir, batches=batches).recorded_roots()
        if len(roots) < job.spec.intervals:
            return None
        return cls(job, run_dir, roots, batches=batches, executor=executor, device=device, micro_batches=micro_batches)

    @property
    def claim(self) -> Leaves:
        """The tree over all checkpoints."""
        return self._roots[()]

    def tree(self, place: Place) -> Tree:
        """The tree at a place of the dispute, executed again if need be. Raises KeyError where no tree hangs."""
        if len(place) < 2:
            if place not in self._roots:
                self._roots[place] = Leaves(self.step_roots(*place))
            return self._roots[place]
        if len(place) == 2:
            if self._trace is None or self._trace[0] != place:
                self._trace = place, Trace(self.trace(self.step_at(place)))
            return self._trace[1]
        if len(place) == 3:
            if self._output is None or self._output[0] != place:
                self._output = place, self.output(self.step_at(place), place[2])
            return self._output[1]
        raise KeyError(place)

    def step_at(self, place: Place) -> int:
        """The step, counted from 0, that a place is about."""
        return place[0] * self.job.spec.interval + place[1]

    # What a dishonest party does otherwise.

    def step_roots(self, interval: int) -> Sequence[bytes]:
        """The state roots after every step of an interval."""
        return replay_interval(self._run, interval)

    def trace(self, step: int, keep: Sequence[int] = ()) -> StepTrace:
        """All that a step computes; the outputs of the operators `keep` themselves."""
        run = self._run
        executor = run.executor
        if not isinstance(executor, Executor):
            executor = Executor(self.job.program, self.job.spec.rounding_bits)
        inputs = run.inputs(step, self._state_before(step))
        return trace_step(executor, inputs, alone(self.job.spec), self.made_up, keep)

    def output(self, step: int, q: int) -> Output:
        """The output of operator q of a step, with everything that can be opened of it."""
        trace = self.trace(step, sorted(needed(self.job.program, q)))
        return DisputedOperator(
            self.job,
            step,
            q,
            values=trace.values,
            states=self._state_before(step),
            made_up=self.made_up,
            stop=trace.stop,
        )

    # The engine.

    @cached_property
    def _run(self) -> Run:
        return Run(
            self.job,
            self.run_dir,
            batches=self._batches,
            device=self._device,
            micro_batches=self._micro_batches,
            go_on=True,
            executor=self._executor,
        )

    def _state_before(self, step: int) -> list[torch.Tensor]:
        if self._before is None or self._before[0] != step:
            self._before = step, replay_state(self._run, step)
        return self._before[1]
