"""Execution of steps in micro-batches: the same bits in less memory (docs/numerics.md)."""

from roundlog.execution.microbatch.analysis import samples_of
from roundlog.execution.microbatch.microbatch_executor import MicrobatchExecutor, micro_batches_of, peak_bytes

__all__ = ["MicrobatchExecutor", "micro_batches_of", "peak_bytes", "samples_of"]
