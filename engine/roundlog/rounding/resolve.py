"""Resolved ambiguous elements, and the trainer's side: round, and write down every decision that another machine
might find ambiguous. An auditor without a log uses the same class and throws the entries away: that audit gives the
same bits."""

from __future__ import annotations

from math import inf
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic import adjacent, as_dtype, round_interval, round_to
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.marking import all_below
from roundlog.kernels.rounding_loops import ends as ends_by_kernel
from roundlog.kernels.rounding_loops import judge as judge_by_kernel
from roundlog.kernels.rounding_loops import write_down
from roundlog.log import Entries, PayloadKind
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact
from roundlog.operators.bounds import Ambiguous, mark_by_reference
from roundlog.operators.registry import Attributes, Tensors, operands
from roundlog.rounding.protocols import RecordingRounding, Window, WindowRounding, in_order

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

AUDITOR_REACH = 4
"""An honest entry lies within guard * d of a boundary on the trainer's machine, so within (guard + 2) d on the
auditor's; what is beyond that covers that the two machines compute d itself in FP64. The auditor's reach is
(guard + AUDITOR_REACH) d."""

TRAINER_REACH = 7
"""A trainer writes up or down only where (guard + TRAINER_REACH) d holds a single boundary. That interval contains
the auditor's reach, so the auditor always knows which boundary is meant, and an entry can be wrong in one way only."""


AT_ONCE = 1 << 16
"""Ambiguous elements that are decided at once: where hostile data mark them all, that takes little memory."""


def pieces(marked: Ambiguous) -> list[Ambiguous]:
    """Views of so many elements at a time, in order."""
    count = marked.indices.numel()
    if count <= AT_ONCE:
        return [marked] if count else []
    return [marked.of(slice(start, start + AT_ONCE)) for start in range(0, count, AT_ONCE)]


def certify(
    operator: Inexact, inputs: Tensors, attributes: Attributes, scale: float, format: Format
) -> tuple[torch.Tensor, Ambiguous]:
    """`Inexact.certify`, to a format, without the elements that are exact, or infinite for certain. What is rounded is
    of the format's dtype or of FP32."""
    by_kernel = None if format == FLOAT32 else operator.certify_short(inputs, attributes, scale, format)
    if by_kernel is not None:
        rounded, marked = by_kernel
    elif format == FLOAT32:
        rounded, marked = operator.certify(inputs, attributes, scale)
    else:
        y, bound = operator.evaluate(inputs, attributes)
        rounded, marked = mark_by_reference(y, bound, scale, format)
    return rounded, _without_overflow(_without_exact(rounded, marked, format), scale, format)


def _without_exact(rounded: torch.Tensor, marked: Ambiguous, format: Format) -> Ambiguous:
    """Kernels mark ties. Where d is 0, y is the value itself, and is rounded here, into `rounded`."""
    if bool((marked.d > 0).all()):
        return marked
    right = round_to(marked.y, format)
    exact = (marked.d == 0) & marked.y.isfinite()
    rounded.view(-1)[marked.indices[exact].to(rounded.device)] = right[exact].to(rounded.device, rounded.dtype)
    return marked.of(~exact)


def _without_overflow(marked: Ambiguous, scale: float, format: Format) -> Ambiguous:
    """Kernels mark whatever is too large for the format. If both ends of an interval round to the same infinity, so
    does the value, which is rounded already."""
    if not marked.indices.numel() or all_below(marked.y.numpy(), format.limit / 2):
        return marked
    low, high = ends(marked, scale, format)
    return marked.of(~((low == high) & low.isinf()))


def ends(marked: Ambiguous, scale: float = 1.0, format: Format = FLOAT32) -> tuple[torch.Tensor, torch.Tensor]:
    """f32[n], f32[n]: y - scale d and y + scale d of every marked element, rounded."""
    if format != FLOAT32:
        return round_interval(marked.y, marked.d, scale, format)
    low, high = ends_by_kernel(marked.y.numpy(), marked.d.numpy(), interval_factor(scale))
    return torch.from_numpy(low), torch.from_numpy(high)


def judge(marked: Ambiguous, guard: float, format: Format = FLOAT32) -> tuple[F32, I64, F32, Bool] | None:
    """What a trainer resolves every marked element by, and writes it down: y - d, rounded, float32[n]; the positions
    where y - d and y + d round to different numbers, ascending, int64[m]; y + guard d, rounded, float32[n]; whether
    (guard + TRAINER_REACH) d holds a single boundary, bool[n]. In one loop where there is a kernel for it. None if an
    approximation is NaN or infinite."""
    far = guard + TRAINER_REACH
    if format != FLOAT32:
        if not marked.y.isfinite().all():
            return None
        low, high = ends(marked, format=format)
        upper, two = ends(marked, guard, format)[1], adjacent(*ends(marked, far, format), format)
        return low.numpy(), np.flatnonzero((low != high).numpy()), upper.numpy(), two.numpy()
    factors = (interval_factor(scale) for scale in (1.0, guard, far))
    return judge_by_kernel(marked.y.numpy(), marked.d.numpy(), *factors)


