"""The engine's readers: programs, specs, logs, proofs, tensors, jobs, run directories."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
import zstandard
from roundlog.commitments import MerkleTree, leaf_hash, verify
from roundlog.execution.fusion import peak_bytes
from roundlog.log import Entries, LogError, LogHeader, LogReader, LogWriter, PayloadError
from roundlog.log import payload as payloads
from roundlog.log.layout import HEADER_SIZE, SEGMENT_HEADER_SIZE, SegmentHeader, pack_footer
from roundlog.operators import check
from roundlog.program import DType, ProgramError, TensorType, from_json, to_json
from roundlog.rounding import checked_header
from roundlog.spec import SpecError, TrainingSpec
from roundlog.storage import StorageError, load_tensors, save_tensors
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.run import RunError
from roundlog.training.trainer import Trainer, TrainingResult

from tests.e2e.world import small_job
from tests.fuzz.mutations import canonical, change_bytes, change_json, change_tensors
from tests.fuzz.targets import Target


@cache
def _room() -> Path:
    """A directory that goes with the process."""
    room = tempfile.TemporaryDirectory(prefix="fuzz-")
    _rooms.append(room)
    return Path(room.name)


_rooms: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str, data: bytes) -> Path:
    path = _room() / name
    path.write_bytes(data)
    return path


# Programs and specs.


@dataclass(frozen=True)
class _Trained:
    job_dir: Path
    run_dir: Path
    job: Job
    result: TrainingResult


@cache
def _trained() -> _Trained:
    """A very small training, two steps, and its audit."""
    room = _room()
    small_job(steps=2, interval=1).write(room / "job")
    job = Job.read(room / "job")
    result = Trainer(job, room / "trained").run()
    Auditor(job, room / "audited", log_dir=result.log_dir, verify_log=1.0).run()
    return _Trained(room / "job", room / "audited", job, result)


def _read_program(data: bytes) -> None:
    program = from_json(data)
    check(program)
    peak_bytes(program)
    assert to_json(program) == data


def _program_seeds() -> list[bytes]:
    small = {
        "format": "tiebreak-program",
        "version": 1,
        "batch_size": 2,
        "states": ["w", "v"],
        "data": ["x"],
        "schedule": ["rate"],
        "nodes": [
            ["state", [], {"slot": 0}, "f32", [2, 3]],
            ["state", [], {"slot": 1}, "f32", [3, 2]],
            ["data", [], {"slot": 0}, "i64", [2]],
            ["schedule", [], {"slot": 0}, "f32", []],
            ["constant", [], {"bits": [1, 2]}, "i64", [2]],
            ["matmul", [0, 1], {}, "f32", [2, 2]],
            ["sum", [5], {"dims": [0, 1]}, "f32", [1, 1]],
            ["reshape", [6], {"shape": []}, "f32", []],
            ["loss", [7], {}, "f32", []],
            ["store", [0], {"slot": 0}, "f32", [2, 3]],
            ["store", [1], {"slot": 1}, "f32", [3, 2]],
        ],
        "sources": ["net.py:1"] * 11,
    }
    return [canonical(small), (_trained().job_dir / "program.json").read_bytes()]


def _read_spec(data: bytes) -> None:
    spec = TrainingSpec.from_json(data)
    assert TrainingSpec.from_json(spec.to_json()) == spec
    assert spec.intervals * spec.interval == spec.steps


# Logs.

HEADER = LogHeader(program_root=bytes([1]) * 32, run_id=bytes([2]) * 32, first_step=10, steps=2, guard=4)
SIZES = [0, 100, 1, 70_000]


def _entries(indices: list[int], decisions: list[int], values: list[int]) -> Entries:
    return Entries(np.array(indices, np.int64), np.array(decisions, np.uint8), np.array(values, np.uint32))


_STEP = {1: _entries([0, 7, 99], [1, 0, 2], [0x3F800000]), 3: _entries([5, 300, 69_999], [0, 1, 1], [])}


def _read_log(data: bytes) -> None:
    path = _file("fuzzed.rlog", data)
    with suppress(LogError):
        checked_header(path)
    with LogReader(path, HEADER, SIZES) as reader:
        for step in (10, 11):
            _check_entries(reader.step(step))


def _check_entries(log: dict[int, Entries]) -> None:
    for operator, entries in log.items():
        assert len(entries) and 0 <= operator < len(SIZES)
        assert entries.indices[0] >= 0 and entries.indices[-1] < SIZES[operator]
        assert (np.diff(entries.indices) > 0).all()
        assert not np.isnan(entries.values.view(np.float32)).any()


def _log_seeds() -> list[bytes]:
    path = _room() / "seed.rlog"
    with LogWriter(path, HEADER) as writer:
        writer.append(10, _STEP)
        writer.append(11, {})
    return [path.read_bytes()]


def _change_log_within_its_frame(data: bytes, rng: Random) -> bytes:
    """Change bytes, then puts checksums, leaf hashes and the footer right, as far as they can be found."""
    raw = bytearray(change_bytes(data, rng))
    if len(raw) < HEADER_SIZE:
        return bytes(raw)
    raw[88:120] = hashlib.sha256(raw[:88]).digest()
    try:
        header = LogHeader.unpack(bytes(raw[:HEADER_SIZE]))
    except ValueError:
        return bytes(raw)
    end, segments, offsets = HEADER_SIZE, [], []
    for _ in range(min(header.steps, 8)):
        head = raw[end : end + SEGMENT_HEADER_SIZE]
        if len(head) < SEGMENT_HEADER_SIZE:
            return bytes(raw)
        step, claimed, compressed, _ = struct.unpack("<QII32s", head)
        body = bytes(raw[end + SEGMENT_HEADER_SIZE : end + SEGMENT_HEADER_SIZE + compressed])
        segment = SegmentHeader(step, claimed, compressed, leaf_hash(body))
        raw[end : end + SEGMENT_HEADER_SIZE] = segment.pack()
        segments.append(segment)
        offsets.append(end)
        end += SEGMENT_HEADER_SIZE + compressed
    return bytes(raw[:end]) + pack_footer(header, offsets, segments)[0]


def _forge(frames: list[tuple[int, bytes]]) -> bytes:
    """A file in good order around segments of (claimed payload bytes, compressed bytes)."""
    raw, offsets, segments = HEADER.pack(), [], []
    for number, (claimed, compressed) in enumerate(frames):
        segment = SegmentHeader(HEADER.first_step + number, claimed, len(compressed), leaf_hash(compressed))
        offsets.append(len(raw))
        segments.append(segment)
        raw += segment.pack() + compressed
    return raw + pack_footer(HEADER, offsets, segments)[0]


_NOTHING = len(payloads.encode({})), zstandard.ZstdCompressor().compress(payloads.encode({}))


def _read_frame(data: bytes) -> None:
    """`data`: four bytes of claimed length, then what should be a Zstandard frame."""
    claimed = int.from_bytes(data[:4], "little")
    _read_log(_forge([(claimed, data[4:]), _NOTHING]))


def _read_payload(data: bytes) -> None:
    log = payloads.decode(data, np.array(SIZES, np.int64))
    _check_entries(log)
    assert payloads.encode(log) == data
    payloads.decode(data, None)


# Proofs and tensors.

_PAYLOADS = [bytes([i]) * (i + 1) for i in range(5)]


def _proof_seeds() -> list[bytes]:
    tree = MerkleTree(_PAYLOADS)
    return [
        json.dumps([tree.root.hex(), payload.hex(), i, 5, [sibling.hex() for sibling in tree.proof(i)]]).encode()
        for i, payload in enumerate(_PAYLOADS)
    ]


class _NoProof(ValueError):
    """The input is no proof in the form that this target has for them."""


def _read_proof(data: bytes) -> None:
    try:
        root, payload, index, count, proof = json.loads(data)
        root, payload, proof = bytes.fromhex(root), bytes.fromhex(payload), [bytes.fromhex(s) for s in proof]
        index, count = index + 0, count + 0
        if not isinstance(index, int) or not isinstance(count, int) or isinstance(index, bool):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise _NoProof("no proof") from None
    found = verify(root, payload, index, count, proof)
    if root == MerkleTree(_PAYLOADS).root and count == len(_PAYLOADS):
        assert found == (0 <= index < 5 and payload == _PAYLOADS[index] and proof == MerkleTree(_PAYLOADS).proof(index))


_TENSORS = {
    "z": TensorType((2, 3), DType.F32),
    "count": TensorType((), DType.I64),
    "mask": TensorType((5,), DType.BOOL),
    "empty": TensorType((0, 4), DType.F32),
    "b": TensorType((3,), DType.BF16),
    "a": TensorType((2, 2), DType.F16),
}


def _tensor_seeds() -> list[bytes]:
    path = _room() / "seed.safetensors"
    save_tensors(path, {name: torch.ones(kind.shape).to(kind.dtype.torch_dtype) for name, kind in _TENSORS.items()})
    return [path.read_bytes()]


def _read_tensors(data: bytes) -> None:
    found = load_tensors(_file("fuzzed.safetensors", data), _TENSORS)
    assert [(name, TensorType(tuple(x.shape), DType.of(x.dtype))) for name, x in found.items()] == list(
        _TENSORS.items()
    )


# Directories: an input is the name of the one file that is replaced, a line break, and what stands there instead.


def _file_seeds(directory: Callable[[], Path], names: list[str]) -> Callable[[], list[bytes]]:
    return lambda: [name.encode() + b"\n" + (directory() / name).read_bytes() for name in names]


def _change_file(data: bytes, rng: Random) -> bytes:
    name, _, content = data.partition(b"\n")
    change = change_bytes
    if name.endswith(b"json"):
        change = rng.choice((change_bytes, change_json))
    elif name.endswith(b"safetensors"):
        change = rng.choice((change_bytes, change_tensors))
    return name + b"\n" + change(content, rng)


def _replaced(source: Path, target: Path, names: list[str], data: bytes) -> Path:
    """A copy of a directory with one of these files replaced."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    name, _, content = data.partition(b"\n")
    if name.decode("latin1") in names:
        (target / name.decode("latin1")).write_bytes(content)
    return target


