"""Executor of steps by ranks: the bits of `roundlog.execution.executor.Executor`, by many processes.

Rank 0 runs a job as it would alone. Its executor tells the other ranks of every step, and all of them execute it
together. The others serve until rank 0 has no more steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch

from roundlog.arithmetic import FULL_BITS, DisturbedError
from roundlog.execution.execution_modes import Observe
from roundlog.execution.executor import Executor, StepExecutor
from roundlog.execution.microbatch import MicrobatchExecutor, micro_batches_of
from roundlog.execution.ranks.agreement import DisagreementError
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import GO_ON, Giver, Order, OrderKind, give, next_order
from roundlog.execution.ranks.rounding import RoundingOrder, collect, log_bytes
from roundlog.execution.ranks.states import SharedStates
from roundlog.execution.ranks.step import RankStep, on_disk
from roundlog.execution.ranks.sweeps import sweeps_of
from roundlog.execution.running_step import StepResult
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding


class RanksExecutor:
    """An executor of steps of one program, on rank 0 of several ranks."""

    def __init__(
        self,
        program: Program,
        ranks: Ranks,
        bits: int = FULL_BITS,
        interval: int = 1,
        micro_batches: int = 1,
        directory: Path | None = None,
    ) -> None:
        """ranks: at least two, of which this process is number 0; the others `serve` the same program. interval: steps
        after which all compare what they have received, and the states. micro_batches: of the whole batch, so that
        every rank computes about as many samples at a time as a process alone would. directory: on a disk; holds slices
        of micro-batches (None: where temporary files lie).

        Raises ProgramError if the program does not pass the registry's check, or has fewer samples than ranks or
        micro-batches."""
        self._directory = directory
        self._step = RankStep(program, ranks, bits, interval, self._directory)
        self._ranks = ranks
        self._micro_batches = len(micro_batches_of(program, micro_batches))
        self._sweeps = sweeps_of(program, ranks.size, micro_batches)
        self._orders = Giver(ranks)
        self._state: Sequence[torch.Tensor] | None = None
        """The state of which all ranks have their parts; None if they have to begin anew."""

    @property
    def program(self) -> Program:
        return self._step.program

    @property
    def bits(self) -> int:
        return self._step.bits

    @property
    def is_between_steps(self) -> bool:
        """Whether the other ranks wait for an order. An error in the midst of one, which they do not share, leaves them
        there."""
        return self._orders.is_idle

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step, as `StepExecutor.run`. rounding: a Recorder or a Follower. observe: is called with whole
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
        order = Order(OrderKind.STEP, inputs.step, RoundingOrder.of(rounding), coming, self._sweeps)
        with self._orders.given(order):
            log = self._ranks.broadcast_bytes(log_bytes(rounding)) if order.rounding.has_log else b""
            if anew:
                self._state = None
                self._step.begin(states, coming)
                self._state = inputs.states
            try:
                loss, told = self._step.run(inputs, order, log)
            except DisturbedError:
                raise
            except BaseException:
                # The next state may have been written over this one in part.
                self._state = None
                raise
        if loss is None:
            return self._stop_of(inputs, rounding)
        collect(rounding, told, self._ranks.membership.foreign)
        self._state = SharedStates(self._step.kept, self._orders, self._ranks_have)
        return StepResult(self._state, loss)

    def _ranks_have(self, states: Sequence[torch.Tensor]) -> bool:
        return self._state is states

    @cached_property
    def _alone(self) -> StepExecutor:
        if self._micro_batches == 1:
            return Executor(self.program, self.bits)
        return MicrobatchExecutor(self.program, self._micro_batches, on_disk(self._directory), self.bits)

    def _stop_of(self, inputs: StepInputs, rounding: Rounding) -> StepResult:
        """Raises what one process raises: this rank executes the step again, alone, which stops at the same operator
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
    bits: int = FULL_BITS,
    interval: int = 1,
) -> int:
    """Executes the steps that rank 0 tells of, on another rank, until it says that there are no more. Returns how many
    had a result.

    inputs_of: the inputs of a step, from its number and the states before it. interval: as rank 0's. Raises
    ProgramError as `RanksExecutor`, LostRankError, DisagreementError, MachineError."""
    step = RankStep(program, ranks, bits, interval, None)
    done = 0
    while (order := next_order(ranks)).kind != OrderKind.END:
        if order.kind == OrderKind.SLOT:
            step.kept.give_slot(order.number)
            continue
        if order.kind == OrderKind.ROOTS:
            step.kept.roots()
            continue
        log = ranks.broadcast_bytes(None) if order.rounding.has_log else b""
        if order.coming != GO_ON:
            step.begin(None, order.coming)
        try:
            loss, _ = step.run(inputs_of(order.number, step.kept.tensors), order, log)
        except DisturbedError:
            # Rank 0 orders the step again.
            continue
        done += loss is not None
    return done


def dismiss(ranks: Ranks) -> None:
    """Tells the ranks that serve, from rank 0, that there are no more steps."""
    give(ranks, Order(OrderKind.END))


def await_dismissal(ranks: Ranks) -> None:
    """Waits, on another rank, until rank 0 says that there are no more steps. For an error of `serve` that all ranks
    share."""
    assert next_order(ranks).kind == OrderKind.END, "rank 0 orders nothing after such an error"
