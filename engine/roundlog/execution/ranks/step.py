"""The execution of steps on one rank, together with all others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from roundlog.arithmetic import DisturbedError
from roundlog.execution.ranks.agreement import Agreement
from roundlog.execution.ranks.at_once import AtOnce, RankPart
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.local import analyse_for
from roundlog.execution.ranks.orders import Order
from roundlog.execution.ranks.ownership import ownership
from roundlog.execution.ranks.rounding import RankRounding
from roundlog.execution.ranks.states import KeptStates
from roundlog.execution.ranks.sweeps import InSweeps
from roundlog.operators import StepInputs, check, operator
from roundlog.operators.reduced_precision import check_narrow
from roundlog.operators.registry import integer
from roundlog.program import Program

_WELL, _STOPPED, _DISTURBED = range(3)


class RankStep:
    """The execution of steps on one rank, together with all others."""

    def __init__(self, program: Program, ranks: Ranks, bits: int, interval: int, directory: Path | None) -> None:
        """directory: as for `RanksExecutor`."""
        check(program)
        check_narrow(program, [operator(node.op) for node in program.nodes], bits)
        self.program, self.bits = program, bits
        self._ranks, self._agreement, self._directory = ranks, Agreement(ranks, interval), directory
        self._parts: dict[int, RankPart] = {}
        self._analysis = analyse_for(program, ranks.size)
        self._owners = ownership(program, self._analysis, ranks.size)
        self._stored = _stored(program, self._owners.left_to_others(ranks.rank))
        self.kept = KeptStates(program, ranks, self._owners)

    def begin(self, states: Sequence[torch.Tensor] | None, count: int) -> None:
        """Takes this rank's part of a state of so many tensors that rank 0 sends. All ranks call it."""
        self._agreement.begin_anew()
        self.kept.begin(states, count)

    def run(self, inputs: StepInputs, order: Order, log: bytes) -> tuple[float | None, list[bytes]]:
        """Goes on from the state that this rank has its part of to the next one. Returns the loss, None if the step
        stops and the state stays, and what all ranks tell of their roundings. Raises DisturbedError if any rank was
        disturbed, and the state stays; DisagreementError, OSError.

        inputs: of the step; its states are not used."""
        inputs = replace(inputs, states=self.kept.tensors)
        rounding = RankRounding(order.rounding, self._ranks.rank, inputs.step, self.bits, log)
        result, state, disturbed = None, _WELL, None
        try:
            result = self._part(order.sweeps).run(inputs, rounding, self._agreement.received)
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
        loss, computed = result.loss, list(result.states)
        # Each of its tensors is let go as soon as it is copied.
        del result
        self.kept.complete(self._stored, computed)
        self._agreement.after(inputs.step, self.kept.everybodys())
        return loss, self._ranks.gather_bytes(rounding.told())

    def _part(self, sweeps: int) -> RankPart:
        if sweeps not in self._parts:
            self._parts[sweeps] = (
                AtOnce(self.program, self._ranks, self.bits, self._owners, self._analysis)
                if sweeps == 1
                else InSweeps(self.program, self._ranks, self.bits, self._owners, sweeps, on_disk(self._directory))
            )
        return self._parts[sweeps]


def _stored(program: Program, left: frozenset[int]) -> list[int]:
    """Slots of the state whose stores are not left to other ranks."""
    return [
        integer(node.attributes, "slot")
        for index, node in enumerate(program.nodes)
        if node.op == "store" and index not in left
    ]


def on_disk(given: Path | None) -> Path:
    """The given directory, or the one where temporary files lie."""
    return Path(tempfile.gettempdir()) if given is None else given
