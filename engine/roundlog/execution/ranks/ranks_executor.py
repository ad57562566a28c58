"""Executor of steps by ranks: the bits of `roundlog.execution.executor.Executor`, by many processes.

Rank 0 runs a job as it would alone. Its executor tells the other ranks of every step, and all of them execute it
together. The others serve until rank 0 has no more steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from roundlog.arithmetic import DisturbedError, MachineError
from roundlog.execution.executor import Executor, Observe, StepExecutor, StepResult
from roundlog.execution.microbatch import MicrobatchExecutor, micro_batches_of
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import (
    GO_ON,
    Agreement,
    DisagreementError,
    Giver,
    OrderKind,
    RankOrder,
    RankRounding,
    RoundingOrder,
    collect,
    give,
    log_bytes,
    next_order,
)
from roundlog.execution.ranks.rank_part import RankPart, analyse_for, passes_of
from roundlog.execution.ranks.rank_states import KeptStates, SharedStates, ownership
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import StepInputs, check, operator
from roundlog.operators.elementwise import check_narrow
from roundlog.operators.registry import integer
from roundlog.program import Program
from roundlog.rounding import Rounding


class RankStep:
    """The execution of steps on one rank, together with all others."""

    def __init__(
        self, program: Program, ranks: Ranks, f32_format: Format, interval: int, directory: Path | None
    ) -> None:
        """directory: as for `RanksExecutor`."""
        check(program)
        check_narrow(program, [operator(node.op) for node in program.nodes], f32_format)
        self.program, self.f32_format = program, f32_format
        self._ranks, self._agreement, self._directory = ranks, Agreement(ranks, interval), directory
        self._parts: dict[int, RankPart] = {}
        self._owners = ownership(program, analyse_for(program, ranks.size), ranks.size)
        self._stored = _stored(program, self._owners.left_to_others(ranks.rank))
        self.kept = KeptStates(program, ranks, self._owners)

    def begin(self, states: Sequence[torch.Tensor] | None, count: int) -> None:
        """Take this rank's part of a state of `count` tensors that rank 0 sends. All ranks call it."""
        self._agreement.begin_anew()
        self.kept.begin(states, count)

    def run(self, inputs: StepInputs, order: RankOrder, log: bytes) -> tuple[float | None, list[bytes]]:
        """Execute a step on the state that this rank has its part of. Return the loss, None if the step stops and the
        state stays, and what all ranks tell of their roundings. Raises DisagreementError, MachineError, OSError.

        inputs: of the step; its states are not used."""
        assert order.rounding is not None
        inputs = replace(inputs, states=self.kept.tensors)
        rounding = RankRounding(order.rounding, self._ranks.rank, inputs.step, log)
        try:
            result = self._part(order.passes).run(inputs, rounding, self._agreement.received)
        except DisturbedError as error:
            # One process would try again.
            raise error.__cause__ or MachineError(str(error)) from error
        stopped = self._ranks.numbers(int(result is None))
        if result is None or [1] in stopped:
            return None, []
        loss, computed = result.loss, list(result.states)
        # Each of its tensors is let go as soon as it is copied.
        del result
        self.kept.complete(self._stored, computed)
        self._agreement.after(inputs.step, self.kept.everybodys())
        return loss, self._ranks.gather_bytes(rounding.told())

    def _part(self, passes: int) -> RankPart:
        if passes not in self._parts:
            directory = on_disk(self._directory)
            self._parts[passes] = RankPart(self.program, self._ranks, self.f32_format, self._owners, passes, directory)
        return self._parts[passes]


def _stored(program: Program, left: frozenset[int]) -> list[int]:
    """Slots of the state whose stores are not left to other ranks."""
    return [
        integer(node.attributes, "slot")
        for index, node in enumerate(program.nodes)
        if node.op == "store" and index not in left
    ]


def on_disk(given: Path | None) -> Path:
    """Return the given directory, or the one where temporary files lie."""
    return Path(tempfile.gettempdir()) if given is None else given


