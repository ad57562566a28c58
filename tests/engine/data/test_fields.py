"""Fields in memory and in files: the same rows, the same roots, whatever holds them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from roundlog.commitments import BLOCK_SIZE, BlockTree, CommitmentError, tensor_root, tensor_tree, verify
from roundlog.data import (
    DataError,
    Field,
    FileField,
    HeldField,
    as_field,
    data_tree,
    field_of,
    files,
    read_fields,
    summarised,
    windows,
    write_fields,
)
from roundlog.storage import StorageError

DTYPES = ["<f4", "<i8", "?", "u1", "i1", "<i2", "<u2", "<i4"]


def numbers(rng: Random, dtype: str, count: int) -> NDArray[Any]:
    made = np.random.default_rng(rng.randrange(1 << 30))
    if dtype == "<f4":
        return made.standard_normal(count).astype(dtype)
    if dtype == "?":
        return made.integers(0, 2, count).astype(dtype)
    info = np.iinfo(np.dtype(dtype))
    return made.integers(info.min, info.max, count, dtype=dtype, endpoint=True)


def mapped(path: Path, array: NDArray[Any], offset: int = 0) -> NDArray[Any]:
    path.write_bytes(bytes(offset) + array.tobytes())
    return np.memmap(path, array.dtype, "r", offset, array.shape)


def expected_rows(flat: NDArray[Any], row: tuple[int, ...], stride: int, rows: int) -> torch.Tensor:
    """[rows, ...] as operators see it, window by window."""
    size = int(np.prod(row))
    wide = flat if flat.dtype in (np.float32, np.bool_) else flat.astype(np.int64)
    return torch.stack(
        [torch.from_numpy(wide[i * stride : i * stride + size].copy()).reshape(row) for i in range(rows)]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_field_is_the_same_wherever_it_lies(dtype: str, tmp_path: Path) -> None:
    rng = Random(dtype)
    for number in range(6):
        row = rng.choice([(), (1,), (3,), (2, 5), (700,), (0,)])
        rows = rng.choice([1, 2, 7, 40])
        flat = numbers(rng, dtype, rows * int(np.prod(row)))
        array = flat.reshape(rows, *row)
        file = tmp_path / f"{number}"
        offset = rng.choice([0, 1, 24, 4096, 70_001])
        sources: list[Field] = [field_of("x", array)]
        if array.nbytes:
            sources.append(field_of("x", mapped(file, array, offset)))
            assert isinstance(sources[-1], FileField)
            part = mapped(tmp_path / f"{number}-part", np.concatenate([array, array]), offset)[rows:]
            sources.append(field_of("x", part))
            assert isinstance(sources[-1], FileField)
        write_fields(tmp_path / "d", {"x": sources[0]})
        sources.append(read_fields(tmp_path / "d", {"x": sources[0].kind}, rows)["x"])
        wanted = expected_rows(flat, row, int(np.prod(row)), rows)
        some = torch.tensor([rng.randrange(rows) for _ in range(9)])
        for source in sources:
            assert source.shape == tuple(wanted.shape) and source.dtype == wanted.dtype
            assert torch.equal(source.take(some), wanted[some]) and torch.equal(source[:], wanted)
            out = torch.empty((9, *row), dtype=wanted.dtype)
            assert source.take(some, out) is out and torch.equal(out, wanted[some])
            assert torch.equal(source[rows - 1], wanted[-1]) and len(source) == rows
            assert summarised(source).tree.root == tensor_root(array)
            assert bytes(source.read(0, source.nbytes)) == array.tobytes()


def test_windows_are_those_of_the_stream_and_nothing_is_copied(tmp_path: Path) -> None:
    rng = Random("windows")
    for dtype in ("<u2", "<i8", "<f4"):
        for window, stride in ((1, 1), (5, 4), (5, 5), (5, 9), (3, 1), (1025, 1024)):
            flat = numbers(rng, dtype, rng.randrange(window, 4 * window + 20))
            rows = (len(flat) - window) // stride + 1
            wanted = expected_rows(flat, (window,), stride, rows)
            path = tmp_path / "stream"
            for source in (
                flat,
                mapped(path, flat, 10),
                as_field(torch.from_numpy(flat)) if dtype != "<u2" else flat,
            ):
                field = windows(source, window=window, stride=stride)
                assert field.rows == rows and torch.equal(field[:], wanted)
                assert isinstance(field, FileField) == isinstance(source, np.memmap)
                # The tree is that of the stream, up to the end of its last window.
                used = flat[: (rows - 1) * stride + window]
                assert summarised(field).tree.root == tensor_root(used) and field.nbytes == used.nbytes


def cut_off(tensor: torch.Tensor, left: int) -> torch.Tensor:
    """The tensor, of whose memory so many bytes are left."""
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: windows(np.zeros((3, 2), np.int64), window=1, stride=1), "one axis"),
        (lambda: windows(np.zeros(3, np.int64), window=4, stride=1), "no window of 4"),
        (lambda: windows(np.zeros(3, np.int64), window=2, stride=0), "stride of a stream is 0"),
        (lambda: windows(np.zeros(3, np.int64), window=True, stride=1), "window of a stream is True"),
        (lambda: field_of("x", np.zeros(3)), "x is float64: give float32"),
        (lambda: field_of("x", np.zeros(3, "<u4")), "x is uint32: give float32"),
        (lambda: field_of("x", np.zeros(3, ">i4")), "x is >i4: give float32"),
        (lambda: field_of("x", np.zeros((3, 4), np.float32)[:, ::2]), "not contiguous"),
        (lambda: field_of("x", torch.empty(3, device="meta")), "x is on the meta device"),
        (lambda: field_of("x", cut_off(torch.arange(9, dtype=torch.int32), 0)), "x has given its memory back"),
        (lambda: field_of("x", cut_off(torch.ones(4, 2), 28)), "x has given its memory back"),
        (lambda: windows(cut_off(torch.ones(9), 0), window=2, stride=1), "stream has given its memory back"),
        (lambda: field_of("x", [1, 2]), "x is a list: make it a torch.Tensor"),
        (lambda: field_of("x", torch.zeros(3, dtype=torch.complex64)), "x is torch.complex64"),
    ],
)
def test_what_cannot_be_a_field_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make()


def test_a_map_whose_file_was_removed_or_replaced_is_what_it_shows(tmp_path: Path) -> None:
    """Not what has come to its path since."""
    for name, again in (("removed", b""), ("moved", bytes(40)), ("replaced", bytes(40))):
        path = tmp_path / name
        path.write_bytes(bytes(range(40)))
        array = np.memmap(path, np.uint8, "r", 8, (4, 8))
        path.rename(tmp_path / "elsewhere")
        if name != "moved":
            (tmp_path / "elsewhere").unlink()
        if again:
            path.write_bytes(again)
        field = field_of("x", array)
        assert isinstance(field, HeldField) and field[:].tolist() == array.tolist()
        assert field[0].tolist() == list(range(8, 16))


def test_a_map_that_was_changed_in_memory_only_is_read_from_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(40))
    for mode, kind in (("c", HeldField), ("r+", FileField)):
        array = np.memmap(path, "<f4", mode)
        array[3] = 7
        field = field_of("x", array)
        assert isinstance(field, kind) and field[3] == 7


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    field = field_of("x", mapped(tmp_path / "x", np.arange(5000, dtype=np.int64)))
    assert torch.equal(copy.copy(field)[:], field[:])
    (tmp_path / "x").write_bytes(bytes(100))
    with pytest.raises(StorageError, match=r"was cut off while it was read"):
        field[4999]
    with pytest.raises(StorageError, match=r"has 100 bytes where its field needs 40000"):
        copy.copy(field)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_fields_wherever_they_lie(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = torch.from_numpy(np.random.default_rng(1).integers(-(1 << 15), 1 << 15, (9000, 5), np.int16))
    numbers = words.view(dtype).masked_fill(words.view(dtype).isnan(), 2.5)
    here = field_of("a", numbers)
    write_fields(tmp_path / "d", {"x": here})
    again = read_fields(tmp_path / "d", {"x": here.kind}, 9000)["x"]
    monkeypatch.setattr(files, "HELD_BYTES", 0)
    there = read_fields(tmp_path / "d", {"x": here.kind}, 9000)["x"]
    some = torch.tensor([8999, 0, 7, 7])
    for field in (there, here, again):
        assert field.kind == here.kind and field.dtype == dtype and field.nbytes == 90000
        assert summarised(field).tree.root == tensor_root(numbers) and not summarised(field).has_nan
        out = torch.empty(4, 5, dtype=dtype)
        for taken in (field.take(some), field.take(some, out), field[some]):
            assert taken.dtype == dtype and torch.equal(taken.view(torch.int16), numbers[some].view(torch.int16))
        assert torch.equal(field[3].view(torch.int16), numbers[3].view(torch.int16))
    stream = windows(numbers.reshape(-1), window=6, stride=5)
    assert stream.dtype == dtype and stream.rows == 8999
    assert torch.equal(stream[8998].view(torch.int16), numbers.view(-1)[44990:44996].view(torch.int16))
    wrong = numbers.clone()
    wrong[4711, 3] = -torch.nan
    assert summarised(field_of("a", wrong)).has_nan
    assert not summarised(as_field(torch.tensor([torch.inf, -torch.inf, -0.0], dtype=dtype))).has_nan


@pytest.mark.parametrize("advised", [True, False], ids=["Linux", "macOS, which takes no advice about files"])
def test_a_large_data_set_stays_in_its_file(advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not advised:
        monkeypatch.delattr("os.posix_fadvise", raising=False)
    fields = {"x": as_field(torch.randn(50, 7)), "t": windows(np.arange(400, dtype=np.uint16), window=9, stride=8)}
    write_fields(tmp_path / "d", fields)
    kinds = {name: field.kind for name, field in fields.items()}
    assert fields["t"].rows == 49
    with pytest.raises(StorageError, match="tensor 't' has shape"):
        read_fields(tmp_path / "d", kinds, 50)
    write_fields(tmp_path / "d", fields | {"x": as_field(torch.randn(49, 7))})
    again = read_fields(tmp_path / "d", kinds, 49)
    assert all(isinstance(field, HeldField) for field in again.values())
    monkeypatch.setattr(files, "HELD_BYTES", 100)
    left = read_fields(tmp_path / "d", kinds, 49)
    assert all(isinstance(field, FileField) for field in left.values())
    assert torch.equal(left["t"][:], fields["t"][:])
    assert data_tree(left.values()).root == data_tree(again.values()).root
    header = json.loads((tmp_path / "d").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert header["t"] == {"dtype": "U16", "shape": [393], "data_offsets": [1372, 1372 + 786]}


@pytest.mark.parametrize("size", [0, 1, 1024, 1025, BLOCK_SIZE - 1, BLOCK_SIZE, 3 * BLOCK_SIZE + 2049])
def test_a_tree_of_blocks_is_the_tree_of_chunks(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    whole = tensor_tree(data)
    for step in (BLOCK_SIZE, 2 * BLOCK_SIZE, 16 * BLOCK_SIZE):
        tree = BlockTree.over(size, [data[at : at + step].data for at in range(0, size, step)])
        assert tree.root == whole.root and tree.count == whole.count

    def read(start: int, length: int) -> memoryview:
        return data[start : start + length].data

    for chunk in {0, tree.count // 2, tree.count - 1, min(1023, tree.count - 1), min(1024, tree.count - 1)}:
        assert tree.proof(chunk, read) == whole.proof(chunk)
        assert verify(
            tree.root, data[chunk * 1024 : chunk * 1024 + 1024].tobytes(), chunk, tree.count, tree.proof(chunk, read)
        )
    with pytest.raises(CommitmentError, match="no chunk"):
        tree.proof(tree.count, read)
    if size:
        data[-1] ^= 1
        with pytest.raises(CommitmentError, match="has changed"):
            tree.proof(tree.count - 1, read)


def test_a_bool_of_another_byte_has_no_root_and_a_nan_is_seen(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes([0, 1, 2]))
    with pytest.raises(CommitmentError, match="0 and 1"):
        summarised(field_of("x", np.memmap(tmp_path / "x", "?", "r")))
    assert summarised(as_field(torch.tensor([1.0, torch.nan]))).has_nan
    assert not summarised(as_field(torch.tensor([1.0, torch.inf]))).has_nan