_JOB_FILES = [
    "spec.json",
    "program.json",
    "initial.safetensors",
    "schedule.safetensors",
    "data.safetensors",
    "data.blocks",
]


def _read_job(data: bytes) -> None:
    whole = _trained()
    job = Job.read(_replaced(whole.job_dir, _room() / "fuzzed job", _JOB_FILES, data), JobLimits(memory_bytes=1 << 26))
    # Everything hangs together by roots: a job with this spec is this job.
    if job.spec == whole.job.spec:
        assert job.program == whole.job.program
        assert all(torch.equal(job.initial[name], x) for name, x in whole.job.initial.items())


_RUN_FILES = [
    "run.json",
    "roots",
    "findings.json",
    "checkpoints/00000001.safetensors",
    "checkpoints/00000002.safetensors",
]


def _read_run(data: bytes) -> None:
    whole = _trained()
    directory = _replaced(whole.run_dir, _room() / "fuzzed run", _RUN_FILES, data)
    audit = Auditor(whole.job, directory, log_dir=whole.result.log_dir).run()
    # A party trusts its own record of the roots before the state from which it carries on.
    kept = data.startswith(b"roots\n")
    assert audit.state_roots[-1 if kept else 0 :] == whole.result.state_roots[-1 if kept else 0 :]


