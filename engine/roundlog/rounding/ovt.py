"""The `threshold` policy: OVT as published (Srivastava, Arora, Boneh 2024, section 5). Every output of every inexact
operator is rounded from FP64 as this machine computed it, the trainer logs the boundary and the side it was on, and
the auditor goes the same way. Unlike under `certified`, the log decides, and without it there is no one answer.

The log has one trit for every output, five to a byte (docs/log-format.md, "Payload of kind 1"): 0 the value was rounded
down, 2 it was rounded up, 1 it was not near a rounding boundary. rnd, log and rev are those of section 5.2 and of
Algorithm 4, the trainer's rounding is Algorithm 1, the auditor's Algorithm 2, the search for thresholds Algorithm 3."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.arithmetic import adjacent, as_dtype, neighbour, round_interval, round_to
from roundlog.json_text import parse_json
from roundlog.log import PayloadError, PayloadFormat, PayloadKind
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import REGISTRY, Attributes, Inexact, Tensors
from roundlog.operators.registry import operands
from roundlog.rounding.protocols import FollowingRounding, LogFinding, LogFindingKind, RecordingRounding
from roundlog.rounding.resolve import fill_in

DOWN, PLAIN, UP = 0, 1, 2
PER_BYTE = 5
_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_LARGEST = 3**PER_BYTE - 1

MAX_PAYLOAD = 1 << 29
"""Bytes of one step's payload, whatever the program: some 2.6 * 10^9 outputs."""

_COUNT = struct.Struct("<I")
_OPERATOR = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True, eq=False)
class Trits:
    """The trits of one operator's output.

    count: elements of the output. packed: uint8[ceil(count / 5)], the first of five trits has the weight 1, the last
    81; trits beyond the output are 0. Raises PayloadError for anything else.
    """

    count: int
    packed: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.packed.dtype != np.uint8 or self.packed.shape != (packed_size(self.count),):
            raise PayloadError(
                f"{self.count} trits need {packed_size(self.count)} bytes, not {self.packed.dtype}{self.packed.shape}"
            )
        if (wrong := self.packed > _LARGEST).any():
            raise PayloadError(f"byte {int(np.argmax(wrong))} is {int(self.packed[wrong][0])}, not five trits")
        if self.count % PER_BYTE and self.packed[-1] >= 3 ** (self.count % PER_BYTE):
            raise PayloadError("the last byte is padded with trits that are not zero")

    @classmethod
    def pack(cls, codes: NDArray[np.uint8]) -> Trits:
        """Return the trits of `codes`, uint8[n], each 0, 1 or 2. Raises PayloadError for any other."""
        if codes.size and int(codes.max()) > UP:
            raise PayloadError(f"{int(codes.max())} is not a trit")
        whole = len(codes) // PER_BYTE * PER_BYTE
        packed = np.zeros(packed_size(len(codes)), dtype=np.uint8)
        packed[: whole // PER_BYTE] = codes[:whole].reshape(-1, PER_BYTE) @ _POWERS
        if whole < len(codes):
            packed[-1] = codes[whole:] @ _POWERS[: len(codes) - whole]
        return cls(len(codes), packed)

    def codes(self) -> NDArray[np.uint8]:
        """Return uint8[count], the trits, one a byte."""
        flat: NDArray[np.uint8] = _DIGITS[self.packed].reshape(-1)
        return flat[: self.count]

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trits) and self.count == other.count and np.array_equal(self.packed, other.packed)

    __hash__ = None  # type: ignore[assignment]


