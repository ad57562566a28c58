"""Storage: a file is whole or absent, and a hostile tensor file is refused before anything is allocated."""

import errno
import json
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from roundlog.program.model import DType, ProgramError, TensorType, as_array
from roundlog.storage import StorageError, load_tensors, read_record, save_state, save_tensors, tensor_types

EXPECTED = {
    "z": TensorType((2, 3), DType.F32),
    "count": TensorType((), DType.I64),
    "mask": TensorType((5,), DType.BOOL),
    "empty": TensorType((0, 4), DType.F32),
    "b": TensorType((3,), DType.BF16),
    "a": TensorType((2, 2), DType.F16),
}
TENSORS = {
    "z": torch.tensor([[1.0, -0.0, torch.inf], [2.0, 3.0, 1e-45]]),
    "count": torch.tensor(-7),
    "mask": torch.tensor([True, False, True, True, False]),
    "empty": torch.empty(0, 4),
    "b": torch.tensor([1.5, -0.0, torch.inf], dtype=torch.bfloat16),
    "a": torch.tensor([[65504.0, 2.0**-24], [-0.0, -3.0]], dtype=torch.float16),
}


def bits(tensor: torch.Tensor) -> bytes:
    return as_array(tensor.contiguous()).tobytes()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    save_tensors(path, TENSORS)
    return path


def test_tensors_come_back_bit_for_bit_in_the_expected_order(state: Path) -> None:
    for expected in (EXPECTED, dict(reversed(EXPECTED.items()))):
        loaded = load_tensors(state, expected)
        assert list(loaded) == list(expected)
        for name, tensor in loaded.items():
            assert (tensor.dtype, tensor.shape) == (TENSORS[name].dtype, TENSORS[name].shape)
            assert bits(tensor) == bits(TENSORS[name])


def test_files_have_the_bytes_of_the_library(state: Path, tmp_path: Path) -> None:
    """Names and dtypes in any order, since the library has one of its own."""
    other = tmp_path / "other.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file(TENSORS, other, metadata)
        save_tensors(state, TENSORS, metadata)
        assert other.read_bytes() == state.read_bytes()
    save_tensors(state, dict(reversed(TENSORS.items())))
    for names in (list(EXPECTED), sorted(EXPECTED), list(reversed(EXPECTED))):
        save_state(other, {name: EXPECTED[name] for name in names}, [TENSORS[name] for name in names])
        assert other.read_bytes() == state.read_bytes()
    assert tensor_types(other) == EXPECTED


def test_tensors_that_share_memory_or_are_strided_are_saved(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {"a": base, "b": base, "t": base.t(), "row": base[1], "e": torch.ones(1).expand(3)}
    path = tmp_path / "shared.safetensors"
    save_tensors(path, tensors)
    loaded = load_tensors(path, {k: TensorType(tuple(v.shape), DType.F32) for k, v in tensors.items()})
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    loaded["a"][0, 0] = 99
    assert loaded["b"][0, 0] == 0


def test_a_dtype_that_no_program_stores_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="float64"):
        save_tensors(tmp_path / "x", {"a": torch.ones(1, dtype=torch.float64)})
    assert list(tmp_path.iterdir()) == []


def test_the_systems_error_is_the_cause_of_a_failed_save(state: Path) -> None:
    """A limit on files stands for a full disk."""
    before = state.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot be written: .*File too large") as caught:
            save_tensors(state, {"a": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EFBIG
    assert state.read_bytes() == before and list(state.parent.iterdir()) == [state]


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the header of a safetensors file and keeps its data."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def put(name: str, key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].__setitem__(key, value)


HEADER_ATTACKS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda h: h.pop("z") and None, "lacks tensor 'z'"),
    (lambda h: h.__setitem__("extra", h["empty"]), "unexpected tensor 'extra'"),
    (lambda h: h.__setitem__("__metadata__", {"format": "pt"}), "unexpected tensor '__metadata__'"),
    (put("z", "dtype", "I64"), "tensor 'z' has dtype 'I64', not F32"),
    (put("z", "dtype", ["F32"]), "tensor 'z' has dtype"),
    (put("z", "shape", [3, 2]), r"tensor 'z' has shape \[3, 2\], not \[2, 3\]"),
    (put("z", "shape", [2.0, 3]), "tensor 'z' has shape"),
    (put("z", "shape", [2**62, 3]), "tensor 'z' has shape"),
    (put("z", "shape", {"0": 2}), "tensor 'z' has shape"),
    (put("z", "shape", "\x1b[2J\n"), r"tensor 'z' has shape '\\x1b\[2J\\n'"),
    (put("z", "data_offsets", "\ud800"), r"tensor 'z' has data_offsets '\\ud800'"),
    (put("z", "data_offsets", [0, 2**40]), "tensor 'z' has data_offsets"),
    (put("z", "data_offsets", [-24, 0]), "tensor 'z' has data_offsets"),
    (put("z", "data_offsets", [0]), "tensor 'z' has data_offsets"),
    (put("z", "data_offsets", None), "tensor 'z' has data_offsets"),
    (put("z", "data_offsets", [0, 24]), "starts at byte 0 of the data instead of"),
    (put("z", "data_offsets", [9, 33]), "starts at byte"),
    (put("z", "more", 1), "other keys than dtype"),
    (lambda h: h.__setitem__("z", 3), "other keys than dtype"),
    (lambda h: [h], "not a JSON object"),
    (lambda h: b'{"z": 1, "z": 2}', "key twice"),
    (lambda h: b"{", "not JSON"),
    (lambda h: b"\xff\xff", "not JSON"),
    (lambda h: b"[" * 800, "not JSON"),
    (lambda h: b"{}" + b" " * 2000, "header of 2002 bytes, where its tensors need at most"),
]


@pytest.mark.parametrize(("change", "message"), HEADER_ATTACKS)
def test_a_forged_header_is_refused_naming_file_and_tensor(
    state: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    rewritten(state, change)
    with pytest.raises(StorageError, match=message) as error:
        load_tensors(state, EXPECTED)
    assert str(error.value).startswith(str(state))


def test_every_truncation_and_a_trailing_byte_are_refused(state: Path) -> None:
    raw = state.read_bytes()
    for length in range(len(raw)):
        state.write_bytes(raw[:length])
        with pytest.raises(StorageError):
            load_tensors(state, EXPECTED)
    state.write_bytes(raw + b"\x00")
    with pytest.raises(StorageError, match="where its tensors need"):
        load_tensors(state, EXPECTED)


def test_a_header_that_claims_exabytes_is_refused_by_its_length(state: Path) -> None:
    state.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(StorageError, match="header of 9223372036854775808 bytes"):
        load_tensors(state, EXPECTED)


def test_a_bool_of_two_is_refused(state: Path) -> None:
    raw = bytearray(state.read_bytes())
    raw[-1] = 2
    state.write_bytes(raw)
    with pytest.raises(StorageError, match="'mask' has a bool that is neither 0 nor 1"):
        load_tensors(state, EXPECTED)


def test_a_missing_file_and_a_directory_are_clear_errors(tmp_path: Path) -> None:
    for read in (lambda path: load_tensors(path, EXPECTED), read_record):
        with pytest.raises(StorageError, match="absent: does not exist"):
            read(tmp_path / "absent")
        with pytest.raises(StorageError, match="cannot be read"):
            read(tmp_path)


def test_a_record_that_is_too_long_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(b" " * 5000)
    with pytest.raises(StorageError, match="longer than the 4096 bytes allowed"):
        read_record(path, max_bytes=4096)
