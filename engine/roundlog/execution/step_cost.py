"""Seconds that a step will take, reckoned from its program and three short measurements on this machine."""

from __future__ import annotations

import time
from math import prod

import torch

from roundlog.definitions import OperatorKind
from roundlog.number_format import BFLOAT16, FLOAT32, Format
from roundlog.operators import Inexact, Summation, operator
from roundlog.operators.contraction import Contraction
from roundlog.program import Program
from roundlog.rounding import Recorder

_SIDE = 1024
"""Rows, columns and terms of the products that are measured."""
_ELEMENTS = 1 << 20
"""Elements of the function that is measured."""


def estimate_step_seconds(program: Program) -> float:
    """Seconds of one step by one thread, to about a factor of two: multiplications of its products, by format, and
    elements of everything else. Takes about half a second."""
    full = torch.randn(_SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    short = full.bfloat16()
    per_product = {
        True: _seconds("matmul", [short, short], BFLOAT16) / _SIDE**3,
        False: _seconds("matmul", [full, full], FLOAT32) / _SIDE**3,
    }
    per_function = _seconds("exp", [torch.linspace(-1, 1, _ELEMENTS)], FLOAT32) / _ELEMENTS
    total = 0.0
    for node in program.nodes:
        op, inputs = operator(node.op), [program.nodes[value].type for value in node.inputs]
        if isinstance(op, Contraction):
            terms = op.terms([kind.shape for kind in inputs], node.attributes)
            total += node.type.numel * terms * per_product[all(kind.dtype.is_short for kind in inputs)]
        elif node.op == "tensor_core_matmul":
            total += node.type.numel * inputs[0].shape[-1] * per_product[True]
        elif isinstance(op, Inexact):
            read = max(prod(kind.shape) for kind in inputs)
            total += read * per_function / (4 if isinstance(op, Summation) else 1)
        elif op.kind == OperatorKind.EXACT:
            total += node.type.numel * per_function / 16
    return total


def _seconds(name: str, inputs: list[torch.Tensor], format: Format) -> float:
    """The faster of two runs of an operator: the first one may compile."""
    op, taken = operator(name), []
    assert isinstance(op, Inexact)
    for _ in range(2):
        started = time.process_time()
        Recorder(4).round(0, op, inputs, {}, format)
        taken.append(time.process_time() - started)
    return min(taken)
