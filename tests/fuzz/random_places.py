"""Places in which a field's data may lie: each field of a data set draws its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import roundlog
import torch
from numpy.typing import NDArray
from roundlog.data import DataError

PLACES = ("memory", "tensor", "strided", "memmap", "written", "copied")
"""Places in which the data of a field may lie. "written" and "copied" are memory maps whose file had other numbers at
first: of mode r+, which writes into it, and of mode c, which does not."""

_IN_TENSORS = ("tensor", "strided")
_STORED_ALIKE = ("<f4", "<i8", "?")
"""Dtypes that a field of a tensor stores as they are."""


@dataclass(frozen=True)
class Column:
    """A field: its rows, or a stream that is cut into windows of it (`window` 0: not cut)."""

    elements: NDArray[Any]
    window: int = 0
    stride: int = 0

    def cut(self, source: object) -> object:
        return roundlog.windows(source, window=self.window, stride=self.stride) if self.window else source

    def widened(self, place: str) -> bool:
        """Whether a job stores it in other bytes than a NumPy array."""
        return place in _IN_TENSORS and self.elements.dtype not in map(np.dtype, _STORED_ALIKE)


def places_of(columns: Mapping[str, Column], draw: Random) -> dict[str, str]:
    """A place for each field: the same for all, or each field's own."""
    same = draw.choice(PLACES) if draw.random() < 0.2 else None
    return {name: same or draw.choice(PLACES) for name in columns}


def placed(columns: Mapping[str, Column], places: Mapping[str, str], directory: Path) -> dict[str, object]:
    """The data of a task, each field in its place."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        name: column.cut(_alone(column.elements, places[name], directory / f"{name}.bin"))
        for name, column in columns.items()
    }


def _alone(elements: NDArray[Any], place: str, path: Path) -> object:
    """A field that shares nothing with another one."""
    if place == "memory":
        return elements
    if place in _IN_TENSORS:
        tensor = torch.from_numpy(elements.astype(np.int64) if elements.dtype == "<u2" else elements.copy())
        # As of a user who has cut columns out of a larger tensor.
        return tensor if place == "tensor" else torch.stack([tensor, tensor], 1)[:, 1]
    if place == "memmap":
        return mapped(elements, path, "r")
    mapping = mapped(np.zeros_like(elements), path, "r+" if place == "written" else "c")
    mapping[:] = elements
    return mapping


def mapped(elements: NDArray[Any], path: Path, mode: Any) -> NDArray[Any]:
    """A part of a memory map that begins inside of its file."""
    head, tail = 3 * elements[:1].nbytes, 7
    path.write_bytes(b"\xa5" * head + elements.tobytes() + b"\xa5" * tail)
    return np.memmap(path, elements.dtype, mode, head, elements.shape)


def require_other_orders_are_refused(columns: Mapping[str, Column], directory: Path) -> str:
    """Big-endian maps, which no field can be, are refused in one sentence: never read as other numbers. Returns what
    was tried."""
    directory.mkdir(parents=True, exist_ok=True)
    tried = ""
    for name, column in columns.items():
        if column.elements.dtype.itemsize == 1:
            continue
        swapped = column.elements.astype(column.elements.dtype.newbyteorder(">"))
        try:
            roundlog.windows(mapped(swapped.reshape(-1), directory / f"{name}.big", "r"), window=1, stride=1)
        except DataError as error:
            assert f"is {swapped.dtype}" in str(error) and "\n" not in str(error), f"not a sentence: {error}"
            tried = f"{swapped.dtype} refused"
        else:
            raise AssertionError(f"{swapped.dtype} is taken as {column.elements.dtype}")
    return tried
