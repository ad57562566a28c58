"""Stops: steps without a result (a loss or next state that is not finite, an index out of range). This module makes the
state that a party claims in a dispute about one, and records the first stop, which a party needs after a restart before
it stakes a bond on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from roundlog.commitments import CHUNK_SIZE
from roundlog.execution import StoppedError
from roundlog.program import Program, first_store
from roundlog.storage import StorageError, read_record, write_record
from roundlog.training.fabricated_values import FabricatedValues

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
    bits: int,
    step: int,
    stores: Mapping[int, torch.Tensor],
    error: StoppedError,
    fabricated: FabricatedValues,
) -> list[torch.Tensor]:
    """The state that a party claims after a step that stops. stores: outputs of the store operators before the stop."""
    stop = Stop(error.operator, error.element)

    def slot(index: int) -> torch.Tensor:
        if index == stop.operator:
            return claimed_slot(program, bits, step, stop, error.output, fabricated)
        return stores[index] if index < stop.operator else fabricated_slot(program, bits, step, index, fabricated)

    return [slot(index) for index in range(first_store(program), len(program.nodes))]


def claimed_slot(
    program: Program, bits: int, step: int, stop: Stop, output: torch.Tensor, fabricated: FabricatedValues
) -> torch.Tensor:
    """The slot whose store stops, as a party claims it: right values before the chunk of the stopping element,
    fabricated values from that chunk on."""
    kind = program.nodes[stop.operator].type
    first = stop.element * kind.dtype.itemsize // CHUNK_SIZE * CHUNK_SIZE // kind.dtype.itemsize
    rest = fabricated_slot(program, bits, step, stop.operator, fabricated)
    return torch.cat([output.detach().cpu().reshape(-1)[:first], rest.reshape(-1)[first:]]).reshape(kind.shape)


def fabricated_slot(program: Program, bits: int, step: int, store: int, fabricated: FabricatedValues) -> torch.Tensor:
    """A slot that is stored behind the stop, as a party claims it: fabricated values."""
    return fabricated.tensor(program.nodes[store].type, bits, "state", step, store)