_DIGITS = (np.arange(_LARGEST + 1)[:, None] // _POWERS.astype(np.int64) % 3).astype(np.uint8)

TritLog = Mapping[int, Trits]
"""Log of one step: the trits of every inexact operator, by operator index."""


def packed_size(count: int) -> int:
    """Return the bytes of that many trits."""
    return -(-count // PER_BYTE)


def payload_size(operator_sizes: Sequence[int]) -> int:
    """Return the bytes of every payload of a program; operator_sizes as in `decode`."""
    sizes = [size for size in operator_sizes if size]
    return _COUNT.size + sum(_OPERATOR.size + packed_size(size) for size in sizes)


def encode(step_log: TritLog) -> bytes:
    """Return the payload of one step. Operators without outputs are left out. Raises PayloadError if it would be too
    long."""
    operators = [operator for operator in sorted(step_log) if len(step_log[operator])]
    if operators and not 0 <= operators[0] <= operators[-1] < 1 << 32:
        raise PayloadError(f"operator {operators[-1]} is outside 0..2^32 - 1")
    parts = [_COUNT.pack(len(operators))]
    parts += [_OPERATOR.pack(operator, len(step_log[operator])) for operator in operators]
    length = sum(map(len, parts)) + sum(len(step_log[operator].packed) for operator in operators)
    if length > MAX_PAYLOAD:
        raise PayloadError(f"a payload of {length} bytes is above the limit of {MAX_PAYLOAD}")
    return b"".join([*parts, *(step_log[operator].packed.tobytes() for operator in operators)])


def decode(payload: bytes, operator_sizes: NDArray[np.int64] | None) -> dict[int, Trits]:
    """Return the trits of one payload, from hostile bytes.

    operator_sizes: int64[operators], elements of each inexact operator's output, 0 for all other operators; None
    accepts any (for summaries). Raises PayloadError for whatever `encode` would not have written for that program:
    every inexact operator has to be there, with all of its outputs.
    """
    if len(payload) < _COUNT.size:
        raise PayloadError(f"the operator count needs {_COUNT.size} bytes of a payload of {len(payload)}")
    (number,) = _COUNT.unpack_from(payload)
    start = _COUNT.size + _OPERATOR.size * number
    if start > len(payload):
        raise PayloadError(f"{number} operators need {start} bytes of a payload of {len(payload)}")
    operators = list(_OPERATOR.iter_unpack(payload[_COUNT.size : start]))
    if any(a >= b for (a, _), (b, _) in pairwise(operators)):
        raise PayloadError("operators are not strictly increasing")
    if operator_sizes is not None:
        needed = [(int(i), int(operator_sizes[i])) for i in np.flatnonzero(operator_sizes)]
        if operators != needed:
            raise PayloadError("it is not for the inexact operators of this program and the sizes of their outputs")
    log = {}
    for operator, count in operators:
        stop = start + packed_size(count)
        if count == 0:
            raise PayloadError(f"operator {operator} has no trits")
        if stop > len(payload):
            raise PayloadError(f"the trits of operator {operator} need {stop} bytes of a payload of {len(payload)}")
        try:
            log[operator] = Trits(count, np.frombuffer(payload, np.uint8, stop - start, start))
        except PayloadError as error:
            raise PayloadError(f"operator {operator}: {error}") from error
        start = stop
    if start != len(payload):
        raise PayloadError(f"{len(payload) - start} bytes follow the last trits")
    return log


TRITS: PayloadFormat[Trits] = PayloadFormat(
    kind=PayloadKind.OUTPUTS,
    most=MAX_PAYLOAD,
    bound=lambda operator_sizes: min(payload_size(operator_sizes), MAX_PAYLOAD),
    encode=encode,
    decode=decode,
)
"""The format of a trit for every output."""

MIN_THRESHOLD = 0.25
"""Lowest threshold that OVT's Algorithm 3 tries, as a part of the distance between neighbouring numbers. Below a
divergence between two machines a trit could tell on which side of a *number* a value lies, and be taken for a side of a
boundary."""

MAX_THRESHOLDS_BYTES = 1 << 16


class ThresholdError(ValueError):
    """Thresholds that no log can be written with; one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """tau of OVT, as a part of the distance 2^(9 - b_r) * 2^e of neighbouring numbers: a value is logged if it lies
    farther than this from the number that it was rounded to, so 0.5 would log nothing.

    default: of all operators that `operators` does not name. operators: by name of the operator ("matmul", ...), what
    OVT calls layer-wise. All in [0.25, 0.5). Raises ThresholdError.
    """

    default: float = MIN_THRESHOLD
    operators: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, threshold in {"default": self.default, **self.operators}.items():
            number = isinstance(threshold, float | int) and not isinstance(threshold, bool)
            if not number or not MIN_THRESHOLD <= threshold < 0.5:
                raise ThresholdError(f"the threshold {threshold!r} of {name} is outside 0.25 .. 0.5 (0.5 excluded)")
        for name in self.operators:
            if not isinstance(REGISTRY.get(name), Inexact):
                raise ThresholdError(f"{name!r} is not an inexact operator, so it has no threshold")

    def of(self, operator: str) -> float:
        """Return the threshold of an operator, by name."""
        return self.operators.get(operator, self.default)

    def to_json(self) -> str:
        """Return {"default": number, "operators": {name: number}}."""
        return json.dumps({"default": self.default, "operators": dict(self.operators)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Thresholds:
        """Return the thresholds in a text. Raises ThresholdError for anything but what `to_json` writes."""
        if len(text) > MAX_THRESHOLDS_BYTES:
            raise ThresholdError(
                f"thresholds of {len(text)} bytes are longer than the {MAX_THRESHOLDS_BYTES} that are read"
            )
        try:
            plain = parse_json(text)
        except ValueError as error:
            raise ThresholdError(f"the text of thresholds {error}") from error
        if not isinstance(plain, dict) or set(plain) - {"default", "operators"}:
            raise ThresholdError('thresholds are an object with the keys "default" and "operators"')
        operators = plain.get("operators", {})
        if not isinstance(operators, dict):
            raise ThresholdError('"operators" has to be an object: operator names and thresholds')
        return cls(default=plain.get("default", MIN_THRESHOLD), operators=operators)


_EXPONENT = 0x7FF0000000000000


def place(y: torch.Tensor, format: Format) -> torch.Tensor:
    """Return f64, the distance 2^(e - fraction_bits) of neighbouring numbers of the format around y, e = floor(log2
    |y|), or least_exponent if that is larger. The published prototype takes powers of ten for 2^e, which logs too
    little above one and too much below."""
    power = (y.contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    return power.clamp_(min=2.0**format.least_exponent).mul_(2.0**-format.fraction_bits)


def log_codes(y: torch.Tensor, rounded: torch.Tensor, threshold: float, format: Format) -> torch.Tensor:
    """Return uint8, the trits of y (f64) that was rounded to `rounded` (f32, of the format): 0 rounded down, 2 rounded
    up, 1 not farther from `rounded` than threshold * `place`. A y that is not finite is 1."""
    # Exact: both are multiples of y's last place, and at most half a place of the format apart.
    above = y - rounded.to(torch.float64)
    logged = (above.abs() > threshold * place(y, format)) & y.isfinite()
    code = torch.where(above > 0, DOWN, UP).to(torch.uint8)
    return torch.where(logged, code, torch.tensor(PLAIN, dtype=torch.uint8, device=y.device))


def reverse(y: torch.Tensor, rounded: torch.Tensor, codes: torch.Tensor, format: Format) -> torch.Tensor:
    """Return f32, `rounded`, moved by one place where the trainer's trit says the other way. The trainer rounded down
    (0) and y, here, up: the next number below; the trainer rounded up (2) and y, here, down: the next above."""
    wide = rounded.to(torch.float64)
    moved = torch.where((codes == DOWN) & (y < wide), neighbour(rounded, -1, format), rounded)
    return torch.where((codes == UP) & (y > wide), neighbour(rounded, 1, format), moved)


def _computed(
    operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (f64 as this machine computes it, the same rounded to f32 of the format) of every output of an
    operator."""
    y = operator.approximate(inputs, attributes)
    rounded = round_to(y, format)
    if not rounded.isfinite().all():
        y = fill_in(operator, inputs, attributes, y, format)
        rounded = round_to(y, format)
    return y, rounded


class ThresholdRecorder(RecordingRounding):
    """Rounds what this machine computed, and logs a trit for every output."""

    kind = PayloadKind.OUTPUTS

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self.trits: dict[int, Trits] = {}

    def take(self) -> dict[int, Trits]:
        trits, self.trits = self.trits, {}
        return trits

    def start_again(self) -> None:
        self.trits = {}

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format = FLOAT32
    ) -> torch.Tensor:
        inputs = operands(operator, inputs)
        y, rounded = _computed(operator, inputs, attributes, format)
        if y.numel():
            codes = log_codes(y, rounded, self.thresholds.of(operator.name), format)
            self.trits[index] = Trits.pack(codes.reshape(-1).cpu().numpy())
        return as_dtype(rounded, format)


class ThresholdFollower(FollowingRounding):
    """Rounds what this machine computed, and reverses what the trainer rounded the other way.

    OVT believes every trit, so that its trainer could move any output by one place. Here a reversal has to be possible:
    two machines are within 2 d of each other, d the operator's error bound. One that no honest trainer can have written
    is reported and not followed. What lies within the bound of a boundary is the trainer's to choose, by design.

    After MAX_FINDINGS wrong trits the log is given up: what this machine computes is then all there is.
    """

    def __init__(self, guard: int) -> None:
        self.guard = guard
        self.findings: list[LogFinding] = []
        self.corrections: dict[int, int] = {}
        """Outputs of the running step that were reversed, by operator index."""
        self._step = 0
        self._log: Mapping[int, Trits] | None = None
        self._before = 0
        """Findings before the running step."""

    def follow(self, step: int, log: Mapping[int, Trits] | None) -> None:
        """Follow the log of the step that runs next; None: there is none, and nothing is reversed."""
        self._step, self._log = step, log
        self.corrections = {}
        self._before = len(self.findings)

    def start_again(self) -> None:
        del self.findings[self._before :]
        self.corrections = {}

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format = FLOAT32
    ) -> torch.Tensor:
        inputs = operands(operator, inputs)
        y, rounded = _computed(operator, inputs, attributes, format)
        if self._log is None or self.given_up or not y.numel():
            return as_dtype(rounded, format)
        codes = torch.from_numpy(self._log[index].codes()).to(y.device).reshape(y.shape)
        followed = reverse(y, rounded, codes, format)
        # NaN differs from itself, and nothing moves it.
        moved = ((followed != rounded) & ~rounded.isnan()).reshape(-1).nonzero().squeeze(1)
        if not len(moved):
            return as_dtype(rounded, format)
        # Whether an honest trainer's value can have been rounded to the number that its trit leads to.
        chosen, target = y.reshape(-1)[moved], followed.reshape(-1)[moved]
        d = operator.bound(inputs, attributes, y).at(moved, chosen)
        low, high = round_interval(chosen, d, self.guard, format)
        # Where machines differ by more than the least threshold, OVT itself may take a side of a number for a side of a
        # boundary: wrong, but not the trainer's fault.
        confused = self.guard * d >= MIN_THRESHOLD * place(chosen, format)
        impossible = moved[~(((low <= target) & (target <= high)) | confused)]
        for element in impossible[: self.room].tolist():
            message = "the logged side of the boundary is out of reach of this machine's value"
            self.findings.append(LogFinding(self._step, index, element, LogFindingKind.FORGED, message))
        followed.view(-1)[impossible] = rounded.view(-1)[impossible]
        self.corrections[index] = len(moved) - len(impossible)
        return as_dtype(followed, format)


