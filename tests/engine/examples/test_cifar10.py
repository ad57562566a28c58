"""CIFAR-10's files are pickles by Python 2: they are read, and nothing else that a pickle can be."""

import io
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.examples import cifar10
from roundlog.examples.cifar10 import resnet50, vgg11

from tests.engine.trainings import trained_and_audited

ROWS = 3
"""Images a file in these tests; the official files have 10,000."""


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 wrote its strings, and NumPy's names as they were then."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, text: bytes) -> None:
        head = b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<i", len(text))
        self.write(head + text)
        self.memoize(text)

    dispatch[bytes] = save_string

    def save_global(self, thing: Any, name: str | None = None) -> None:
        module = thing.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or thing.__name__}\n".encode())
        self.memoize(thing)

    dispatch[type] = save_global
    dispatch[type(lambda: 0)] = save_global

    def reducer_override(self, thing: object) -> object:
        if isinstance(thing, np.dtype):
            return np.dtype, (b"u1", 0, 1), (3, b"|", None, None, None, -1, -1, 0)
        if isinstance(thing, np.ndarray):
            reconstruct, _, state = thing.__reduce__()
            return reconstruct, (np.ndarray, (0,), b"b"), state
        return NotImplemented


def python2(thing: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(thing)
    return file.getvalue()


def batch(number: int, rows: int = ROWS) -> dict[bytes, object]:
    rng = np.random.default_rng(number)
    return {
        b"batch_label": b"training batch %d of 5" % number,
        b"labels": [int(label) for label in rng.integers(0, 10, rows)],
        b"data": rng.integers(0, 256, (rows, 3072), dtype=np.uint8),
        b"filenames": [b"%d.png" % i for i in range(rows)],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}").write_bytes(python2(batch(number)))
    return tmp_path


def test_the_files_of_these_tests_are_what_python_reads_as_the_official_ones(folder: Path) -> None:
    content = pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")  # noqa: S301
    expected = batch(1)
    assert content.keys() == expected.keys()
    assert np.array_equal(content[b"data"], expected[b"data"])
    names = {code.name for code, _, _ in pickletools.genops((folder / "data_batch_1").read_bytes())}
    assert {"SHORT_BINSTRING", "BINSTRING"} <= names and not any("BYTES" in name for name in names)


def test_images_and_classes_are_those_of_the_files(folder: Path) -> None:
    data = cifar10.load(folder, None)
    batches = [batch(number) for number in range(1, 6)]
    pixels = np.concatenate([one[b"data"] for one in batches]).reshape(-1, 3, 32, 32).astype(np.float64)
    mean, deviation = (np.array(x).reshape(3, 1, 1) for x in (cifar10.MEAN, cifar10.DEVIATION))
    assert data["images"].dtype == torch.float32
    np.testing.assert_allclose(data["images"].numpy(), (pixels / 255 - mean) / deviation, rtol=1e-5, atol=1e-5)
    assert data["labels"].tolist() == [label for one in batches for label in one[b"labels"]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [partial(resnet50, stages=1), vgg11], ids=["resnet50", "vgg11"])
def test_nets_are_trained_on_the_files_and_audited(make: Callable[..., Task], folder: Path, tmp_path: Path) -> None:
    task = make(data=folder, rows=10, width=2, batch_size=5, steps=2, interval=1)
    assert torch.equal(task.dataset["images"], cifar10.load(folder, 10)["images"])
    trained_and_audited(task, tmp_path)


def test_asking_for_more_rows_than_there_are_is_refused(folder: Path) -> None:
    with pytest.raises(CaptureError, match="has 15 images, not 16"):
        cifar10.load(folder, 16)
    with pytest.raises(CaptureError, match="0 rows make no dataset"):
        cifar10.load(folder, 0)


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        cifar10.load(folder, None)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_or_file_is_named(folder: Path) -> None:
    refused(folder / "nowhere", "there is no folder")
    (folder / "data_batch_4").unlink()
    refused(folder, r"data_batch_4 cannot be read \(No such file")
    (folder / "data_batch_4").mkdir()
    refused(folder, r"data_batch_4 cannot be read \(it is not a regular file")


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    path = folder / "data_batch_2"
    whole = path.read_bytes()
    for end in [*range(0, 120), len(whole) // 2, *range(len(whole) - 120, len(whole))]:
        path.write_bytes(whole[:end])
        refused(folder, "data_batch_2 is no whole file")
    path.write_bytes(whole + b".")
    refused(folder, "goes on after its end")


def test_a_file_of_another_kind_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "data_batch_5"
    for content in (b"\x89PNG\r\n", b"\x00" * 3073, b"\xff\xfe", bytes(range(256)), b"{}"):
        path.write_bytes(content)
        refused(folder, "data_batch_5 is no whole file")
    monkeypatch.setattr(cifar10, "MAX_FILE_BYTES", 100)
    refused(folder, "data_batch_1 has more than 100 bytes")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": None}, "data are no array"),
        ({b"data": b"x" * 3072}, "data are no array"),
        ({b"data": np.zeros((ROWS, 3071), np.uint8)}, "no rows of 3072 bytes"),
        ({b"data": np.zeros(3072, np.uint8)}, "no rows of 3072 bytes"),
        ({b"data": np.zeros((0, 3072), np.uint8)}, "no rows of 3072 bytes"),
        ({b"data": np.zeros((ROWS + 1, 3072), np.uint8)}, "4 images and 3 labels"),
        ({b"data": np.asfortranarray(np.zeros((ROWS, 3072), np.uint8))}, "data are cut off"),
        ({b"labels": None}, "labels are no list"),
        ({b"labels": [0, 1, 10]}, "labels are no list of numbers below 10"),
        ({b"labels": [0, 1, -1]}, "labels are no list of numbers below 10"),
        ({b"labels": [0, 1, True]}, "labels are no list of numbers below 10"),
        ({b"labels": [0, 1]}, "3 images and 2 labels"),
    ],
)
def test_a_dict_of_other_things_is_refused(folder: Path, change: dict[bytes, object], message: str) -> None:
    (folder / "data_batch_1").write_bytes(python2({**batch(1), **change}))
    refused(folder, message)


