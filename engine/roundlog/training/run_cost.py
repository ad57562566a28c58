"""Memory and time that runs of a program take, reckoned from its operators; time with three short measurements on this
machine."""

from __future__ import annotations

import time
from math import prod

import torch

from roundlog.commitments import BLOCK_SIZE
from roundlog.data import HELD_BYTES
from roundlog.definitions import OperatorKind
from roundlog.execution.microbatch import peak_bytes
from roundlog.number_format import BFLOAT16, FLOAT32, Format
from roundlog.operators import Inexact, Summation, operator
from roundlog.operators.contraction import Contraction
from roundlog.operators.registry import ROUNDING_BYTES
from roundlog.program import Program, first_store
from roundlog.rounding import Recorder
from roundlog.spec import TrainingSpec


def run_bytes(program: Program, spec: TrainingSpec, micro_batches: int = 1) -> int:
    """Peak memory of a run in bytes, for state, data and one step: an upper bound. Raises as `step_bytes`."""
    first, kinds = first_store(program), program.states.values()
    # A tensor that no step changes is in memory once.
    state = sum(kind.nbytes * (1 if program.keeps_slot(first + slot) else 2) for slot, kind in enumerate(kinds))
    data = sum(kind.nbytes(spec.data_rows) for kind in program.fields.values())
    # Data that are not held are read 16 MiB or a row at a time, and known by the tree over 32 bytes of each block.
    row = max((kind.nbytes(1) for kind in program.fields.values()), default=0)
    rows = data if data <= HELD_BYTES else HELD_BYTES // 4 + row + 64 * (data // BLOCK_SIZE)
    schedule = 4 * spec.steps * len(program.schedule_names)
    return state + rows + schedule + step_bytes(program, spec, micro_batches)


def step_bytes(program: Program, spec: TrainingSpec, micro_batches: int = 1) -> int:
    """Peak memory of one step in bytes, without the state: an upper bound. Raises ProgramError if there are fewer
    samples than micro-batches."""
    need = peak_bytes(program, micro_batches)
    if not spec.log_decides and spec.f32_format == FLOAT32:
        return need
    # Other policies and widths run in plain torch. Where the log decides, it packs a byte for every element of an
    # inexact operator's output, and keeps a fifth of that for up to four steps until it is on disk.
    largest = max((node.type.numel for node in program.nodes), default=0)
    inexact = sum(node.type.numel for node in program.nodes if isinstance(operator(node.op), Inexact))
    return need + ROUNDING_BYTES * largest + (inexact if spec.log_decides else 0)


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
