"""Receipts: what a run has come to, in one JSON file that anybody can check by repeating the run (docs/receipt.md).

What a receipt says is checked against itself when it is read. Whether it is true only a repetition shows
(`roundlog.training.repetition`).

An `AuditRecord` is the result of an audit in a file: the claim, what was audited of it, and what was found.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from roundlog.commitments import MerkleTree
from roundlog.json_text import canonical_json, parse_json
from roundlog.signed_json import (
    SIGNED,
    SignedJson,
    count_of,
    hash_of,
    hex_of,
    keys_of,
    printable,
    signature_of,
    text_of,
)
from roundlog.spec import MAX_JSON_BYTES, SpecError, TrainingSpec
from roundlog.storage import open_regular, replace_file

MAX_ADDRESS = 200
"""Most characters of an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongInterval:
    """An interval that does not end in the root claimed after it."""

    interval: int
    root: bytes
    """The root that it ends in; of fabricated values if it stops."""
    stopped: str | None
    """Why it stops; None if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Findings of an audit. They stand beside the claimed roots, from which anybody can repeat it."""

    job: str
    """Content address of the job."""
    claim: str
    """Content address of the log, or of the receipt, whose roots were audited."""
    parts: int
    """Parts of the run that can be audited each for itself: from one published state to the next."""
    drawn: int
    """Parts that were drawn, at random, and audited as far as nothing wrong was found before."""
    right: tuple[tuple[int, int], ...]
    """Intervals that were found right, as ranges from the first one up to, and without, the last; ascending."""
    wrong: WrongInterval | None

    def plain(self) -> dict[str, Any]:
        """The result as JSON has it."""
        found = asdict(self) | {"right": [list(one) for one in self.right]}
        if self.wrong is not None:
            found["wrong"]["root"] = hex_of(self.wrong.root)
        return found


