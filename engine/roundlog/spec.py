"""The training spec: every number and root that a job is bound by.

The client hashes the same fields, in this order, as a Solidity struct (with the referee's address added).
The JSON form is for people and files; it is canonical, so that its SHA-256 can serve as the run id of logs
and checkpoints.
"""

from dataclasses import dataclass, fields
from hashlib import sha256

from roundlog.json_text import canonical_json, parse_json
from roundlog.number_format import FLOAT32, NARROWEST, Format, narrow_float32
from roundlog.signed_json import hash_of, hex_of, keys_of

MAX_JSON_BYTES = 16 * 1024
CHUNK_SIZE = 1024
LOG_VERSION = 2
"""Version of the logs' format and of the meaning of their entries: bounds d that leave less in doubt make other logs
of the same bits."""

POLICY_CERTIFIED = 0
POLICY_THRESHOLD = 1
POLICY_NAMES = ("certified", "threshold")
"""Names of the policies, by their number."""

MIN_LOG_GUARD = 4
"""Two computed values within d of the exact one differ by up to 2d, so an auditor's ambiguous element lies
within 3d of a boundary of the trainer's; the fourth d covers that d itself is computed in floating point.
"""

_UINT64_MAX = (1 << 64) - 1
_MAX_STEPS = 1 << 32
_MAX_OPERATORS = 1 << 32
_MAX_ROWS = 1 << 40


class SpecError(ValueError):
    """A spec that no run can follow. The message is one sentence naming the field and what it has to be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpec:
    """The numbers and roots that a trainer is held to. Roots are 32 bytes, all else unsigned integers.

    steps, interval: optimizer steps in the run, and steps between two checkpoints (divides `steps`).
    program_root, operator_count: the program of one step and its number of operators. initial_state_root,
    state_count: the state before step 0 and its number of tensors. data_root, data_rows, batch_size: the
    dataset, its rows, and rows in a step. schedule_root: tensor root of the float32[steps, columns]
    schedule (learning rates and other inputs of each step). seed: of data order and of all randomness.
    chunk_size: bytes in a leaf of a tensor tree. rounding_policy: 0 certified, 1 threshold. rounding_bits:
    b_r, of the results: 23..32, 32 = FP32. log_guard: the log has every element within log_guard * d of a rounding
    boundary. log_version: `LOG_VERSION`.
    """

    steps: int
    interval: int
    program_root: bytes
    operator_count: int
    initial_state_root: bytes
    state_count: int
    data_root: bytes
    data_rows: int
    batch_size: int
    schedule_root: bytes
    seed: int
    chunk_size: int = CHUNK_SIZE
    rounding_policy: int = POLICY_CERTIFIED
    rounding_bits: int = 32
    log_guard: int = MIN_LOG_GUARD
    log_version: int = LOG_VERSION

    @property
    def intervals(self) -> int:
        """Checkpoints in the run: leaves of the checkpoint tree."""
        return self.steps // self.interval

    @property
    def policy_name(self) -> str:
        """Name of the rounding policy."""
        return POLICY_NAMES[self.rounding_policy]

    @property
    def f32_format(self) -> Format:
        """Format that FP32 values are rounded to: FP32, or fewer bits of it."""
        return narrow_float32(self.rounding_bits)

    @property
    def log_decides(self) -> bool:
        """Whether ambiguous elements are decided by the trainer's log, so that nobody can repeat a run without it."""
        return self.rounding_policy != POLICY_CERTIFIED

    @property
    def run_id(self) -> bytes:
        """32 bytes that bind a log to this run: SHA-256 of the canonical JSON."""
        return sha256(self.to_json().encode()).digest()

    def validate(self) -> None:
        """Returns if a run can follow this spec, else raises SpecError."""
        for field in fields(self):
            _check_type(field.name, field.type, getattr(self, field.name))
        for name in ("steps", "interval", "operator_count", "state_count", "data_rows", "batch_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} has to be at least 1")
        if self.steps % self.interval:
            raise SpecError(f"interval {self.interval} has to divide steps {self.steps}")
        # The key of Philox has 32 bits for the step and 32 for the operator.
        if self.steps > _MAX_STEPS:
            raise SpecError(f"steps {self.steps} has to be at most 2^32")
        if self.operator_count > _MAX_OPERATORS:
            raise SpecError(f"operator_count {self.operator_count} has to be at most 2^32")
        # The swap-or-not shuffle numbers its blocks of 256 rows with 32 bits.
        if self.data_rows > _MAX_ROWS:
            raise SpecError(f"data_rows {self.data_rows} has to be at most 2^40")
        if self.batch_size > self.data_rows:
            raise SpecError(f"batch_size {self.batch_size} has to be at most data_rows {self.data_rows}")
        if self.steps * self.batch_size > _UINT64_MAX:
            raise SpecError("steps * batch_size has to be below 2^64, so that a sample's position fits 64 bits")
        if self.chunk_size != CHUNK_SIZE:
            raise SpecError(f"chunk_size {self.chunk_size} has to be {CHUNK_SIZE}")
        check_rounding(self.rounding_policy, self.rounding_bits)
        if not MIN_LOG_GUARD <= self.log_guard <= 255:
            raise SpecError(f"log_guard {self.log_guard} is outside {MIN_LOG_GUARD}..255")
        if self.log_version != LOG_VERSION:
            raise SpecError(f"log_version {self.log_version} is not supported by this version; use {LOG_VERSION}")

    def to_json(self) -> str:
        """The canonical JSON: sorted keys, no spaces, integers, roots as 0x and 64 lower-case hex digits.

        Raises SpecError as `validate`.
        """
        self.validate()
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {name: hex_of(value) if isinstance(value, bytes) else value for name, value in plain.items()}
        return canonical_json(plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> "TrainingSpec":
        """Reads and validates a spec; white space and the order of keys are free. Raises SpecError."""
        if len(text) > MAX_JSON_BYTES:
            raise SpecError(f"a spec of {len(text)} bytes is longer than the {MAX_JSON_BYTES} that one can need")
        names = frozenset(field.name for field in fields(cls))
        try:
            values = keys_of("text", parse_json(text, only_integers=True), names)
            values |= {one.name: hash_of(one.name, values[one.name]) for one in fields(cls) if one.type is bytes}
        except ValueError as error:
            raise SpecError(f"the spec {error}") from error
        spec = cls(**values)
        spec.validate()
        return spec


def check_rounding(policy: int, bits: int) -> None:
    """Raises SpecError for a rounding policy or a number of bits that there is not."""
    _check_type("rounding_policy", int, policy)
    _check_type("rounding_bits", int, bits)
    if not NARROWEST <= bits <= FLOAT32.width:
        raise SpecError(f"rounding_bits {bits} is outside {NARROWEST}..{FLOAT32.width}")
    if policy >= len(POLICY_NAMES):
        names = " nor ".join(f"{number} ({name})" for number, name in enumerate(POLICY_NAMES))
        raise SpecError(f"rounding_policy {policy} is neither {names}")


def _check_type(name: str, kind: object, value: object) -> None:
    if kind is bytes:
        if not isinstance(value, bytes) or len(value) != 32:
            raise SpecError(f"{name} has to be a root of 32 bytes")
    elif isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{name} has to be an integer")
    elif not 0 <= value <= _UINT64_MAX:
        raise SpecError(f"{name} has to be an unsigned 64-bit integer")
