"""Tensors as plain lists: a shape and the elements in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32

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

    shape: tuple[int, ...]
    dtype: str
    items: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.items) == prod(self.shape), (self.shape, len(self.items))


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


def words_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Encodings of numbers, with the format's one NaN; values of integers and truth values."""
    x = from_torch(tensor)
    form = FORMATS.get(x.dtype)
    if form is None:
        return x.items
    return tuple(form.nan if (word & form.sign - 1) > form.infinity else word for word in x.items)
