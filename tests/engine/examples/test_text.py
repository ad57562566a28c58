"""Text files as rows of tokens: bytes, or those of a tokenizer file; whatever is wrong is said in one sentence."""

from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.examples import gpt
from roundlog.examples.gpt2 import gpt2

TEXT = "the cat sat on the mat: the cat sat, the mat sat.\nDer Käfer saß.\n" * 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with GPT-2's two files, small ones; and the same as tokenizer.json in a folder of its own."""
    library = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tokenizers")
    bpe = library.ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=280, show_progress=False)
    bpe.save_model(str(folder))
    (folder / "whole").mkdir()
    bpe.save(str(folder / "whole" / "tokenizer.json"))
    return folder


def test_bytes_are_tokens_in_windows_that_overlap_by_one(file: Path) -> None:
    rows = gpt.load(file, None, context=10, vocabulary=256)["tokens"]
    content = TEXT.encode()
    assert rows.dtype == torch.int64
    assert rows.tolist() == [list(content[i : i + 11]) for i in range(0, len(content) - 10, 10)]


def test_a_tokenizer_gives_its_tokens_from_each_of_its_files(file: Path, tokenizers: Path) -> None:
    library = pytest.importorskip("tokenizers")
    expected = library.ByteLevelBPETokenizer(
        str(tokenizers / "vocab.json"), str(tokenizers / "merges.txt"), add_prefix_space=False
    )
    ids = expected.encode(TEXT).ids
    assert len(ids) < len(TEXT)
    for place in (tokenizers, tokenizers / "whole", tokenizers / "whole" / "tokenizer.json"):
        rows = gpt.load(file, place, context=5, vocabulary=280)["tokens"]
        assert rows.tolist() == [ids[i : i + 6] for i in range(0, len(ids) - 5, 5)]


SIZES = {"sequence": 6, "positions": 6, "width": 8, "heads": 2, "layers": 1, "batch_size": 2}


def test_a_vocabulary_that_is_too_small_is_refused(file: Path, tokenizers: Path) -> None:
    assert gpt2(data=file, tokenizer=tokenizers, vocabulary=280, **SIZES).dataset["tokens"].shape[1] == 7
    with pytest.raises(CaptureError, match=r"has a token 2\d\d, the model only 256 of them"):
        gpt2(data=file, tokenizer=tokenizers, vocabulary=256, **SIZES)


def refused(message: str, file: Path, tokenizer: Path | None = None, context: int = 5, vocabulary: int = 280) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        gpt.load(file, tokenizer, context=context, vocabulary=vocabulary)
    assert "\n" not in str(caught.value)


def test_texts_that_do_not_do_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(r"nothing.txt cannot be read \(No such file", tmp_path / "nothing.txt")
    refused(r"cannot be read \(it is not a regular file", tmp_path)
    refused(f"has {len(TEXT.encode())} tokens, at least 1001 are needed", file, context=1000)
    (tmp_path / "empty.txt").write_text("")
    refused("has 0 tokens, at least 6", tmp_path / "empty.txt")
    refused("has a token 195, the model only 128", file, vocabulary=128)
    monkeypatch.setattr(gpt, "_MAX_TEXT", 100)
    refused("has more than the 100 bytes", file)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\x00", b'{"model": {"type": "Unknown"}}', b"[" * 100_000],
    ids=["empty", "no text", "model", "deep"],
)
def test_a_file_that_is_no_tokenizer_is_refused(file: Path, tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    refused("tokenizer.json holds no tokenizer that can be read", file, path)
    refused("holds no tokenizer that can be read", file, tmp_path)
