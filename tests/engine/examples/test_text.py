"""Text files as rows of tokens, which are their bytes; whatever is wrong is said in one sentence."""

from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.examples import gpt

TEXT = "the cat sat on the mat: the cat sat, the mat sat.\nDer Käfer saß.\n" * 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_bytes_are_tokens_in_windows_that_overlap_by_one(file: Path) -> None:
    rows = gpt.load(file, context=10, vocabulary=256)["tokens"]
    content = TEXT.encode()
    assert rows.dtype == torch.int64
    assert rows.tolist() == [list(content[i : i + 11]) for i in range(0, len(content) - 10, 10)]


def refused(message: str, file: Path, context: int = 5, vocabulary: int = 256) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        gpt.load(file, context=context, vocabulary=vocabulary)
    assert "\n" not in str(caught.value)


def test_texts_that_do_not_do_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(r"nothing.txt cannot be read \(No such file", tmp_path / "nothing.txt")
    refused(r"cannot be read \(it is not a regular file", tmp_path)
    refused(f"has {len(TEXT.encode())} bytes, at least 1001 are needed", file, context=1000)
    (tmp_path / "empty.txt").write_text("")
    refused("has 0 bytes, at least 6", tmp_path / "empty.txt")
    refused("has a byte 195, the model only 128", file, vocabulary=128)
    monkeypatch.setattr(gpt, "_MAX_TEXT", 100)
    refused("has more than the 100 bytes", file)