def test_a_file_without_data_or_without_a_dict_is_refused(folder: Path) -> None:
    for content in ({b"labels": []}, {b"fine_labels": [], b"data": b""}, [], None, b""):
        (folder / "data_batch_1").write_bytes(python2(content))
        refused(folder, "no dict of data and labels")


def raw_array(shape: bytes, dtype: bytes, data: bytes) -> bytes:
    """A pickled array of any claim: instructions for its shape, dtype and bytes."""
    head = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    return head + b"(K\x01" + shape + dtype + b"\x89" + data + b"tbU\x06labels](K\x01K\x01eu."


U1 = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # Code: a call, by every instruction that can make one.
        (b"cos\nsystem\n(U\x05touchtR.", "asks for os.system"),
        (b"c__builtin__\neval\n(U\x011tR.", "asks for __builtin__.eval"),
        (b"cnumpy\nfromfile\n(U\x0b/etc/passwdtR.", "asks for numpy.fromfile"),
        (b"cnumpy.core.multiarray\nscalar\n(U\x02u1tR.", "asks for numpy.core.multiarray.scalar"),
        (b"cnumpy\nndarray.__init__\n(tR.", "asks for numpy.ndarray.__init__"),
        (b"(ios\nsystem\n.", "instruction INST"),
        (b"(cos\nsystem\nU\x04trueo.", "instruction OBJ"),
        (b"\x80\x02cos\nsystem\n)\x81.", "instruction NEWOBJ"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "instruction SHORT_BINUNICODE"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"Pthing\n.", "instruction PERSID"),
        # Memory: sizes that stand in no relation to the file.
        (b"T\xff\xff\xff\x7fabc.", "no whole file"),
        (b"T\xff\xff\xff\xffabc.", "no whole file"),
        (b"K\x01r\xff\xff\xff\x7f.", "numbers a value 2147483647"),
        (raw_array(b"(J\xff\xff\xff\x7fM\x00\x0ct", U1, b"U\x01x"), "data are cut off"),
        (raw_array(b"(J\xff\xff\xff\xffM\x00\x0ct", U1, b"U\x01x"), "no rows of 3072 bytes"),
        (raw_array(b"(K\x02M\x00\x0ct", b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR", b"]"), "data are no bytes"),
        (raw_array(b"(K\x02M\x00\x0ct", b"N", b"U\x01x"), "data are no bytes"),
        # Time: a key whose hash would take 2^64 steps.
        (b"}" + b"K\x01" + b"q\x01h\x01\x86" * 64 + b"K\x01s.", "more than 16 tuples"),
        # State for what has none.
        (b"cnumpy\ndtype\n}U\x04nameU\x01xsb.", "no whole file"),
        (b"cnumpy\ndtype\nN}U\x08__call__U\x01xs\x86b.", "no whole file"),
        (b"0.", "instruction POP"),
        (b".", "no whole file"),
        (b"(t.", "no dict of data and labels"),
        (b"a.", "no whole file"),
        (b"h\x07.", "no whole file"),
    ],
)
def test_a_pickle_that_is_an_attack_is_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "data_batch_1").write_bytes(content)
    refused(folder, f"data_batch_1.*{re.escape(message)}")


def test_an_array_of_the_tests_making_is_read_where_its_claims_are_true(folder: Path) -> None:
    """Else the attacks above could fail for another reason."""
    content = raw_array(b"(K\x02M\x00\x0ct", U1, b"T" + struct.pack("<i", 6144) + bytes(6144))
    (folder / "data_batch_1").write_bytes(content)
    assert cifar10.load(folder, 2)["labels"].tolist() == [1, 1]
