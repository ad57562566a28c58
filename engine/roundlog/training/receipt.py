"""Receipts: what a run has come to, in one JSON file that anybody can check by repeating the run (docs/receipt.md).

What a receipt says is checked against itself when it is read. Whether it is true only a repetition shows
(`roundlog.training.repetition`).

An `AuditRecord` is the result of an audit in a file: the claim, what was audited of it, and what was found.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from roundlog.commitments import MerkleTree
from roundlog.json_text import canonical_json, parse_json
from roundlog.spec import MAX_JSON_BYTES, SpecError, TrainingSpec
from roundlog.storage import open_regular, replace_file

MAX_ADDRESS = 200
MAX_REASON = 200
"""Most characters of an address, and of why a run stopped."""


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
        wrong = self.wrong
        return {
            "job": self.job,
            "claim": self.claim,
            "parts": self.parts,
            "drawn": self.drawn,
            "right": [list(one) for one in self.right],
            "wrong": None
            if wrong is None
            else {"interval": wrong.interval, "root": "0x" + wrong.root.hex(), "stopped": wrong.stopped},
        }


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
    """The result in a file of a stranger, of a run of so many intervals. Raises ValueError, with a clause."""
    fields = _fields("audit", plain, "job", "claim", "parts", "drawn", "right", "wrong")
    for name in ("job", "claim"):
        if not isinstance(fields[name], str) or not re.fullmatch(f"[!-~]{{1,{MAX_ADDRESS}}}", fields[name]):
            raise ValueError(f"the {name} of its audit is no address")
    parts = _number("parts", fields["parts"], 1, intervals)
    drawn = _number("drawn", fields["drawn"], 1, parts)
    right, end = fields["right"], 0
    if not isinstance(right, list):
        raise ValueError("the right intervals of its audit are no list")
    for one in right:
        if not (isinstance(one, list) and len(one) == 2):
            raise ValueError("the right intervals of its audit are no ranges")
        first = _number("right", one[0], end, intervals - 1)
        end = _number("right", one[1], first + 1, intervals)
    wrong = _wrong(fields["wrong"], intervals)
    if wrong is not None and any(first <= wrong.interval < stop for first, stop in right):
        raise ValueError("an interval of its audit is right and wrong")
    return AuditRecord(
        job=fields["job"],
        claim=fields["claim"],
        parts=parts,
        drawn=drawn,
        right=tuple((first, stop) for first, stop in right),
        wrong=wrong,
    )


def _wrong(plain: object, intervals: int) -> WrongInterval | None:
    if plain is None:
        return None
    fields = _fields("wrong interval", plain, "interval", "root", "stopped")
    root, stopped = fields["root"], fields["stopped"]
    if not isinstance(root, str) or not re.fullmatch("0x[0-9a-f]{64}", root):
        raise ValueError("the root of its wrong interval is not 0x and 64 lower-case hex digits")
    if stopped is not None and not (isinstance(stopped, str) and re.fullmatch(f"[ -~]{{0,{MAX_REASON}}}", stopped)):
        raise ValueError(f"the reason of its wrong interval is not a text of at most {MAX_REASON} ASCII characters")
    interval = _number("interval", fields["interval"], 0, intervals - 1)
    return WrongInterval(interval=interval, root=bytes.fromhex(root[2:]), stopped=stopped)


def _fields(what: str, plain: object, *names: str) -> dict[str, Any]:
    if not isinstance(plain, dict) or plain.keys() != set(names):
        raise ValueError(f"its {what} has other keys than {', '.join(names)}")
    return plain


def _number(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} of its audit is not a number from {least} to {most}")
    return value


FORMAT = "tiebreak receipt"
AUDIT_FORMAT = "tiebreak audit"
"""Format of a receipt of what was claimed, with what an audit of it has found."""
RECEIPT_FORMATS = frozenset([FORMAT, AUDIT_FORMAT])
VERSION = 1
MAX_RECEIPT_BYTES = 64 << 20
"""Most bytes of a receipt: some 900,000 checkpoints."""
MAX_TEXT = 200
"""Most characters of a text in it."""

SIGNER_BYTES = 20
SIGNATURE_BYTES = 65

_DATE = "%Y-%m-%dT%H:%M:%SZ"
_ALWAYS = frozenset(
    [
        "format",
        "version",
        "spec",
        "run_id",
        "state_roots",
        "checkpoint_root",
        "final_state_root",
        "versions",
        "machine",
        "date",
    ]
)
_SIGNED = frozenset(["signer", "signature"])
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
class Receipt:
    """The result of a run: its spec and roots, and the party that signed them, if any did."""

    spec: TrainingSpec
    state_roots: tuple[bytes, ...]
    """State root after every interval."""
    versions: Versions
    machine: MachineProfile
    date: str
    """Instant at which the receipt was written, in UTC: 2026-01-31T12:00:00Z."""
    signer: bytes | None = None
    """The account that has signed, 20 bytes; None without a signature."""
    signature: bytes | None = None
    """65 bytes, over `signed_text`."""
    audit: AuditRecord | None = None
    """Findings of an audit of these roots, which are somebody else's claim then; None if they are the writer's
    own."""

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
        return Receipt(
            spec=spec,
            state_roots=tuple(state_roots),
            versions=_versions(tiebreak_version),
            machine=_machine(),
            date=datetime.now(UTC).strftime(_DATE),
        )

    @property
    def digest(self) -> bytes:
        """SHA-256 of `signed_text`: the name of the receipt, however its file is laid out."""
        return sha256(self.signed_text().encode()).digest()

    def signed_text(self) -> str:
        """The text that is signed: canonical JSON (sorted keys, no spaces, ASCII) of all but the signature."""
        return canonical_json(self._plain(signed=False))

    def plain(self) -> dict[str, Any]:
        """The receipt as JSON has it, with its signature."""
        return self._plain(signed=True)

    def by(self, signer: bytes) -> Receipt:
        """The receipt with the name of the account that will sign it."""
        return replace(self, signer=signer, signature=None)

    def signed(self, signature: bytes) -> Receipt:
        """The receipt with the signature of its `signer`."""
        return replace(self, signature=signature)

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

    def _plain(self, *, signed: bool) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "format": FORMAT if self.audit is None else AUDIT_FORMAT,
            "version": VERSION,
            "spec": json.loads(self.spec.to_json()),
            "run_id": _hex(self.spec.run_id),
            "state_roots": [_hex(root) for root in self.state_roots],
            "checkpoint_root": _hex(self.checkpoint_root),
            "final_state_root": _hex(self.final_state_root),
            "versions": asdict(self.versions),
            "machine": asdict(self.machine),
            "date": self.date,
        }
        if self.audit is not None:
            plain["audit"] = self.audit.plain()
        if self.signer is not None:
            plain["signer"] = _hex(self.signer)
        if signed and self.signature is not None:
            plain["signature"] = _hex(self.signature)
        return plain


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
    except (SpecError, ValueError) as error:
        reason = str(error)[:300].replace("\n", " ")
        raise ReceiptError(f"{name} is no receipt that could be checked ({reason}): {_AGAIN}") from error


class _NewerError(Exception):
    """A version that this one does not read."""


def _parse(data: bytes) -> Receipt:
    """The receipt of a file's bytes. Raises ValueError, _NewerError."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise ValueError(f"it has more than {MAX_RECEIPT_BYTES} bytes")
    plain = parse_json(data, only_integers=True)
    if not isinstance(plain, dict) or plain.get("format") not in (FORMAT, AUDIT_FORMAT):
        raise ValueError(f"it does not say that its format is {FORMAT!r}")
    always = _ALWAYS | {"audit"} if plain["format"] == AUDIT_FORMAT else _ALWAYS
    version = plain.get("version")
    if type(version) is not int:
        raise ValueError("its version is not an integer")
    if version != VERSION:
        raise _NewerError(f"is a receipt of version {str(version)[:20]}, and this version reads version {VERSION}")
    if missing := sorted(always - plain.keys()):
        raise ValueError(f"it lacks {missing[0]}")
    if unknown := sorted(plain.keys() - always - _SIGNED):
        raise ValueError(f"it has an unknown key {unknown[0][:60]!r}")
    if len(_SIGNED & plain.keys()) == 1:
        raise ValueError("it has a signer without a signature, or a signature without a signer")
    spec = _spec(plain["spec"])
    roots = plain["state_roots"]
    if not isinstance(roots, list) or len(roots) != spec.intervals:
        raise ValueError(f"its state_roots are not a list of {spec.intervals} roots, as its spec says")
    is_signed = "signer" in plain
    receipt = Receipt(
        spec=spec,
        state_roots=tuple(_bytes(f"state root {number}", root, 32) for number, root in enumerate(roots)),
        versions=Versions(**_texts("versions", plain["versions"], "python", "torch", "tiebreak")),
        machine=_profile(plain["machine"]),
        date=_date(plain["date"]),
        signer=_bytes("signer", plain["signer"], SIGNER_BYTES) if is_signed else None,
        signature=_bytes("signature", plain["signature"], SIGNATURE_BYTES) if is_signed else None,
        audit=parse_audit_record(plain["audit"], spec.intervals) if "audit" in always else None,
    )
    for name, follows in (
        ("run_id", spec.run_id),
        ("checkpoint_root", receipt.checkpoint_root),
        ("final_state_root", receipt.final_state_root),
    ):
        if _bytes(name, plain[name], 32) != follows:
            raise ValueError(f"its {name} is not the one that follows from its other fields")
    return receipt


