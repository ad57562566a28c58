"""Fields of Arrow tables: the same bytes and rows as of arrays in memory, read from the files that the tables map."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.data import (
    ArrowField,
    DataError,
    Field,
    arrow_fields,
    data_tree,
    field_of,
    fields_of,
    summarised,
    windows,
)
from roundlog.storage import StorageError
from roundlog.training.job import Job

from tests.engine.data.test_jobs_of_files import SIGNED, STRIDE, TOKENS, WEIGHTS, WINDOW, task_of

pa: Any = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

DTYPES = ["float32", "float16", "int64", "int32", "int16", "int8", "uint16", "uint8"]


def nested(array: np.ndarray, *, fixed: bool) -> Any:
    """An Arrow array of [rows, ...], of lists of a fixed size or of any."""
    values = pa.array(array.reshape(-1))
    for length in reversed(array.shape[1:]):
        if fixed:
            values = pa.FixedSizeListArray.from_arrays(values, length)
        else:
            offsets = pa.array(np.arange(0, len(values) + 1, length, dtype=np.int32))
            values = pa.ListArray.from_arrays(offsets, values)
    return values


def mapped(table: Any, path: Path, *, batch: int, stream: bool) -> Any:
    """A table that is memory-mapped, written in batches of so many rows."""
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    source = pa.memory_map(str(path))
    return (pa.ipc.open_stream if stream else pa.ipc.open_file)(source).read_all()


def same(field: Field, array: np.ndarray, rng: np.random.Generator) -> None:
    """Whether a field is that of an array in memory: its type, its root, any rows, any bytes."""
    expected = field_of("x", np.ascontiguousarray(array))
    assert (field.kind, field.rows) == (expected.kind, expected.rows)
    assert summarised(field).tree.root == summarised(expected).tree.root
    assert summarised(field).has_nan == summarised(expected).has_nan
    rows = torch.from_numpy(rng.integers(0, field.rows, 7))
    assert torch.equal(field.take(rows), expected.take(rows))
    for _ in range(5):
        start = int(rng.integers(0, field.nbytes))
        size = int(rng.integers(0, field.nbytes - start + 1))
        assert bytes(field.read(start, size)) == bytes(expected.read(start, size))


@pytest.mark.parametrize("seed", range(5))
def test_random_tables_are_what_they_hold(seed: int, tmp_path: Path) -> None:
    """Any dtype, rank, batches and slices, in memory and in files of both kinds."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 3000))
    shape = (rows, *rng.integers(1, 6, rng.integers(0, 3)).tolist())
    array = rng.integers(0, 100, shape).astype(DTYPES[seed % len(DTYPES)])
    table = pa.table({"y": pa.array(np.arange(rows)), "x": nested(array, fixed=bool(rng.integers(2)))})
    batch, in_files = int(rng.integers(1, rows + 1)), seed % 3 > 0
    if in_files:
        table = mapped(table, tmp_path / "a b.arrow", batch=max(batch, rows // 50), stream=seed % 3 > 1)
    first = int(rng.integers(0, rows))
    count = int(rng.integers(1, rows - first + 1))
    for part, start, stop in ((table, 0, rows), (table.slice(first, count), first, first + count)):
        fields = arrow_fields(part)
        assert list(fields) == ["y", "x"]
        for name, whole in (("y", np.arange(rows)), ("x", array)):
            field = fields[name]
            assert isinstance(field, ArrowField)
            assert all((one.path is not None) == in_files for one in field.parts), "a copy was made"
            same(field, whole[start:stop], rng)
            same(pickle.loads(pickle.dumps(field)), whole[start:stop], rng)  # noqa: S301


def test_a_job_of_tables_is_that_of_the_same_arrays(tmp_path: Path) -> None:
    stream = mapped(pa.table({"x": TOKENS}), tmp_path / "t.arrow", batch=50, stream=True)
    rows = pa.table({"w": nested(WEIGHTS, fixed=True), "s": nested(SIGNED, fixed=False)})
    fields = arrow_fields(mapped(rows, tmp_path / "r.arrow", batch=7, stream=False))
    tokens = windows(arrow_fields(stream)["x"], window=WINDOW, stride=STRIDE)
    made = Job.from_task(lambda: task_of(tokens, fields["w"], fields["s"]), compare=False)
    arrays = {"tokens": windows(TOKENS, window=WINDOW, stride=STRIDE), "weights": WEIGHTS, "signed": SIGNED}
    assert made.spec.data_root == data_tree(fields_of(arrays).values()).root
    made.write(tmp_path / "job")
    assert Job.read(tmp_path / "job").spec == made.spec


def test_a_file_that_is_cut_off_ends_in_a_sentence_and_not_in_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    field = arrow_fields(mapped(pa.table({"x": np.arange(5000)}), path, batch=1000, stream=False))["x"]
    with path.open("rb+") as file:
        file.truncate(10000)
    with pytest.raises(StorageError, match=r"t\.arrow: was cut off while it was read"):
        field[:]


@pytest.mark.parametrize(
    ("columns", "names", "said"),
    [
        ({"x": [True, False]}, None, "column x is bool, and Arrow packs eight of them into a byte: cast it to uint8"),
        ({"x": [1.5, 2.5]}, None, "column x is double: give float32"),
        ({"x": ["a", "b"]}, None, "column x is string: give float32"),
        ({"x": [1, None]}, None, "column x has missing values"),
        ({"x": [[1, 2], [3, None]]}, None, "column x has missing values"),
        ({"x": [[1], None]}, None, "column x has missing values"),
        ({"x": [[1], [2, 3]]}, None, "column x has lists of 1 to 2 elements: cut or fill them"),
        ({"x": [[], []]}, None, "column x has rows without numbers"),
        ({"x": [1], "y": [2]}, ["z"], "the table has not one column z: it has x, y"),
        ({"x": pa.array([], pa.int64())}, None, "the table is empty"),
        ({"x": [1]}, [], "the table is empty"),
    ],
)
def test_what_is_no_field_is_refused(columns: dict[str, Any], names: list[str] | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        arrow_fields(pa.table(columns), names)


def test_batches_of_other_lengths_are_refused() -> None:
    table = pa.concat_tables([pa.table({"x": [[1, 2]] * 3}), pa.table({"x": [[1, 2, 3]]})])
    with pytest.raises(DataError, match=r"column x has rows of shape \[2\] and rows of shape \[3\]: cut or fill them"):
        arrow_fields(table)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(DataError, match="the table has not one column x"):
        arrow_fields(twice)


class TestOfHuggingFace:
    """`datasets.Dataset`, in memory and on disk."""

    def dataset(self, rows: int = 2500) -> Any:
        datasets = pytest.importorskip("datasets", reason="the extra `arrow` is not installed")
        features = datasets.Features(
            {
                "t": datasets.Sequence(datasets.Value("uint16"), length=8),
                "y": datasets.Value("int32"),
                "a": datasets.Array2D((3, 4), "float32"),
            }
        )
        columns = {"t": self.tokens(rows).tolist(), "y": list(range(rows)), "a": self.numbers(rows).tolist()}
        return datasets.Dataset.from_dict(columns, features=features)

    def tokens(self, rows: int) -> np.ndarray:
        return np.arange(8 * rows, dtype=np.uint16).reshape(rows, 8)

    def numbers(self, rows: int) -> np.ndarray:
        return np.random.default_rng(rows).standard_normal((rows, 3, 4), dtype=np.float32)

    def test_columns_are_read_from_the_files_of_a_data_set(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        rng = np.random.default_rng(3)
        self.dataset().save_to_disk(tmp_path / "d", num_shards=2)
        loaded = datasets.load_from_disk(tmp_path / "d")
        for some, start, stop in ((loaded, 0, 2500), (loaded.select(range(1100, 1500)), 1100, 1500)):
            fields = arrow_fields(some, ["a", "t", "y"])
            for name, array in {
                "t": self.tokens(2500),
                "a": self.numbers(2500),
                "y": np.arange(2500, dtype="i4"),
            }.items():
                field = fields[name]
                assert isinstance(field, ArrowField) and all(part.path is not None for part in field.parts)
                same(field, array[start:stop], rng)
        same(arrow_fields(self.dataset())["a"], self.numbers(2500), rng)

    def test_a_column_that_was_added_is_in_no_file_though_the_data_set_names_one(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        self.dataset(50).save_to_disk(tmp_path / "d")
        changed = datasets.load_from_disk(tmp_path / "d").rename_column("t", "u").add_column("z", list(range(50, 100)))
        assert len(changed.cache_files) == 1
        fields = arrow_fields(changed, ["u", "z"])
        in_files = {name: [part.path is not None for part in field.parts] for name, field in fields.items()}
        assert in_files == {"u": [True], "z": [False]}
        same(fields["u"], self.tokens(50), np.random.default_rng(4))
        assert fields["z"][:].tolist() == list(range(50, 100))

    def test_a_data_set_in_another_order_is_refused(self) -> None:
        datasets = pytest.importorskip("datasets")
        shuffled = self.dataset(20).shuffle(seed=1)
        with pytest.raises(DataError, match=r"stand in another order than its table's: call flatten_indices\(\)"):
            arrow_fields(shuffled)
        rows = arrow_fields(shuffled.flatten_indices())["y"][:].tolist()
        assert rows == shuffled["y"][:] and rows != sorted(rows)
        with pytest.raises(DataError, match="a DatasetDict has several data sets: choose one of train, test"):
            arrow_fields(datasets.DatasetDict(train=shuffled, test=shuffled))

    def test_a_data_set_whose_rows_are_made_when_they_are_read_is_refused(self) -> None:
        doubled = self.dataset(20).with_transform(lambda rows: {"y": [2 * y for y in rows["y"]]})
        assert doubled[3]["y"] == 6
        with pytest.raises(DataError, match=r"are those of with_transform, not its table's: make them by map\(\)"):
            arrow_fields(doubled)
