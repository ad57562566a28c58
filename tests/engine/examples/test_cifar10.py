"""CIFAR-10's files of the binary version: records of a class and 3072 pixels, and nothing else is read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.examples import cifar10
from roundlog.examples.cifar10 import vgg11

ROWS = 3
"""Images a file in these tests; the official files have 10,000."""


def records(number: int) -> np.ndarray:
    """The file of this number: uint8[ROWS, 3073]."""
    rng = np.random.default_rng(number)
    classes, pixels = rng.integers(0, 10, (ROWS, 1)), rng.integers(0, 256, (ROWS, 3072))
    return np.hstack([classes, pixels]).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(records(number).tobytes())
    return tmp_path


def test_images_and_classes_are_those_of_the_files(folder: Path) -> None:
    data = cifar10.load(folder, None)
    whole = np.concatenate([records(number) for number in range(1, 6)])
    pixels = whole[:, 1:].reshape(-1, 3, 32, 32).astype(np.float64)
    mean, deviation = (np.array(x).reshape(3, 1, 1) for x in (cifar10.MEAN, cifar10.DEVIATION))
    assert data["images"].dtype == torch.float32
    np.testing.assert_allclose(data["images"].numpy(), (pixels / 255 - mean) / deviation, rtol=1e-5, atol=1e-5)
    assert data["labels"].tolist() == whole[:, 0].tolist()
    task = vgg11(data=folder, rows=10, width=2, batch_size=5, steps=2, interval=1)
    assert torch.equal(task.dataset["images"], cifar10.load(folder, 10)["images"])


def test_asking_for_more_rows_than_there_are_is_refused(folder: Path) -> None:
    with pytest.raises(CaptureError, match="has 15 images, not 16"):
        cifar10.load(folder, 16)
    with pytest.raises(CaptureError, match="0 rows make no dataset"):
        cifar10.load(folder, 0)


def test_what_is_no_whole_folder_of_images_is_named(folder: Path) -> None:
    path = folder / "data_batch_4.bin"
    whole = path.read_bytes()
    for content, said in (
        (whole[:-1], f"has {len(whole) - 1} bytes, not whole images of 3073: fetch it again"),
        (b"\x0a" + whole[1:], "has the class 10, and CIFAR-10 has 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(CaptureError, match=f"data_batch_4.bin {said}"):
            cifar10.load(folder, None)
    path.unlink()
    with pytest.raises(CaptureError, match=r"data_batch_4.bin cannot be read \(No such file"):
        cifar10.load(folder, None)
