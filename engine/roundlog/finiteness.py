"""Which values of a program are finite for certain, in every step that is not stopped, and whether the others are."""

from __future__ import annotations

import torch

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


class Doubts:
    """Checks that nobody waits for: on a device, the host would wait for every operator otherwise."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []
        self._bad: list[torch.Tensor] = []

    def about(self, x: torch.Tensor) -> None:
        """Whether x, FP32, is finite."""
        # In FP64 a sum of finite FP32 numbers cannot overflow.
        self._sums.append(x.sum(dtype=torch.float64))

    def unless_none(self, bad: torch.Tensor) -> None:
        """Whether none of these is true."""
        self._bad.append(bad.any())

    def confirmed(self) -> bool:
        """Whether any of it is not as it should be."""
        seen = [~torch.stack(self._sums).isfinite().all()] if self._sums else []
        return bool(torch.stack(seen + self._bad).any()) if seen or self._bad else False
