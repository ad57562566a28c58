"""CIFAR-10: 32x32 colour images of ten classes (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
2009), or generated images of the same shape.

The official files for Python are pickles of a dict, read without running anything that stands in them. A file is
`{b"data": uint8[n, 3072], b"labels": [class, ...], ...}`, written by Python 2. Before a file is unpickled, each of its
instructions is looked at: only those that make plain values, one array and the dict are allowed, and none can ask for
memory that the file has not itself. NumPy's constructors are stand-ins that remember what they were given. Format:
https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError
from roundlog.storage import open_regular

PIXELS = 3 * 32 * 32
CLASSES = 10
NAMES = tuple(f"data_batch_{number}" for number in range(1, 6))
MAX_FILE_BYTES = 64 << 20
"""The official files have 31 million bytes each."""

_ALLOWED = frozenset(
    [
        *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
        *("BINSTRING", "SHORT_BINSTRING", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "APPENDS"),
        *("SETITEM", "SETITEMS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BUILD"),
    ]
)
_NUMPY = frozenset([("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")])
_MAX_TUPLES = 16
"""An array takes six. Nested without end, they would take for ever to be hashed as a key."""


def read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels uint8[rows, 3072] and classes i64[rows] of all five files. Raises CaptureError."""
    if not folder.is_dir():
        raise CaptureError(f"there is no folder {folder}: name the one that holds CIFAR-10's {NAMES[0]} to {NAMES[-1]}")
    parts = [_read_file(folder / name) for name in NAMES]
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([classes for _, classes in parts])


def _read_file(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CaptureError(
            f"{path} cannot be read ({error.strerror}): name the folder of CIFAR-10's python version, with all of "
            f"{NAMES[0]} to {NAMES[-1]}"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise CaptureError(f"{path} has more than {MAX_FILE_BYTES} bytes: CIFAR-10's own files are smaller")
    try:
        _inspect(content)
        return _rows(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except Exception as error:  # whatever a file of random bytes can make a pickle machine do
        reason = str(error) or type(error).__name__
        raise CaptureError(
            f"{path} is no whole file of CIFAR-10's python version ({reason}): fetch it again"
        ) from error


def _inspect(content: bytes) -> None:
    """Raises ValueError unless the pickle consists of allowed instructions only, and ends with the file."""
    tuples = 0
    for count, (code, argument, position) in enumerate(pickletools.genops(content)):
        if code.name not in _ALLOWED:
            raise ValueError(f"it has the instruction {code.name}")
        if code.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > count:
            raise ValueError(f"it numbers a value {argument}")
        tuples += "TUPLE" in code.name
        if tuples > _MAX_TUPLES:
            raise ValueError(f"it has more than {_MAX_TUPLES} tuples")
        if code.name == "STOP" and position != len(content) - 1:
            raise ValueError("it goes on after its end")


class _Made:
    """Object that a stand-in was asked to make."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _StandIn:
    """Takes the place of something of NumPy's."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: object) -> _Made:
        return _Made(self.name, arguments)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NUMPY:
            raise ValueError(f"it asks for {module}.{name}"[:100])
        return _StandIn(name)


def _rows(content: object) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not isinstance(content, dict) or b"data" not in content or b"labels" not in content:
        raise ValueError("it is no dict of data and labels")
    pixels, labels = _pixels(content[b"data"]), content[b"labels"]
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise ValueError(f"its labels are no list of numbers below {CLASSES}")
    if len(labels) != len(pixels):
        raise ValueError(f"it has {len(pixels)} images and {len(labels)} labels")
    return pixels, np.array(labels, dtype=np.int64)


def _pixels(array: object) -> NDArray[np.uint8]:
    """Array that NumPy would make of (version, shape, dtype, Fortran order, bytes)."""
    if not isinstance(array, _Made) or array.name != "_reconstruct" or not isinstance(array.state, tuple):
        raise ValueError("its data are no array")
    _, shape, dtype, is_fortran, raw = array.state
    if not isinstance(dtype, _Made) or dtype.name != "dtype" or dtype.arguments[:1] not in ((b"u1",), ("u1",)):
        raise ValueError("its data are no bytes")
    if type(shape) is not tuple or len(shape) != 2 or type(shape[0]) is not int or shape[0] < 1 or shape[1] != PIXELS:
        raise ValueError(f"its data are no rows of {PIXELS} bytes")
    if is_fortran is not False or type(raw) is not bytes or len(raw) != shape[0] * PIXELS:
        raise ValueError("its data are cut off")
    return np.frombuffer(raw, np.uint8).reshape(shape)


GENERATED_ROWS = 1024

# Mean and deviation of the training set's pixels in 0..1, by colour: the figures that everybody uses.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


def load(folder: Path | None, rows: int | None) -> dict[str, torch.Tensor]:
    """Images f32[rows, 3, 32, 32], each colour of mean 0 and deviation 1, and classes i64[rows].

    folder: holds data_batch_1 to data_batch_5; None: generated images, a faint one of its own for each class, under
    noise. rows: so many from the first on; None: all of the files', or 1024 generated ones. Raises CaptureError."""
    if rows is not None and rows < 1:
        raise CaptureError(f"{rows} rows make no dataset: ask for at least one")
    if folder is None:
        count = rows or GENERATED_ROWS
        labels = torch.randint(0, CLASSES, (count,))
        return {"images": torch.randn(count, 3, 32, 32) + torch.randn(CLASSES, 3, 32, 32)[labels], "labels": labels}
    pixels, classes = read(folder)
    if rows is not None and rows > len(classes):
        raise CaptureError(f"{folder} has {len(classes)} images, not {rows}: ask for fewer rows")
    images = torch.from_numpy(pixels[:rows]).reshape(-1, 3, 32, 32).to(torch.float32)
    images.div_(255).sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))
    return {"images": images, "labels": torch.from_numpy(classes[:rows])}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a batch."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])
