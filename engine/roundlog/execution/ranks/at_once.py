"""A rank's part of a step, all of its samples at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from roundlog.execution.executor import Executor
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.local import local_program, samples_of_ranks
from roundlog.execution.ranks.ownership import Ownership
from roundlog.execution.ranks.reads import Reads
from roundlog.execution.ranks.rounding import RankRounding
from roundlog.execution.running_step import StepResult
from roundlog.operators import Inexact, StepInputs
from roundlog.operators.registry import Attributes, Tensors
from roundlog.program import Program

Received = Callable[[torch.Tensor], torch.Tensor]
"""Is shown every value that all ranks receive, and returns it."""


class RankPart(Protocol):
    """A rank's part of the steps of one program, which all ranks execute together."""

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """The result of a step, None if this rank has gone past a stop. The result has the next state's tensors that
        this rank computes, in program order. Raises DisturbedError once everything is exchanged, MachineError,
        LostRankError."""


class AtOnce:
    """A rank's part with all of its samples at once (implements RankPart)."""

    def __init__(self, program: Program, ranks: Ranks, bits: int, owners: Ownership, analysis: Analysis) -> None:
        self._program, self._ranks, self._bits, self._owners = program, ranks, bits, owners
        self._samples = samples_of_ranks(program, ranks.size)[ranks.rank]
        self._analysis = analysis
        left = owners.left_to_others(ranks.rank)
        self._local = local_program(program, self._analysis, self._samples, left)
        self._executor = Executor(self._local.program, bits)

    def run(self, inputs: StepInputs, rounding: RankRounding, received: Received) -> StepResult | None:
        """The result of a step, as `RankPart.run`."""
        reads = Reads(
            self._program,
            self._analysis,
            self._local,
            self._samples,
            self._ranks,
            inputs,
            rounding,
            self._bits,
            received,
            self._owners,
        )

        def rounded(index: int, operator: Inexact, given: Tensors, attributes: Attributes) -> torch.Tensor:
            original = self._local.original[index]
            if original in self._owners.operators:
                return rounding.own(original, operator, given, attributes, None)
            if not self._local.sliced[index]:
                return rounding.shared(original, operator, given, attributes)
            layout = self._analysis.layouts[original]
            assert layout is not None
            window = layout.window(self._program.nodes[original].type.shape, *self._samples)
            return rounding.own(original, operator, given, attributes, window)

        return self._executor.run_through(
            replace(inputs, data=reads), OfRank(rounded), reads.give, self._local.first_given
        )


class OfRank:
    """Rounding for the operators of a rank's program, by those of the whole one (implements Rounding)."""

    def __init__(self, rounded: Callable[[int, Inexact, Tensors, Attributes], torch.Tensor]) -> None:
        """rounded: the outputs of an inexact operator, by its place in the rank's program."""
        self.round = rounded

    def start_again(self) -> None:
        raise AssertionError("a rank's step runs once")