def resolve(
    operator: Inexact, inputs: Tensors, attributes: Attributes, marked: Ambiguous, format: Format = FLOAT32
) -> F32:
    """float32[n]: the correct rounding of every marked element. Only those within d itself need the exact value."""
    low, high = (end.numpy() for end in ends(marked, format=format))
    return resolved(operator, inputs, attributes, marked, low, np.flatnonzero(low != high), format)


def resolved(
    operator: Inexact,
    inputs: Tensors,
    attributes: Attributes,
    marked: Ambiguous,
    low: F32,
    doubtful: I64,
    format: Format = FLOAT32,
) -> F32:
    """low, with the correct roundings in place of those at these positions."""
    if len(doubtful) == len(low) > 0:
        return operator.exact(inputs, attributes, marked.indices, format).numpy()
    if len(doubtful):
        elements = torch.from_numpy(marked.indices.numpy()[doubtful])
        low[doubtful] = operator.exact(inputs, attributes, elements, format).numpy()
    return low


def in_doubt(operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format) -> I64:
    """int64[n]: the elements whose exact values rounding may ask for, ascending."""
    _, marked = certify(operator, inputs, attributes, 1.0, format)
    low, high = ends(marked, format=format)
    unsound = ~(marked.y.isfinite() & marked.d.isfinite())
    return marked.indices[unsound | (low != high)].numpy()


def bounded(marked: Ambiguous) -> bool:
    """Whether all approximations and all their bounds are finite, as they are unless an operand is infinite or NaN."""
    return all_below(marked.y.numpy(), inf) and all_below(marked.d.numpy(), inf)


def settle(
    operator: Inexact,
    inputs: Tensors,
    attributes: Attributes,
    rounded: torch.Tensor,
    marked: Ambiguous,
    format: Format = FLOAT32,
) -> Ambiguous:
    """Put the values of all elements whose approximation or bound is not finite, and return the others.

    A product with padding is left out of a sum (docs/operators.md), but a kernel that writes the zeros out makes
    0 * inf = NaN of it, and the norms in a bound know nothing of padding. So these elements are computed from their own
    terms. Every machine finds the same ones, because infinities and NaN spread alike in every order of summation: they
    are never logged."""
    sound = marked.y.isfinite() & marked.d.isfinite()
    for some in pieces(marked.of(~sound)):
        put(rounded, some.indices, operator.exact(inputs, attributes, some.indices, format).numpy())
    return marked.of(sound)


def fill_in(
    operator: Inexact, inputs: Tensors, attributes: Attributes, y: torch.Tensor, format: Format = FLOAT32
) -> torch.Tensor:
    """y (f64, any device) with the values of its elements that are not finite, rounded to a format: what `settle`
    does, for a policy that rounds nothing else exactly."""
    filled = y.clone()
    for some in (~y.isfinite()).reshape(-1).nonzero().squeeze(1).split(AT_ONCE):
        values = operator.exact(inputs, attributes, some.cpu(), format)
        filled.view(-1)[some] = values.to(torch.float64).to(y.device)
    return filled


def put(rounded: torch.Tensor, indices: torch.Tensor, values: F32) -> None:
    """Put values (float32[n] or float32[1]) at flat indices (int64[n]) of an output: FP32 on any device, or numbers of
    the format that they are of on the CPU."""
    if rounded.dtype != torch.float32:
        rounded.view(-1)[indices] = torch.from_numpy(values).to(rounded.dtype)
    elif rounded.device.type == "cpu":
        rounded.view(-1).numpy()[indices.numpy()] = values
    else:
        rounded.view(-1)[indices.to(rounded.device)] = torch.from_numpy(values).to(rounded.device)


T = TypeVar("T", bound=np.generic)


class Recorder(WindowRounding, RecordingRounding):
    """Certified rounding with a log.

    Two machines' values both lie within d of the exact one, so what an auditor finds ambiguous (within d of a
    boundary) lies within 3d of it for the trainer: `guard` = 4 leaves room for d itself being computed in FP64.
    """

    kind = PayloadKind.ENTRIES

    def __init__(self, guard: int) -> None:
        self.guard = guard
        self.entries: dict[int, Entries] = {}
        """The running step's log, by operator index; the caller takes it after every step with `take`."""

    def take(self) -> dict[int, Entries]:
        entries, self.entries = self.entries, {}
        return entries

    def start_again(self) -> None:
        self.entries = {}

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format = FLOAT32,
        window: Window | None = None,
    ) -> torch.Tensor:
        """The rounded output, as `WindowRounding.round` gives it."""
        inputs = operands(operator, inputs)
        rounded, marked = certify(operator, inputs, attributes, self.guard, format)
        if not bounded(marked):
            marked = settle(operator, inputs, attributes, rounded, marked, format)
        decisions, by_value = [], []
        for some in pieces(marked):
            judged = judge(some, self.guard, format)
            assert judged is not None
            low, doubtful, upper, two = judged
            right = resolved(operator, inputs, attributes, some, low, doubtful, format)
            put(rounded, some.indices, right)
            decision, values = write_down(right, upper, two)
            decisions.append(decision)
            by_value.append(values)
        if decisions:
            entries = Entries(marked.indices.numpy(), joined(decisions), joined(by_value))
            if window is not None:
                entries = window.entries_of_whole(entries)
            before = self.entries.get(index)
            self.entries[index] = entries if before is None else in_order([before, entries])
        return as_dtype(rounded, format)


def joined(parts: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
