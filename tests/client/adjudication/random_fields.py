"""Jobs that only load data, of fields of every kind, and what was stored in them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from roundlog.capture.builder import Builder
from roundlog.commitments import CHUNK_SIZE, state_root, tensor_root
from roundlog.data import Field, data_tree, field_of, windows
from roundlog.descriptors import program_root
from roundlog.program import DType, Program, Stored, TensorType
from roundlog.randomness import row_of_position
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job

DTYPES = ("<f4", "?", "<i8", "u1", "i1", "<i2", "<u2", "<i4")

_PATTERNS = (0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x007FFFFF, 0x00800000, 0x7F7FFFFF)
"""-0, subnormal numbers, infinities and the ends of the normal ones."""


@dataclass(frozen=True)
class Column:
    """A field as it is stored: row i begins with element i * stride. `cut`: it is a stream that is cut into windows."""

    elements: NDArray[Any]
    shape: tuple[int, ...]
    stride: int
    rows: int
    cut: bool

    @property
    def items(self) -> int:
        return prod(self.shape)

    def field(self) -> Field:
        if self.cut:
            return windows(self.elements, window=self.items, stride=self.stride)
        return field_of("x", self.elements.reshape(self.rows, *self.shape))

    def stored(self, row: int, item: int) -> int:
        """An element as it is read: FP32 as its pattern."""
        elements = self.elements.view("<u4") if self.elements.dtype.kind == "f" else self.elements
        return int(elements[row * self.stride + item])

    def borders(self, row: int) -> list[int]:
        """Items of a row on both sides of the borders of the field's chunks."""
        per_chunk, first = CHUNK_SIZE // self.elements.itemsize, row * self.stride
        found = range(-(-first // per_chunk) * per_chunk - first, self.items + 1, per_chunk)
        return [item for border in found for item in (border - 1, border) if 0 <= item < self.items]


def column(rng: Random, rows: int) -> Column:
    dtype = np.dtype(rng.choice(DTYPES))
    per_chunk = CHUNK_SIZE // dtype.itemsize
    near = [per_chunk - 1, per_chunk, per_chunk + 1, 2 * per_chunk + 1]
    cut = rng.random() < 0.5
    shape = rng.choice([(), (1,), (3,), (5, 1, 7), *((one,) for one in near)])
    items = prod(shape)
    stride, extra = items, 0
    if cut:
        shape = shape or (1,)
        stride = rng.choice([1, 2, max(1, items - 1), items + 1, items + per_chunk])
        extra = rng.randrange(stride)  # behind the last whole window
    return Column(_elements(rng, dtype, (rows - 1) * stride + items + extra), shape, stride, rows, cut)


def _elements(rng: Random, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    numbers = np.random.default_rng(rng.randrange(1 << 32))
    special = numbers.random(count) < 0.3
    if dtype.kind == "b":
        return special
    if dtype.kind == "f":
        found = numbers.integers(0, 0x7F800000, count, np.uint32) | numbers.integers(0, 2, count, np.uint32) << 31
        found[special] = numbers.choice(np.array(_PATTERNS, np.uint32), int(special.sum()))
        return found.astype("<u4").view("<f4")
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    found = numbers.integers(least, most, count, dtype, endpoint=True)
    found[special] = numbers.choice(np.array([least, most], dtype), int(special.sum()))
    return found


def loading_job(rng: Random, columns: dict[str, Column]) -> Job:
    """A job whose steps load a batch of all fields, in another order than that of the fields, and change nothing."""
    fields = {name: one.field() for name, one in columns.items()}
    rows = next(iter(columns.values())).rows
    batch, steps = rng.randint(1, min(rows, 5)), rng.choice([1, 4])
    b = Builder()
    state = b.source_op("state", TensorType((1,), DType.F32), slot=0)
    for slot, field in rng.sample(list(enumerate(fields.values())), len(fields)):
        attributes: dict[str, int | str] = {"slot": slot}
        if field.kind.stride != field.kind.row.numel:
            attributes["stride"] = field.kind.stride
        if field.kind.stored is not Stored.AS_READ:
            attributes["stored"] = field.kind.stored.name.lower()
        b.source_op("data", TensorType((batch, *field.kind.row.shape), field.kind.row.dtype), **attributes)
    b.op("loss", b.constant(0.5, DType.F32))
    b._add("store", (state,), {"slot": 0}, b.type(state))
    program = Program(
        nodes=tuple(b.nodes), state_names=("s",), data_names=tuple(fields), schedule_names=("rate",), batch_size=batch
    )
    initial, schedule = {"s": torch.zeros(1)}, torch.ones(steps, 1)
    spec = TrainingSpec(
        steps=steps,
        interval=steps,
        program_root=program_root(program),
        operator_count=len(program.nodes),
        initial_state_root=state_root(initial.values()),
        state_count=1,
        data_root=data_tree(fields.values()).root,
        data_rows=rows,
        batch_size=batch,
        schedule_root=tensor_root(schedule),
        seed=rng.choice([0, 2**64 - 1, rng.randrange(2**64)]),
    )
    return Job(program=program, spec=spec, initial=initial, schedule=schedule, dataset=fields)


def elements_of(rng: Random, column: Column, spec: TrainingSpec, step: int) -> dict[int, int]:
    """Elements of a batch of a column, by their number, as they are read: the first, the last, one somewhere, and some
    on the borders of chunks."""
    found = {}
    for sample in {0, spec.batch_size - 1, rng.randrange(spec.batch_size)}:
        row = row_of_position(spec.seed, step * spec.batch_size + sample, spec.data_rows)
        for item in {0, column.items - 1, rng.randrange(column.items), *column.borders(row)[:4]}:
            found[sample * column.items + item] = column.stored(row, item)
    return found