def interval_ranges(intervals: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges, each from its first number up to, and without, its last."""
    found: list[tuple[int, int]] = []
    for one in intervals:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return tuple(found)


def parse_audit_record(plain: object, intervals: int) -> AuditRecord:
    """The result in a file of a stranger, of a run of so many intervals. Raises ValueError, with words that go on a
    sentence that names the file."""
    found = keys_of("audit", plain, frozenset(one.name for one in fields(AuditRecord)))
    for name in ("job", "claim"):
        if not isinstance(found[name], str) or not re.fullmatch(f"[!-~]{{1,{MAX_ADDRESS}}}", found[name]):
            raise ValueError(f"has an audit whose {name} is no address")
    parts = count_of("parts", found["parts"], 1, intervals)
    drawn = count_of("drawn", found["drawn"], 1, parts)
    right, end = found["right"], 0
    if not isinstance(right, list) or not all(isinstance(one, list) and len(one) == 2 for one in right):
        raise ValueError("has an audit whose right intervals are no list of ranges")
    for one in right:
        first = count_of("right", one[0], end, intervals - 1)
        end = count_of("right", one[1], first + 1, intervals)
    wrong = _wrong(found["wrong"], intervals)
    if wrong is not None and any(first <= wrong.interval < stop for first, stop in right):
        raise ValueError("has an audit with an interval that is right and wrong")
    return AuditRecord(
        job=found["job"],
        claim=found["claim"],
        parts=parts,
        drawn=drawn,
        right=tuple((first, stop) for first, stop in right),
        wrong=wrong,
    )


def _wrong(plain: object, intervals: int) -> WrongInterval | None:
    if plain is None:
        return None
    found = keys_of("wrong interval", plain, frozenset(one.name for one in fields(WrongInterval)))
    return WrongInterval(
        interval=count_of("interval", found["interval"], 0, intervals - 1),
        root=hash_of("root", found["root"]),
        stopped=None if found["stopped"] is None else text_of("stopped", found["stopped"]),
    )


FORMAT = "tiebreak receipt"
AUDIT_FORMAT = "tiebreak audit"
"""Format of a receipt of what was claimed, with what an audit of it has found."""
RECEIPT_FORMATS = frozenset([FORMAT, AUDIT_FORMAT])
VERSION = 1
MAX_RECEIPT_BYTES = 64 << 20
"""Most bytes of a receipt: some 900,000 checkpoints."""

_DATE = "%Y-%m-%dT%H:%M:%SZ"
_FOLLOWING = ("run_id", "checkpoint_root", "final_state_root")
"""Fields that follow from others."""
_ALWAYS = frozenset(["format", "version", "spec", "state_roots", "versions", "machine", "date", *_FOLLOWING])
_AGAIN = "get the receipt again from its author"


class ReceiptError(ValueError):
    """A file that is no receipt, or contradicts itself. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The software that wrote a receipt."""

    python: str
    torch: str
    tiebreak: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """The machine that wrote a receipt."""

    system: str
    architecture: str
    processor: str
    instructions: str
    """Instruction set that PyTorch's kernels use, such as AVX512."""
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(SignedJson):
    """The result of a run: its spec and roots, and the party that signed them, if any did."""

    spec: TrainingSpec
    state_roots: tuple[bytes, ...]
    """State root after every interval."""
    versions: Versions
    machine: MachineProfile
    date: str
    """Instant at which the receipt was written, in UTC: 2026-01-31T12:00:00Z."""
    audit: AuditRecord | None = None
    """Findings of an audit of these roots, which are somebody else's claim then; None if they are the writer's
    own."""

    @property
    def run_id(self) -> bytes:
        return self.spec.run_id

    @property
    def checkpoint_root(self) -> bytes:
        return MerkleTree(self.state_roots).root

    @property
    def final_state_root(self) -> bytes:
        return self.state_roots[-1]

    @staticmethod
    def of(spec: TrainingSpec, state_roots: Sequence[bytes], tiebreak_version: str) -> Receipt:
        """The receipt of a finished run, of this moment and this machine, unsigned. Raises ReceiptError."""
        if spec.log_decides:
            raise ReceiptError(
                f"this job rounds by the policy {spec.policy_name}, under which nobody can repeat a run without its "
                "log: give receipts for jobs of the policy certified"
            )
        if len(state_roots) != spec.intervals:
            raise ReceiptError(
                f"the run has {len(state_roots)} of {spec.intervals} checkpoints: let `tiebreak train` end"
            )
        import torch

        return Receipt(
            spec=spec,
            state_roots=tuple(state_roots),
            versions=Versions(
                python=platform.python_version(),
                torch=printable(torch.__version__),
                tiebreak=printable(tiebreak_version),
            ),
            machine=MachineProfile(
                system=printable(platform.system()),
                architecture=printable(platform.machine()),
                processor=printable(_processor()),
                instructions=printable(torch.backends.cpu.get_cpu_capability()),
                threads=torch.get_num_threads(),
            ),
            date=datetime.now(UTC).strftime(_DATE),
        )

    def signed_text(self) -> str:
        # Seeds are larger than numbers of RFC 8785 may be; there is no fraction.
        return canonical_json(self.plain(signed=False))

    def about(self, audit: AuditRecord) -> Receipt:
        """The result of an audit of these roots."""
        return replace(self, audit=audit)

    def write(self, path: Path) -> None:
        """Writes the receipt, whole or not at all. Raises ReceiptError if it is too large, OSError."""
        data = json.dumps(self.plain(), sort_keys=True, indent=1).encode() + b"\n"
        if len(data) > MAX_RECEIPT_BYTES:
            raise ReceiptError(f"a receipt of {len(self.state_roots)} checkpoints is too large: make fewer of them")
        with replace_file(path) as file:
            file.write(data)

    def plain(self, *, signed: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = {
            "format": FORMAT if self.audit is None else AUDIT_FORMAT,
            "version": VERSION,
            "spec": json.loads(self.spec.to_json()),
            "state_roots": [hex_of(root) for root in self.state_roots],
            **{name: hex_of(getattr(self, name)) for name in _FOLLOWING},
            "versions": asdict(self.versions),
            "machine": asdict(self.machine),
            "date": self.date,
        }
        if self.audit is not None:
            found["audit"] = self.audit.plain()
        return found | self.signing(signed=signed)


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file that is not trusted, checked against itself; its signature is not checked here. Raises
    ReceiptError."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        raise ReceiptError(f"{path} cannot be read ({error.strerror}): check the path") from error
    return parse_receipt(data, path)


def parse_receipt(data: bytes, name: Path) -> Receipt:
    """The receipt in bytes that are not trusted, as `read_receipt`. name: of their file, for the words of an error.
    Raises ReceiptError."""
    try:
        return _parse(data)
    except _NewerError as error:
        raise ReceiptError(f"{name} {error}: install the version of tiebreak that wrote it") from error
    except ValueError as error:
        reason = str(error)[:300].replace("\n", " ")
        raise ReceiptError(f"{name} is no receipt that could be checked (it {reason}): {_AGAIN}") from error


class _NewerError(Exception):
    """A version that this one does not read."""


def _parse(data: bytes) -> Receipt:
    """The receipt of a file's bytes. Raises ValueError, _NewerError."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise ValueError(f"has more than {MAX_RECEIPT_BYTES} bytes")
    plain = parse_json(data, only_integers=True)
    if not isinstance(plain, dict) or plain.get("format") not in (FORMAT, AUDIT_FORMAT):
        raise ValueError(f"does not say that its format is {FORMAT!r}")
    version = plain.get("version")
    if type(version) is not int:
        raise ValueError("has a version that is not an integer")
    if version != VERSION:
        raise _NewerError(f"is a receipt of version {str(version)[:20]}, and this version reads version {VERSION}")
    is_audit = plain["format"] == AUDIT_FORMAT
    keys_of("receipt", plain, _ALWAYS | {"audit"} if is_audit else _ALWAYS, SIGNED)
    spec = _spec(plain["spec"])
    roots = plain["state_roots"]
    if not isinstance(roots, list) or len(roots) != spec.intervals:
        raise ValueError(f"has state_roots that are not a list of {spec.intervals} roots, as its spec says")
    versions = keys_of("versions", plain["versions"], frozenset(one.name for one in fields(Versions)))
    machine = dict(keys_of("machine", plain["machine"], frozenset(one.name for one in fields(MachineProfile))))
    threads = count_of("machine's threads", machine.pop("threads"), 1)
    receipt = Receipt(
        spec=spec,
        state_roots=tuple(hash_of(f"state root {number}", root) for number, root in enumerate(roots)),
        versions=Versions(**_texts(versions)),
        machine=MachineProfile(**_texts(machine), threads=threads),
        date=_date(plain["date"]),
        audit=parse_audit_record(plain["audit"], spec.intervals) if is_audit else None,
        **signature_of(plain),
    )
    for name in _FOLLOWING:
        if hash_of(name, plain[name]) != getattr(receipt, name):
            raise ValueError(f"has another {name} than follows from its other fields")
    return receipt


def _spec(plain: object) -> TrainingSpec:
    text = json.dumps(plain)
    if len(text) > MAX_JSON_BYTES:
        raise ValueError("has a spec that is too long")
    try:
        spec = TrainingSpec.from_json(text)
    except SpecError as error:
        raise ValueError(f"has a wrong spec: {error}") from error
    if spec.log_decides:
        raise ValueError(
            f"is of a job that rounds by the policy {spec.policy_name}, under which nobody can repeat a run without "
            "its log"
        )
    return spec


def _texts(plain: Mapping[str, object]) -> dict[str, str]:
    return {name: text_of(name, value) for name, value in plain.items()}


def _date(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", value):
        with suppress(ValueError):
            datetime.strptime(value, _DATE)
            return value
    raise ValueError("has a date that is not of the form 2026-01-31T12:00:00Z")


def _processor() -> str:
    """The processor's name, as Linux has it."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