class RanksExecutor:
    """An executor of steps of one program, on rank 0 of several ranks."""

    def __init__(
        self,
        program: Program,
        ranks: Ranks,
        f32_format: Format = FLOAT32,
        interval: int = 1,
        micro_batches: int = 1,
        directory: Path | None = None,
    ) -> None:
        """ranks: at least two. This process is number 0; the others `serve` the same program. interval: steps
        after which all compare what they have received, and the states. micro_batches: of the whole batch, so that
        every rank computes about as many samples at a time as a process alone would. directory: on a disk; holds slices
        of micro-batches (None: where temporary files lie).

        Raises ProgramError if the program does not pass the registry's check, or has fewer samples than ranks or
        micro-batches."""
        self._directory = directory
        self._step = RankStep(program, ranks, f32_format, interval, self._directory)
        self._ranks = ranks
        self._micro_batches = len(micro_batches_of(program, micro_batches))
        self._passes = passes_of(program, ranks.size, micro_batches)
        self._orders = Giver(ranks)
        self._state: Sequence[torch.Tensor] | None = None
        """The state, each rank with its parts; None if they have to begin anew."""

    @property
    def program(self) -> Program:
        return self._step.program

    @property
    def f32_format(self) -> Format:
        return self._step.f32_format

    @property
    def is_between_steps(self) -> bool:
        """Whether the other ranks wait for an order. An error in the midst of one, which they do not share, leaves them
        there."""
        return self._orders.is_idle

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Execute one step, as `StepExecutor.run`. rounding: a Recorder or a Follower. observe: is called with whole
        outputs, so this rank then executes the step alone. The next state is a `SharedStates`, to be read before the
        next step. Also raises LostRankError, DisagreementError."""
        if observe is not None:
            return self._alone.run(inputs, rounding, observe)
        states = inputs.states
        anew = not self._ranks_have(states)
        if anew and isinstance(states, SharedStates):
            # Another executor's, or one that the ranks have left behind, which raises before anybody waits for it.
            states = list(states)
        coming = len(states) if anew else GO_ON
        order = RankOrder(OrderKind.STEP, inputs.step, RoundingOrder.of(rounding), coming, self._passes)
        log = log_bytes(rounding)
        with self._orders.given(order, log):
            if anew:
                self._state = None
                self._step.begin(states, coming)
                self._state = inputs.states
            try:
                loss, told = self._step.run(inputs, order, log)
            except BaseException:
                # The next state may have been written over this one in part.
                self._state = None
                raise
        if loss is None:
            return self._stop_of(inputs, rounding)
        collect(rounding, told)
        self._state = SharedStates(self._step.kept, self._orders, self._ranks_have)
        return StepResult(self._state, loss)

    def _ranks_have(self, states: Sequence[torch.Tensor]) -> bool:
        return self._state is states

    @cached_property
    def _alone(self) -> StepExecutor:
        if self._micro_batches == 1:
            return Executor(self.program, self.f32_format)
        return MicrobatchExecutor(self.program, self._micro_batches, on_disk(self._directory), self.f32_format)

    def _stop_of(self, inputs: StepInputs, rounding: Rounding) -> StepResult:
        """Raise what one process raises: this rank executes the step again, alone, which stops at the same operator
        and element."""
        self._alone.run(inputs, rounding)
        raise DisagreementError(
            f"step {inputs.step} stops where several ranks execute it, and does not on rank 0 alone: one of the "
            "machines is broken; execute the run with fewer ranks to find out which"
        )


def serve(
    program: Program,
    ranks: Ranks,
    inputs_of: Callable[[int, Sequence[torch.Tensor]], StepInputs],
    f32_format: Format = FLOAT32,
    interval: int = 1,
) -> int:
    """Execute the steps that rank 0 orders, on another rank, until it says that there are no more. Return how many
    had a result.

    inputs_of: the inputs of a step, from its number and the states before it. interval: as rank 0's. Raises
    ProgramError as `RanksExecutor`, LostRankError, DisagreementError, MachineError."""
    step = RankStep(program, ranks, f32_format, interval, None)
    done = 0
    while True:
        order, log = next_order(ranks)
        if order.kind == OrderKind.END:
            return done
        if order.kind == OrderKind.SLOT:
            step.kept.give_slot(order.number)
            continue
        if order.kind == OrderKind.ROOTS:
            step.kept.roots()
            continue
        if order.coming != GO_ON:
            step.begin(None, order.coming)
        loss, _ = step.run(inputs_of(order.number, step.kept.tensors), order, log)
        done += loss is not None


def dismiss(ranks: Ranks) -> None:
    """Tell the ranks that serve, from rank 0, that there are no more steps."""
    give(ranks, RankOrder(OrderKind.END))


def await_dismissal(ranks: Ranks) -> None:
    """Wait, on another rank, until rank 0 says that there are no more steps. For an error of `serve` that all ranks
    share."""
    assert next_order(ranks)[0].kind == OrderKind.END, "rank 0 orders nothing after such an error"