_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of one layer's outputs on two machines, over a sample. All in units of `place`."""

    elements: int = 0
    differing: int = 0
    """Elements that the two machines round to different numbers."""
    beyond: int = 0
    """Differing elements that are more than one number apart: no trit can mend them."""
    nearest: float = 0.5
    """Least distance of a differing element's value to the number that it is rounded to: a threshold has to stay below
    it."""
    widest: float = 0.0
    """The largest difference of two values."""

    @staticmethod
    def between(x1: torch.Tensor, x2: torch.Tensor, format: Format) -> Divergence:
        """Return the divergence of x1 and x2, f64: the same layer's output from the same input on two machines."""
        r1, r2 = round_to(x1, format), round_to(x2, format)
        differ = r1 != r2
        unit = torch.minimum(place(x1, format), place(x2, format))
        nearest = 0.5
        for x, r in ((x1, r1), (x2, r2)):
            if differ.any():
                distance = (x[differ] - r[differ].to(torch.float64)).abs() / place(x[differ], format)
                nearest = min(nearest, float(distance.min()))
        low, high = torch.minimum(r1, r2)[differ], torch.maximum(r1, r2)[differ]
        return Divergence(
            elements=x1.numel(),
            differing=int(differ.sum()),
            beyond=int((~adjacent(low, high, format)).sum()),
            nearest=nearest,
            widest=float(((x1 - x2).abs() / unit).max()) if x1.numel() else 0.0,
        )

    def __add__(self, other: Divergence) -> Divergence:
        return Divergence(
            self.elements + other.elements,
            self.differing + other.differing,
            self.beyond + other.beyond,
            min(self.nearest, other.nearest),
            max(self.widest, other.widest),
        )

    def search(self) -> float:
        """Return the threshold found by bisection between 0.25 and 0.5, as in Algorithm 3: a threshold succeeds if
        every differing element is logged, on either machine. 0.5 (nothing has to be logged) if nothing differed in the
        sample."""
        if not self.differing:
            return 0.5
        lower, upper = MIN_THRESHOLD, 0.5
        for _ in range(_ROUNDS):
            middle = (lower + upper) / 2
            if self.nearest > middle:
                lower = middle
            else:
                upper = middle
        return lower

    def threshold(self) -> float:
        """Return a threshold to train with: that of Algorithm 3, but no higher than the sample's largest difference
        allows an element that the sample did not have to differ by, twice over. A layer that never differed in the
        sample gets one in this way, too."""
        return min(max(MIN_THRESHOLD, min(self.search(), 0.5 - 2 * self.widest)), 0.5 - 2.0**-24)

    @property
    def safe(self) -> bool:
        """Whether some threshold serves all of the sample: differing elements are logged and one number apart, and no
        value that is logged can lie on the other side of its number."""
        return not self.beyond and self.nearest > MIN_THRESHOLD > self.widest
