"""Which values of a program are finite for certain, in every step that is not stopped."""

from __future__ import annotations

from roundlog.operators import Kind, operator
from roundlog.operators.registry import ints
from roundlog.program import DType, Program


def surely_finite(program: Program) -> list[bool]:
    """For every value, whether it is: what is computed inexactly, states, and what is made of nothing else."""
    sure: list[bool] = []
    for node in program.nodes:
        op = operator(node.op)
        if node.type.dtype != DType.F32 or op.kind == Kind.INEXACT or node.op in ("state", "schedule", "uniform"):
            sure.append(True)
        elif node.op == "constant":
            sure.append(all(bits & 0x7FFFFFFF < 0x7F800000 for bits in ints(node.attributes, "bits")))
        else:
            sure.append(node.op != "data" and all(sure[value] for value in node.inputs))
    return sure
