"""Disputes of a single step, from a party's side: all that the step computes as one tree, the chunks of one output,
the running results of one sum, and proofs of single elements (docs/protocol.md)."""

from roundlog.dispute.disputed_operator import DisputedOperator, ElementMaterial, RunningResults, running_results
from roundlog.dispute.step_trace import (
    StepTrace,
    half_of,
    operators_half,
    outputs_of,
    trace_step,
    trace_tree,
)
from roundlog.training.fabricated_values import FabricatedValues
