"""Tensors as plain lists: a shape and the elements in row-major order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32

Index = tuple[int, ...]

NAMES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.bool: "bool",
}
FORMATS = {"f32": FLOAT32, "bf16": BFLOAT16, "f16": FLOAT16}


@dataclass(frozen=True)
class Array:
    """`items`: bit patterns of the format for f32, bf16 and f16, values for i64, 0 or 1 for bool."""

    shape: Index
    dtype: str
    items: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.items) == prod(self.shape), (self.shape, len(self.items))

    def __getitem__(self, index: Index) -> int:
        assert len(index) == len(self.shape)
        flat = 0
        for size, coordinate in zip(self.shape, index, strict=True):
            assert 0 <= coordinate < size, (index, self.shape)
            flat = flat * size + coordinate
        return self.items[flat]

    @property
    def wide(self) -> Array:
        """The same numbers, integers or bool; numbers by their FP32 patterns, whatever the format."""
        format = FORMATS.get(self.dtype, FLOAT32)
        return self if format == FLOAT32 else Array(self.shape, "f32", tuple(map(format.in_float32, self.items)))

    def broadcast(self, index: Index) -> int:
        """The element that an output index of a broadcast reads (NumPy's rule)."""
        tail = index[len(index) - len(self.shape) :]
        return self[tuple(0 if size == 1 else i for i, size in zip(tail, self.shape, strict=True))]


def indices(shape: Index) -> Iterator[Index]:
    """All multi-indices in row-major order."""
    return product(*(range(size) for size in shape))


def moved(index: Index, dim: int, coordinate: int) -> Index:
    """The index with another coordinate along one dimension."""
    return (*index[:dim], coordinate, *index[dim + 1 :])


def reduced(x: Array, dims: Index) -> tuple[Index, Callable[[Index], list[int]]]:
    """The shape with those axes of size 1, and the elements that each output element stands for, in row-major order."""
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.shape))

    def members(index: Index) -> list[int]:
        ranges = [range(x.shape[d]) if d in dims else (index[d],) for d in range(len(shape))]
        box = indices(tuple(len(r) for r in ranges))
        return [x[tuple(r[i] for r, i in zip(ranges, at, strict=True))] for at in box]

    return shape, members


def from_torch(tensor: torch.Tensor) -> Array:
    """Copies the bits, whatever the layout."""
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).reshape(-1)
    items: Sequence[int]
    if tensor.dtype == torch.float32:
        items = [bits & 0xFFFFFFFF for bits in dense.view(torch.int32).tolist()]
    elif tensor.is_floating_point():
        items = [bits & 0xFFFF for bits in dense.view(torch.int16).tolist()]
    else:
        items = [int(item) for item in dense.tolist()]
    return Array(tuple(tensor.shape), NAMES[tensor.dtype], tuple(items))
