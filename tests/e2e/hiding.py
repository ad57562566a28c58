"""A trainer that hides that its run has no end."""

from __future__ import annotations

import torch
from roundlog.execution.executor import Executor, RunningStep, StoppedError
from roundlog.program import Program
from roundlog.training.job import Job
from tiebreak.adversary.tampering import CunningEvidence
from tiebreak.chain.records import Side
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.trainer import TrainerRole


class Hiding(Executor):
    """Goes on where a run has no value, with ones."""

    def __init__(self, program: Program, bits: int) -> None:
        super().__init__(program, bits)
        self.running = _HidingStep

    def run(self, inputs, rounding, observe=None, pass_on=None):  # type: ignore[no-untyped-def]
        return super().run(inputs, rounding, observe or (lambda index, output: None), pass_on)


class _HidingStep(RunningStep):
    def compute(self, index: int) -> None:
        try:
            super().compute(index)
        except StoppedError as error:
            getattr(self._rounding, "entries", {}).pop(index, None)
            self.values[index] = torch.where(error.output.isfinite(), error.output, 1.0)
            if self.executor.program.nodes[index].op == "store":
                self.states.append(self.values[index])


class HidingTrainer(TrainerRole):
    def executor(self, job: Job) -> Executor:
        return Hiding(job.program, 32)

    def alter(self, evidence: Evidence) -> Evidence:
        return CunningEvidence(evidence, Side.TRAINER)