ENGINE = [
    Target(
        name="program",
        seeds=_program_seeds,
        read=_read_program,
        refusals=(ProgramError,),
        mutators=(change_json, change_json, change_bytes),
    ),
    Target(
        name="spec",
        seeds=lambda: [(_trained().job_dir / "spec.json").read_bytes()],
        read=_read_spec,
        refusals=(SpecError,),
        mutators=(change_json, change_bytes),
    ),
    Target(
        name="log-file",
        seeds=_log_seeds,
        read=_read_log,
        refusals=(LogError,),
        mutators=(change_bytes, _change_log_within_its_frame, _change_log_within_its_frame),
    ),
    Target(
        name="log-frame",
        seeds=lambda: [
            len(payload).to_bytes(4, "little") + zstandard.ZstdCompressor().compress(payload)
            for payload in (payloads.encode(_STEP), payloads.encode({}), bytes(100_000))
        ],
        read=_read_frame,
        refusals=(LogError,),
        refused_seeds=1,
    ),
    Target(
        name="log-payload",
        seeds=lambda: [payloads.encode(_STEP), payloads.encode({})],
        read=_read_payload,
        refusals=(PayloadError,),
    ),
    Target(
        name="merkle-proof",
        seeds=_proof_seeds,
        read=_read_proof,
        refusals=(_NoProof,),
        mutators=(change_json, change_json, change_bytes),
    ),
    Target(
        name="tensors",
        seeds=_tensor_seeds,
        read=_read_tensors,
        refusals=(StorageError,),
        mutators=(change_tensors, change_bytes),
    ),
    Target(
        name="job",
        seeds=_file_seeds(lambda: _trained().job_dir, _JOB_FILES),
        read=_read_job,
        refusals=(JobError,),
        mutators=(_change_file,),
    ),
    Target(
        name="run",
        seeds=_file_seeds(lambda: _trained().run_dir, _RUN_FILES),
        read=_read_run,
        refusals=(RunError,),
        mutators=(_change_file,),
    ),
]