def _spec(plain: object) -> TrainingSpec:
    text = json.dumps(plain)
    if len(text) > MAX_JSON_BYTES:
        raise ValueError("its spec is too long")
    spec = TrainingSpec.from_json(text)
    if spec.log_decides:
        raise ValueError(
            f"its job rounds by the policy {spec.policy_name}, under which nobody can repeat a run without its log"
        )
    return spec


def _profile(plain: object) -> MachineProfile:
    threads = plain.get("threads") if isinstance(plain, dict) else None
    if not isinstance(plain, dict) or type(threads) is not int or not 1 <= threads <= 1 << 20:
        raise ValueError("its machine is not an object with the number of threads")
    others = {name: value for name, value in plain.items() if name != "threads"}
    texts = _texts("machine", others, "system", "architecture", "processor", "instructions")
    return MachineProfile(**texts, threads=threads)


def _texts(what: str, plain: object, *names: str) -> dict[str, str]:
    if not isinstance(plain, dict) or plain.keys() != set(names):
        raise ValueError(f"its {what} has other keys than {', '.join(names)}")
    for name, value in plain.items():
        if not isinstance(value, str) or not re.fullmatch(f"[ -~]{{0,{MAX_TEXT}}}", value):
            raise ValueError(f"{name} of its {what} is not a text of at most {MAX_TEXT} ASCII characters")
    return dict(plain)


def _date(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", value):
        datetime.strptime(value, _DATE)
        return value
    raise ValueError("its date is not of the form 2026-01-31T12:00:00Z")


def _bytes(name: str, value: object, size: int) -> bytes:
    if isinstance(value, str) and re.fullmatch(f"0x[0-9a-f]{{{2 * size}}}", value):
        return bytes.fromhex(value[2:])
    raise ValueError(f"{name} is not 0x and {2 * size} lower-case hex digits")


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _versions(tiebreak_version: str) -> Versions:
    import torch

    return Versions(python=platform.python_version(), torch=_text(torch.__version__), tiebreak=_text(tiebreak_version))


def _machine() -> MachineProfile:
    import torch

    return MachineProfile(
        system=_text(platform.system()),
        architecture=_text(platform.machine()),
        processor=_text(_processor()),
        instructions=_text(torch.backends.cpu.get_cpu_capability()),
        threads=torch.get_num_threads(),
    )


def _processor() -> str:
    """The processor's name, as Linux has it."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def _text(value: object) -> str:
    """A text of this machine as receipts may have it."""
    return re.sub("[^ -~]", "?", str(value))[:MAX_TEXT]
