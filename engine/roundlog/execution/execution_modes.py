"""Modes of execution of one step: in order, in groups, with checks deferred, and past stops.

All give the same bits. `start` makes a step that has computed nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from roundlog.commitments import canonical
from roundlog.execution.fusion import Group, deaths, plan
from roundlog.execution.running_step import CheckedProgram, RunningStep
from roundlog.execution.stops import DeferredChecks, StoppedError

Start = Callable[[], RunningStep]
Observe = Callable[[int, torch.Tensor], None]
"""Called with every operator's index and output, in program order."""


class Mode(Protocol):
    """A way in which one step is run."""

    def run(self, start: Start) -> RunningStep:
        """Runs a step to its end. Raises StoppedError, which names the first operator in program order that stops."""


class InOrder:
    """Operator by operator, in program order; every output can be observed."""

    def __init__(self, checked: CheckedProgram, observe: Observe | None = None) -> None:
        """observe: called with outputs in which every NaN has the same bits."""
        self._checked = checked
        self._observe = observe

    def execute(self, running: RunningStep) -> None:
        for index in range(len(self._checked.program.nodes)):
            running.compute(index)
            if self._observe is not None:
                self._observe(index, canonical(running.values[index]))
            running.forget(self._checked.last_uses.get(index, []))

    def run(self, start: Start) -> RunningStep:
        running = start()
        self.execute(running)
        return running


class InGroups:
    """In groups: each chain of exact elementwise operators runs fused, as one kernel. FP32 only."""

    def __init__(self, checked: CheckedProgram) -> None:
        self._plan = plan(checked.program)
        self._dead_after = deaths(checked.program, self._plan)
        self._in_order = InOrder(checked)

    def execute(self, running: RunningStep) -> None:
        for item, dead in zip(self._plan, self._dead_after, strict=True):
            if isinstance(item, Group):
                running.compute_group(item)
            else:
                running.compute(item)
            running.forget(dead)

    def run(self, start: Start) -> RunningStep:
        running = start()
        try:
            self.execute(running)
        except StoppedError:
            # Groups run later than their operators' places in the program. Program order finds the first that stops.
            running.rounding.start_again()
            self._in_order.run(start)
            raise
        return running


class Deferred:
    """With deferred checks, for devices: one check at the end of the step says whether loss and next state are
    finite."""

    def __init__(self, checked: CheckedProgram, mode: InOrder | InGroups) -> None:
        self._mode = mode
        self._in_order = InOrder(checked)

    def run(self, start: Start) -> RunningStep:
        running = start()
        running.deferred = DeferredChecks()
        try:
            self._mode.execute(running)
            stopped = running.deferred.confirmed()
        except StoppedError:
            stopped = True
        if not stopped:
            return running
        # The first operator that stops is found by checking each, in program order.
        running.rounding.start_again()
        return self._in_order.run(start)


class Through:
    """To the end in any case, for a step that others execute with this process: a stop is noted and gone past."""

    def __init__(self, mode: InOrder | InGroups) -> None:
        self._mode = mode

    def run(self, start: Start) -> RunningStep:
        running = start()
        running.goes_on = True
        if running.inputs.device.type != "cpu":
            running.deferred = DeferredChecks()
        self._mode.execute(running)
        if running.deferred is not None and running.deferred.confirmed():
            running.gone_on = True
        return running


class PastStops:
    """Operator by operator, past a loss or next state that is not finite, to find the operator at which that began."""

    def __init__(
        self, checked: CheckedProgram, see: Callable[[int, Mapping[int, torch.Tensor]], None], end: int | None = None
    ) -> None:
        """see: called after every operator with its index and the values that are alive. end: the first operator that
        is left out."""
        self._checked = checked
        self._see = see
        self._end = len(checked.program.nodes) if end is None else end

    def run(self, start: Start) -> RunningStep:
        """Raises IndexRangeError."""
        running = start()
        running.stops = False
        for index in range(self._end):
            running.compute(index)
            self._see(index, running.values)
            running.forget(self._checked.last_uses.get(index, []))
        return running
