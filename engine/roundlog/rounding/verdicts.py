"""Log checking: what a log says of the elements near a boundary, held against what is known of them here."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic import FULL_BITS, adjacent, in_format
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.rounding_loops import weigh as weigh_by_kernel
from roundlog.log import Decision, Entries
from roundlog.log.entries import PayloadError
from roundlog.operators.bounds import Ambiguous
from roundlog.rounding.resolve import ends


class ElementVerdict(enum.IntEnum):
    """Verdict on an element; those from SAMPLED on have to be resolved."""

    CERTAIN = 0
    """Here there is one candidate, and the log says nothing else."""
    FOLLOWED = 1
    """The log names one of the candidates, and is believed."""
    CONTRADICTED = 2
    """Here there is one candidate, and the log says something else: it is wrong."""
    SAMPLED = 3
    """The log names one of the candidates, and is verified."""
    IMPOSSIBLE = 4
    """Wrong: the log names none of the candidates."""
    MISSING = 5
    """The log says nothing."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Marked elements, n of them, with what the log's check found."""

    values: npt.NDArray[np.float32]
    """float32[n]: the candidate where there is one; what the log says, where it says something; else the lower one."""
    verdicts: npt.NDArray[np.uint8]
    """uint8[n]: an ElementVerdict each."""


def weigh(
    marked: Ambiguous, entries: Entries, sampled: npt.NDArray[np.bool_], reach: float, bits: int = FULL_BITS
) -> Weighed:
    """sampled: bool[n], the marked elements whose decisions are verified. reach: up and down are for elements with one
    boundary within reach * d, and name its two sides. In one loop where there is a kernel for it.

    Raises PayloadError for entries with other values than decisions to log one."""
    by_value = entries.decisions == int(Decision.VALUE)
    if int(np.count_nonzero(by_value)) != len(entries.values):
        raise PayloadError(f"{len(entries.values)} values are logged for {np.count_nonzero(by_value)} decisions")
    if bits != FULL_BITS:
        return weigh_by_reference(marked, entries, sampled, reach, bits)
    return Weighed(
        *weigh_by_kernel(
            marked.y.numpy(),
            marked.d.numpy(),
            marked.indices.numpy(),
            interval_factor(1.0),
            interval_factor(reach),
            (entries.indices, entries.decisions, entries.values.view(np.float32)),
            sampled,
        )
    )


def weigh_by_reference(
    marked: Ambiguous, entries: Entries, sampled: npt.NDArray[np.bool_], reach: float, bits: int
) -> Weighed:
    """`weigh`, in torch."""
    low, high = ends(marked, bits=bits)
    far_low, far_high = ends(marked, reach, bits)
    found, decision, value = _find(entries, marked.indices)
    by_value, up = decision == int(Decision.VALUE), decision == int(Decision.UP)
    one_boundary = adjacent(far_low, far_high, bits)
    certain = low == high
    agrees = torch.where(by_value, value == low, one_boundary & (torch.where(up, far_high, far_low) == low))
    said = torch.where(by_value, value, torch.where(up, high, low))
    candidate = (value >= low) & (value <= high) & in_format(value, bits)
    possible = torch.where(by_value, candidate, one_boundary)
    verdicts = np.select(
        [
            (certain & (~found | agrees)).numpy(),
            certain.numpy(),
            ~found.numpy(),
            ~possible.numpy(),
            sampled,
        ],
        [
            np.uint8(verdict)
            for verdict in (
                ElementVerdict.CERTAIN,
                ElementVerdict.CONTRADICTED,
                ElementVerdict.MISSING,
                ElementVerdict.IMPOSSIBLE,
                ElementVerdict.SAMPLED,
            )
        ],
        np.uint8(ElementVerdict.FOLLOWED),
    )
    return Weighed(torch.where(certain | ~found, low, said).numpy(), verdicts)


def _find(entries: Entries, elements: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(whether there is an entry, its decision, its value or zero) for every one of these elements, int64[m]."""
    if not len(entries):
        nothing = torch.zeros_like(elements)
        return nothing.bool(), nothing, nothing.to(torch.float32)
    values = np.zeros(len(entries), dtype=np.uint32)
    values[entries.decisions == int(Decision.VALUE)] = entries.values
    position = np.searchsorted(entries.indices, elements.numpy()).clip(max=len(entries) - 1)
    return (
        torch.from_numpy(entries.indices[position] == elements.numpy()),
        torch.from_numpy(entries.decisions[position].astype(np.int64)),
        # + 0.0: a logged -0 is the +0 that an inexact operator gives.
        torch.from_numpy(values[position].view(np.float32) + np.float32(0.0)),
    )
