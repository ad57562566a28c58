"""Executor of steps by ranks: the bits of `roundlog.execution.executor.Executor`, by many processes.

Rank 0 runs a job as it would alone. Its executor tells the other ranks of every step, and all of them execute it
together. The others serve until rank 0 has no more steps.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import is_ as operator_is
from pathlib import Path

import torch

from roundlog.arithmetic import FULL_BITS, DisturbedError
from roundlog.execution.executor import Executor, StepExecutor
from roundlog.execution.microbatch import MicrobatchExecutor, micro_batches_of
from roundlog.execution.ranks.agreement import Agreement, DisagreementError
from roundlog.execution.ranks.at_once import AtOnce, RankPart
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.local import samples_of_ranks
from roundlog.execution.ranks.rounding import Orders, RankRounding, collect, log_bytes
from roundlog.execution.ranks.sweeps import InSweeps, sweeps_of
from roundlog.execution.running_step import StepResult
from roundlog.execution.ways import Observe
from roundlog.operators import StepInputs, check, operator
from roundlog.operators.reduced_precision import check_narrow
from roundlog.program import Program
from roundlog.rounding import Rounding

_HEADER = struct.Struct("<?q?qdq?qq")
"""Whether there is a step, its number, and the fields of `Orders`; how many states are sent, or `_GO_ON`; into how many
micro-batches each rank cuts its samples."""

_GO_ON = -1
"""The step begins with the states that the step before it has left."""

_WELL, _STOPPED, _DISTURBED = range(3)


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
        self._step = _RankStep(program, ranks, bits, interval, self._directory)
        self._ranks = ranks
        self._micro_batches = len(micro_batches_of(program, micro_batches))
        self._sweeps = sweeps_of(program, ranks.size, micro_batches)
        self._sent: list[torch.Tensor] | None = None
        """The states that the other ranks have, too; None if they have to begin anew."""
        self.is_between_steps = True
        """Whether the other ranks wait for the next step. An error in the midst of one, which they do not share, leaves
        them there."""

    @property
    def program(self) -> Program:
        return self._step.program

    @property
    def bits(self) -> int:
        return self._step.bits

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step, as `StepExecutor.run`. rounding: a Recorder or a Follower. observe: is called with whole
        outputs, so this rank then executes the step alone. Also raises LostRankError, DisagreementError."""
        if observe is not None:
            return self._alone.run(inputs, rounding, observe)
        orders = Orders.of(rounding)
        self.is_between_steps = False
        anew = not self._others_have(inputs.states)
        _tell(self._ranks, inputs.step, orders, len(inputs.states) if anew else _GO_ON, self._sweeps)
        log = self._ranks.broadcast_bytes(log_bytes(rounding)) if orders.has_log else b""
        if anew:
            for state in inputs.states:
                self._ranks.broadcast(state.contiguous().view(-1))
            self._step.begin_anew()
        self._sent = None
        try:
            result, told = self._step.run(inputs, orders, log, self._sweeps)
        except (DisturbedError, DisagreementError):
            # All ranks raise these, at the same place.
            self.is_between_steps = True
            raise
        self.is_between_steps = True
        if result is None:
            return self._stop_of(inputs, rounding)
        self._sent = result.states
        collect(rounding, told)
        return result

    def _others_have(self, states: Sequence[torch.Tensor]) -> bool:
        sent = self._sent
        return sent is not None and len(sent) == len(states) and all(map(operator_is, sent, states))

    @cached_property
    def _alone(self) -> StepExecutor:
        if self._micro_batches == 1:
            return Executor(self.program, self.bits)
        return MicrobatchExecutor(self.program, self._micro_batches, _on_disk(self._directory), self.bits)

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
    step = _RankStep(program, ranks, bits, interval, None)
    states: Sequence[torch.Tensor] = []
    done = 0
    while (told := _hear(ranks)) is not None:
        number, orders, coming, sweeps = told
        log = ranks.broadcast_bytes(None) if orders.has_log else b""
        if coming != _GO_ON:
            types = program.states.values() if coming else ()
            received = [torch.empty(kind.shape, dtype=kind.dtype.torch_dtype) for kind in types]
            for state in received:
                ranks.broadcast(state.view(-1))
            states = received
            step.begin_anew()
        try:
            result, _ = step.run(inputs_of(number, states), orders, log, sweeps)
        except DisturbedError:
            # Rank 0 tells of the step again.
            continue
        if result is not None:
            states = result.states
            done += 1
    return done


