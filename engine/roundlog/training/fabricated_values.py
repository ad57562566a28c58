"""Fabricated values: pseudorandom values that a party claims where a run has none.

A run that stops (a loss or next state that is not finite, an index out of range) has no state after that step, but a
party has to play with whole trees. So it fabricates values and continues from them as from any others. Every claim
before and after the step is then right, given the values before it, and nobody else can make the same claim of the
step itself. So an opponent that claims a value where there is none differs from it at exactly that step, whatever it
copies from the party's moves. A known constant would not do: the opponent could claim it, too, and nothing could be
proven about it.

Stops are steps without a result (a loss or next state that is not finite, an index out of range). The first one is
recorded, since a party needs it after a restart before it stakes a bond on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_256
from pathlib import Path

import numpy as np
import torch

from roundlog.commitments import CHUNK_SIZE
from roundlog.execution import StoppedError
from roundlog.number_format import Format
from roundlog.program import DType, Program, TensorType, first_store
from roundlog.storage import StorageError, open_regular, read_record, replace_file, write_record

SECRET_BYTES = 32


class FabricatedValues:
    """Values derived from a secret, the same for the same place at every call. A place is any sequence of numbers and
    words."""

    def __init__(self, run_dir: Path) -> None:
        """run_dir: keeps the secret. It is drawn when it is first needed and is on disk before it is used, so that a
        killed process resumes with the same claims."""
        self._path = run_dir / "fabricated.key"

    @property
    def needed(self) -> bool:
        """Whether any value was ever fabricated in this directory."""
        return self._path.exists()

    @cached_property
    def _secret(self) -> bytes:
        try:
            with open_regular(self._path) as file:
                secret = file.read(SECRET_BYTES + 1)
        except FileNotFoundError:
            secret = os.urandom(SECRET_BYTES)
            with replace_file(self._path) as file:
                file.write(secret)
        if len(secret) != SECRET_BYTES:
            raise StorageError(self._path, f"is not a secret of {SECRET_BYTES} bytes")
        return secret

    def data(self, count: int, *place: int | str) -> bytes:
        """`count` bytes for a place. Raises StorageError, OSError."""
        return shake_256(self._secret + repr(place).encode()).digest(count)

    def tensor(self, kind: TensorType, f32_format: Format, *place: int | str) -> torch.Tensor:
        """A tensor for a place, without NaN and infinities: numbers are below 2, far from overflow in sums. f32_format:
        that of FP32 numbers."""
        data = np.frombuffer(self.data(kind.nbytes, *place), np.uint8)
        if kind.dtype == DType.BOOL:
            flat = torch.from_numpy((data & 1).astype(np.bool_))
        elif kind.dtype == DType.I64:
            flat = torch.from_numpy(data.view("<i8").astype(np.int64))
        else:
            stored, rounded = kind.dtype.number_format(), kind.dtype.number_format(f32_format)
            assert stored is not None and rounded is not None
            # Without the highest bit of the exponent.
            kept = ((1 << stored.width) - 1) & ~(1 << (stored.width - 2)) & -(1 << (stored.width - rounded.width))
            words = data.view(f"<u{stored.itemsize}")
            signed = (words & words.dtype.type(kept)).astype(f"i{stored.itemsize}")
            flat = torch.from_numpy(signed).view(kind.dtype.torch_dtype)
        return flat.reshape(kind.shape)


_NAME = "stopped.json"


@dataclass(frozen=True, slots=True)
class Stop:
    """The place of a stop: the operator, and its first element without a value."""

    operator: int
    element: int


def note_stop(run_dir: Path, step: int, stop: Stop) -> None:
    """Records a stop, unless an earlier one is on record. Raises OSError."""
    known = noted_stop(run_dir)
    if known is None or step < known[0]:
        write_record(run_dir / _NAME, {"step": step, "operator": stop.operator, "element": stop.element})


def noted_stop(run_dir: Path) -> tuple[int, Stop] | None:
    """(step, place in it) of the first stop; None without a readable record."""
    try:
        record = read_record(run_dir / _NAME)
        return int(record["step"]), Stop(int(record["operator"]), int(record["element"]))
    except (StorageError, KeyError, TypeError, ValueError):
        return None


def state_after_stop(
    program: Program,
    f32_format: Format,
    step: int,
    stores: Mapping[int, torch.Tensor],
    error: StoppedError,
    fabricated: FabricatedValues,
) -> list[torch.Tensor]:
    """The state that a party claims after a step that stops. stores: outputs of the store operators before the stop."""
    stop = Stop(error.operator, error.element)

    def slot(index: int) -> torch.Tensor:
        if index == stop.operator:
            return claimed_slot(program, f32_format, step, stop, error.output, fabricated)
        return stores[index] if index < stop.operator else fabricated_slot(program, f32_format, step, index, fabricated)

    return [slot(index) for index in range(first_store(program), len(program.nodes))]


def claimed_slot(
    program: Program, f32_format: Format, step: int, stop: Stop, output: torch.Tensor, fabricated: FabricatedValues
) -> torch.Tensor:
    """The slot whose store stops, as a party claims it: right values before the chunk of the stopping element,
    fabricated values from that chunk on."""
    kind = program.nodes[stop.operator].type
    first = stop.element * kind.dtype.itemsize // CHUNK_SIZE * CHUNK_SIZE // kind.dtype.itemsize
    rest = fabricated_slot(program, f32_format, step, stop.operator, fabricated)
    return torch.cat([output.detach().cpu().reshape(-1)[:first], rest.reshape(-1)[first:]]).reshape(kind.shape)


def fabricated_slot(
    program: Program, f32_format: Format, step: int, store: int, fabricated: FabricatedValues
) -> torch.Tensor:
    """A slot that is stored behind the stop, as a party claims it: fabricated values."""
    return fabricated.tensor(program.nodes[store].type, f32_format, "state", step, store)
