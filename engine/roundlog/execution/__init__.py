"""Execution of programs: whole steps, fused groups of operators, micro-batches, and the errors that stop a step."""

from roundlog.execution.batches import CPU, Batches
from roundlog.execution.executor import CheckedProgram, Executor, RunningStep, StepExecutor, StepResult
from roundlog.execution.microbatch import MicrobatchExecutor, micro_batches_of
from roundlog.execution.stops import IndexRangeError, NonFiniteError, StoppedError
