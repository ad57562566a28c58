"""States, datasets and schedules as safetensors files.

Written tensor by tensor, for which the library would need all at once. Read from one open file and by the header that
was checked, since the library allocates what a file asks for and maps it: a mapped file that somebody truncates later
ends the process by SIGBUS. The format:
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from reprlib import repr as quoted  # a stranger's values are shown shortened and escaped
from typing import Any

import torch

from roundlog.json_text import parse_json
from roundlog.program.model import DType, TensorType, as_array
from roundlog.program.program_text import MAX_ELEMENTS, MAX_ITEMS, MAX_RANK
from roundlog.storage.durable_files import (
    StorageError,
    open_regular,
    read_into,
    reading,
    replace_file,
)

DTYPE_NAMES = {DType.I64: "I64", DType.F32: "F32", DType.BF16: "BF16", DType.F16: "F16", DType.BOOL: "BOOL"}
"""The format's names of dtypes, in the order in which the library writes tensors."""

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 64 << 20


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Replaces the file at `path`, durably and as a whole. The same tensors make the same bytes: those of the
    safetensors library.

    `tensors` are on any device, of any strides, and may share memory. metadata: for readers of other makers; files of
    a run have none. Raises ProgramError for a dtype that no program has, and StorageError if the file
    cannot be written.
    """
    types = {name: TensorType(tuple(tensor.shape), DType.of(tensor.dtype)) for name, tensor in tensors.items()}
    save_state(path, types, list(tensors.values()), metadata=metadata)


def save_state(
    path: Path,
    types: Mapping[str, TensorType],
    state: Sequence[torch.Tensor],
    only: Container[str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """`save_tensors` of a state that may be lazy: one tensor after the other is read, written and let go. types: of the
    tensors, in the order of the state. only: names of those that are written; None: all. Also raises what reading a
    tensor does."""
    slots = {name: slot for slot, name in enumerate(types)}
    # The library's order: by dtype, then by name.
    places = list(DTYPE_NAMES)
    chosen = (name for name in types if only is None or name in only)
    order = sorted(chosen, key=lambda name: (places.index(types[name].dtype), name.encode()))
    unread = None
    try:
        with replace_file(path) as file:
            file.write(header_of({name: entry_of(types[name]) for name in order}, metadata))
            for name in order:
                try:
                    tensor = state[slots[name]].detach().cpu().contiguous()
                except OSError as error:
                    unread = error
                    raise
                file.write(as_array(tensor).data.cast("B") if tensor.numel() else b"")
    except OSError as error:
        if error is unread:
            raise
        raise StorageError(path, f"cannot be written: {error}") from error


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in a file: the format's name of its dtype, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def entry_of(kind: TensorType) -> TensorEntry:
    """A tensor of a program in a file."""
    return TensorEntry(DTYPE_NAMES[kind.dtype], kind.shape, kind.nbytes)


def header_of(entries: Mapping[str, TensorEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes before those of the first tensor, in a file of these tensors in this order."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, entry in entries.items():
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [end, end + entry.nbytes]}
        end += entry.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def most_tensor_bytes(expected: Mapping[str, TensorEntry]) -> int:
    """Most bytes of a file of these tensors that a reader takes."""
    return _LENGTH.size + _header_limit(expected) + sum(entry.nbytes for entry in expected.values())


def open_tensors(path: Path, expected: Mapping[str, TensorEntry]) -> tuple[BufferedReader, dict[str, int]]:
    """The file at `path`, open, and the byte at which each of its tensors begins. Nothing of them is read; all else is
    as in `load_tensors`."""
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise StorageError(path, "does not exist") from error
    except OSError as error:
        raise StorageError(path, f"cannot be read: {error.strerror}") from error
    try:
        return file, _starts(file, path, expected)
    except OSError as error:
        file.close()
        raise StorageError(path, f"cannot be read: {error.strerror}") from error
    except BaseException:
        file.close()
        raise


def tensor_types(path: Path) -> dict[str, TensorType]:
    """Type of every tensor in a file of `save_tensors`, as its header names them. The file is not trusted, and nothing
    of the tensors is read.

    Raises StorageError for a file that such a file cannot be: with metadata, other dtypes, or tensors of more than 2^40
    elements."""
    with reading(path) as file:
        header, _ = _read_header(file, path, _MAX_HEADER_BYTES)
    return {name: _declared(path, name, entry) for name, entry in header.items()}


def _declared(path: Path, name: str, entry: Any) -> TensorType:
    """The type that an entry of a header declares."""
    if name == "__metadata__":
        raise StorageError(path, "has metadata, which files of a run have not")
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise StorageError(path, f"describes tensor {quoted(name)} without a dtype")
    dtype = next((ours for ours, theirs in DTYPE_NAMES.items() if theirs == entry["dtype"]), None)
    if dtype is None:
        raise StorageError(
            path, f"tensor {quoted(name)} has dtype {quoted(entry['dtype'])}, which files of a run have not"
        )
    shape: Any = entry.get("shape")
    if not _is_integers(shape) or len(shape) > MAX_RANK:
        raise StorageError(path, f"tensor {quoted(name)} has shape {quoted(shape)}, not at most {MAX_RANK} axes")
    # Axes behind one of 0 count, too: PyTorch multiplies them.
    if prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise StorageError(path, f"tensor {quoted(name)} has shape {quoted(shape)}, more than {MAX_ELEMENTS} elements")
    return TensorType(tuple(shape), dtype)


def load_tensors(
    path: Path, expected: Mapping[str, TensorType], only: Container[str] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of the file at `path`, on the CPU, in the order of `expected`. only: names of those that are read;
    None: all of them.

    The file has to hold exactly the names, dtypes and shapes of `expected`, without holes, overlaps,
    metadata or trailing bytes, and bools of 0 and 1 only; all but the last is checked before anything is
    allocated. Raises StorageError naming the file and the tensor.
    """
    with StoredTensors(path, expected) as stored:
        return {name: stored[name] for name in expected if only is None or name in only}


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of a file, which stay there: each is read, on the CPU, whenever it is asked for.

    The file is as for `load_tensors`, and stays open: replacing it changes nothing here."""

    def __init__(self, path: Path, expected: Mapping[str, TensorType]) -> None:
        """Raises StorageError, as `load_tensors`."""
        self.path, self._types = path, dict(expected)
        entries = {name: entry_of(kind) for name, kind in expected.items()}
        self._file, self._starts = open_tensors(path, entries)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises StorageError if it cannot be read, or is of bools that are neither 0 nor 1."""
        kind = self._types[name]
        raw = torch.empty(kind.nbytes, dtype=torch.uint8)
        read_into(raw.numpy().data, self._file, self.path, self._starts[name])
        if kind.dtype is DType.BOOL and raw.numel() and int(raw.max()) > 1:
            raise StorageError(self.path, f"tensor {name!r} has a bool that is neither 0 nor 1")
        return raw.view(kind.dtype.torch_dtype).reshape(kind.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __enter__(self) -> StoredTensors:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _starts(file: BufferedReader, path: Path, expected: Mapping[str, TensorEntry]) -> dict[str, int]:
    """The byte of the file at which every expected tensor begins."""
    header, header_end = _read_header(file, path, _header_limit(expected))
    starts = _check_header(path, header, expected)
    data_bytes = sum(entry.nbytes for entry in expected.values())
    file_bytes = os.fstat(file.fileno()).st_size
    if file_bytes != header_end + data_bytes:
        raise StorageError(path, f"has {file_bytes} bytes where its tensors need {header_end + data_bytes}")
    return {name: header_end + start for name, start in starts.items()}


def _read_header(file: BufferedReader, path: Path, limit: int) -> tuple[dict[str, Any], int]:
    """The header, and the byte behind it. limit: bytes that it may have."""
    prefix = file.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise StorageError(path, "is shorter than the 8 bytes that a safetensors file starts with")
    (length,) = _LENGTH.unpack(prefix)
    if length > limit:
        raise StorageError(path, f"has a header of {length} bytes, where its tensors need at most {limit}")
    text = file.read(length)
    if len(text) < length:
        raise StorageError(path, f"ends inside its header of {length} bytes")
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_ITEMS:
        raise StorageError(path, f"has a header of more than {MAX_ITEMS} items")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise StorageError(path, f"has a header that {error}") from error
    if not isinstance(header, dict):
        raise StorageError(path, "has a header that is not a JSON object")
    return header, _LENGTH.size + length


def _header_limit(expected: Mapping[str, TensorEntry]) -> int:
    # JSON writes a character of a name in at most 12 bytes (a surrogate pair of \uXXXX) and a number in at most 20.
    return 64 + sum(128 + 12 * len(name) + 22 * len(kind.shape) for name, kind in expected.items())


def _check_header(path: Path, header: dict[str, Any], expected: Mapping[str, TensorEntry]) -> dict[str, int]:
    """The offset of every expected tensor in the data."""
    if unknown := sorted(header.keys() - expected.keys()):
        raise StorageError(path, f"has an unexpected tensor {unknown[0][:80]!r}")
    if missing := [name for name in expected if name not in header]:
        raise StorageError(path, f"lacks tensor {missing[0]!r}")
    spans = []
    for name, kind in expected.items():
        entry = header[name]
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise StorageError(path, f"describes tensor {name!r} by other keys than dtype, shape and data_offsets")
        if entry["dtype"] != kind.dtype:
            raise StorageError(path, f"tensor {name!r} has dtype {quoted(entry['dtype'])}, not {kind.dtype}")
        if not _is_integers(entry["shape"]) or tuple(entry["shape"]) != kind.shape:
            raise StorageError(path, f"tensor {name!r} has shape {quoted(entry['shape'])}, not {list(kind.shape)}")
        offsets = entry["data_offsets"]
        if not _is_integers(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != kind.nbytes:
            raise StorageError(path, f"tensor {name!r} has data_offsets {quoted(offsets)} for {kind.nbytes} bytes")
        spans.append((offsets[0], offsets[1], name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise StorageError(path, f"tensor {name!r} starts at byte {start} of the data instead of {end}")
        end = stop
    return {name: start for start, _, name in spans}


def _is_integers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