def dismiss(ranks: Ranks) -> None:
    """Tells the ranks that serve, from rank 0, that there are no more steps."""
    _tell(ranks, -1, None, _GO_ON, 1)


def await_dismissal(ranks: Ranks) -> None:
    """Waits, on another rank, until rank 0 says that there are no more steps. For an error of `serve` that all ranks
    share."""
    assert _hear(ranks) is None, "rank 0 tells of no step after such an error"


def _on_disk(given: Path | None) -> Path:
    return Path(tempfile.gettempdir()) if given is None else given


def _tell(ranks: Ranks, step: int, orders: Orders | None, coming: int, sweeps: int) -> None:
    fields = (
        (orders.records, orders.guard, orders.share, orders.secret, orders.has_log) if orders else (0, 0, 0.0, 0, 0)
    )
    header = _HEADER.pack(orders is not None, step, *fields, coming, sweeps)
    ranks.broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8))


def _hear(ranks: Ranks) -> tuple[int, Orders, int, int] | None:
    header = torch.empty(_HEADER.size, dtype=torch.uint8)
    ranks.broadcast(header)
    there, step, *fields, coming, sweeps = _HEADER.unpack(header.numpy().tobytes())
    return (step, Orders(*fields), coming, sweeps) if there else None


class _RankStep:
    """The execution of steps on one rank, together with all others."""

    def __init__(self, program: Program, ranks: Ranks, bits: int, interval: int, directory: Path | None) -> None:
        """directory: as for `RanksExecutor`."""
        check(program)
        check_narrow(program, [operator(node.op) for node in program.nodes], bits)
        self.program, self.bits = program, bits
        self._ranks, self._agreement, self._directory = ranks, Agreement(ranks, interval), directory
        self._parts: dict[int, RankPart] = {}
        # So that a batch with too few samples is refused at once.
        samples_of_ranks(program, ranks.size)

    def begin_anew(self) -> None:
        """Called on all ranks before a step from a state that rank 0 has sent."""
        self._agreement.begin_anew()

    def run(self, inputs: StepInputs, orders: Orders, log: bytes, sweeps: int) -> tuple[StepResult | None, list[bytes]]:
        """The result, None if the step stops, and what all ranks tell of their roundings. Raises DisturbedError if any
        rank was disturbed, DisagreementError, OSError."""
        rounding = RankRounding(orders, self._ranks.rank, inputs.step, self.bits, log)
        result, state, disturbed = None, _WELL, None
        try:
            result = self._part(sweeps).run(inputs, rounding, self._agreement.received)
            state = _WELL if result is not None else _STOPPED
        except DisturbedError as error:
            state, disturbed = _DISTURBED, error
        states = [one for (one,) in self._ranks.numbers(state)]
        if _DISTURBED in states:
            raise disturbed or DisturbedError(
                f"rank {states.index(_DISTURBED)} was disturbed in step {inputs.step}: a library that was loaded there "
                "changed how its process computes; load it before the run, or leave it out"
            )
        if _STOPPED in states:
            return None, []
        assert result is not None
        self._agreement.after(inputs.step, result.states)
        return result, self._ranks.gather_bytes(rounding.told())

    def _part(self, sweeps: int) -> RankPart:
        if sweeps not in self._parts:
            self._parts[sweeps] = (
                AtOnce(self.program, self._ranks, self.bits)
                if sweeps == 1
                else InSweeps(self.program, self._ranks, self.bits, sweeps, _on_disk(self._directory))
            )
        return self._parts[sweeps]
