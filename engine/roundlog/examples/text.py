"""Any text file as rows of tokens: its bytes, or what a tokenizer file makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from roundlog.capture import CaptureError
from roundlog.storage import open_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256
"""Tokens there are if a text is taken byte by byte."""

_MAX_TEXT = 1 << 30  # bytes; tokens are stored as eight bytes each
_MAX_TOKENIZED = 64 << 20  # bytes; a tokenizer takes some forty times as many
_MAX_TOKENIZER = 64 << 20  # bytes


def load(text: Path, tokenizer: Path | None, *, context: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Windows of `context` + 1 tokens that overlap by one: {"tokens": i64[rows, context + 1]}, all below `vocabulary`.

    tokenizer: a `tokenizer.json`, or a folder that holds one, or GPT-2's `vocab.json` and `merges.txt`; None takes the
    bytes themselves. Nothing is downloaded. Raises CaptureError."""
    if tokenizer is None:
        tokens = torch.from_numpy(np.frombuffer(_read(text, _MAX_TEXT), np.uint8).copy())
    else:
        tokens = _encode(_tokenizer(tokenizer), text)
    if len(tokens) <= context:
        raise CaptureError(f"the text {text} has {len(tokens)} tokens, at least {context + 1} are needed: take another")
    if int(tokens.max()) >= vocabulary:
        raise CaptureError(
            f"the text {text} has a token {int(tokens.max())}, the model only {vocabulary} of them: set its vocabulary"
        )
    return {"tokens": tokens.unfold(0, context + 1, context).to(torch.int64)}


def _read(path: Path, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CaptureError(f"{path} cannot be read ({error.strerror}): check the path") from error
    if len(content) > limit:
        raise CaptureError(f"{path} has more than the {limit} bytes that are read: take a part of it")
    return content


def _encode(tokenizer: Tokenizer, text: Path) -> torch.Tensor:
    try:
        content = _read(text, _MAX_TOKENIZED).decode()
    except UnicodeDecodeError as error:
        raise CaptureError(
            f"the text {text} is not UTF-8 at byte {error.start}: convert it, or take its bytes"
        ) from None
    return torch.tensor(tokenizer.encode(content, add_special_tokens=False).ids, dtype=torch.int64)


def _tokenizer(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise CaptureError("tokenizer files need the package tokenizers: pip install 'tiebreak[text]'") from None
    file = path / "tokenizer.json" if path.is_dir() and (path / "tokenizer.json").exists() else path
    try:
        if not file.is_dir():
            return Tokenizer.from_str(_read(file, _MAX_TOKENIZER).decode())
        vocabulary, merges = path / "vocab.json", path / "merges.txt"
        for part in (vocabulary, merges):
            _read(part, _MAX_TOKENIZER)
        bpe = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except CaptureError:
        raise
    except Exception as error:  # the library has no type of its own
        raise CaptureError(f"{path} holds no tokenizer that can be read ({error}): check the file") from error
    # GPT-2's way to cut a text: byte by byte, so that there is no unknown token.
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return bpe
