"""Texts of tokens as they grow: with tokenizers of bytes, and of words with bytes beside them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tiebreak import generated_text
from tiebreak.generated_text import TextDecoder, text_behind, token_bytes

transformers = pytest.importorskip("transformers")

WORDS = ["▁Hello", "▁world", "▁and", "▁", "x", "é", "▁日", "本"]
SPECIAL = ["<unk>", "<s>", "</s>"]


def with_fallback() -> Any:
    """A tokenizer of words and bytes, as those of Llama 2, Mistral and Gemma."""
    from tokenizers import Tokenizer, decoders, models

    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocabulary = {name: number for number, name in enumerate(names)}
    plain: Any = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    plain.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    named = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **named)


def of_bytes() -> Any:
    """A tokenizer of bytes, as that of GPT-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    plain: Any = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")


def byte(value: int) -> int:
    return 3 + value


def word(text: str) -> int:
    return 3 + 256 + WORDS.index(text)


def told(tokenizer: Any, prompt: list[int], tokens: list[int]) -> list[str]:
    decoder = TextDecoder(tokenizer, prompt)
    parts = [*map(decoder.add, tokens), decoder.end()]
    assert decoder.text == "".join(parts)
    return parts


def test_half_a_character_behind_a_byte_takes_nothing_back() -> None:
    tokenizer = with_fallback()
    tokens = [word("▁Hello"), byte(0x0A), byte(0xE4), word("▁world"), word("▁and")]
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assert whole == "Hello\ufffd\ufffd world and"
    assert told(tokenizer, [1], tokens) == ["Hello", "", "", "\ufffd\ufffd world", " and", ""]
    assert text_behind(tokenizer, [1], tokens) == whole


@pytest.mark.slow_but("with_fallback")
@pytest.mark.parametrize("make", [with_fallback, of_bytes])
def test_parts_come_to_the_whole_text(make: Any) -> None:
    tokenizer, draw, early = make(), random.Random(4), 0
    size = len(tokenizer)
    utf8 = [byte(one) for one in "日本é x".encode()] if make is with_fallback else tokenizer("日本é x")["input_ids"]
    for _ in range(400):
        tokens = list[int]()
        while len(tokens) < 40:
            kinds = [[draw.randrange(size)], [draw.randrange(3)], utf8[draw.randrange(3) :], utf8[: draw.randrange(9)]]
            tokens += draw.choice([*kinds, [draw.randrange(size - 8, size)], [byte(draw.randrange(32, 127))]])
        prompt = [draw.randrange(size) for _ in range(draw.randrange(3))]
        parts = told(tokenizer, prompt, tokens)
        assert "".join(parts) == text_behind(tokenizer, prompt, tokens), (prompt, tokens)
        early += sum(map(bool, parts[:-1]))
    assert early > 400 * 2


@pytest.mark.slow_but("bytes")
@pytest.mark.parametrize("kind", ["words", "bytes", "special tokens", "halves of characters"])
def test_a_token_is_decoded_a_few_times_however_long_the_text_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {
        "words": [word("▁and")] * 3000,
        "bytes": [byte(0xE4)] * 3000,
        "special tokens": [2] * 3000,
        "halves of characters": of_bytes()("日")["input_ids"][:1] * 3000,
    }[kind]
    real, counts = generated_text._text, list[int]()

    def counted(tokenizer: Any, tokens: list[int], **options: bool) -> str:
        counts.append(len(tokens))
        return real(tokenizer, tokens, **options)

    monkeypatch.setattr(generated_text, "_text", counted)
    decoder = TextDecoder(of_bytes() if kind.startswith("halves") else with_fallback(), [1])
    for token in tokens:
        decoder.add(token)
    decoder.end()
    assert sum(counts) < 12 * len(tokens)


def test_the_bytes_of_a_token_are_its_own() -> None:
    tokenizer = with_fallback()
    assert token_bytes(tokenizer, byte(0xE4)) == b"\xe4" and token_bytes(tokenizer, byte(0x41)) == b"A"
    assert token_bytes(tokenizer, word("é")) == "é".encode() and token_bytes(tokenizer, 2) == b"</s>"
    tokenizer = of_bytes()
    tokens = tokenizer("日 é\x00\ufffd")["input_ids"]
    assert b"".join(token_bytes(tokenizer, token) for token in tokens) == "日 é\x00\ufffd".encode()
