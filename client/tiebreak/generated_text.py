"""Text of a language model's tokens: as it grows, and as a terminal may have it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

HELD_BACK = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no whole character yet."""

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[{_CONTROL}]")
"""Characters that move or turn what a terminal shows, but for ends of lines and tabs."""

_UNSEEN = re.compile(
    f"[{_CONTROL}\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2064\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""These, and what a terminal shows as nothing (Unicode's Default_Ignorable_Code_Point)."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token of one byte, in vocabularies that have bytes beside words (byte fallback)."""

_LONG = 32
"""Tokens whose text is not settled from which on it is looked at less often."""


class TextDecoder:
    """The text of new tokens behind a prompt, as it grows: what was given stays as it is. Each token is decoded a few
    times, however long the text is."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        """tokenizer: a `transformers.PreTrainedTokenizerBase`. prompt: token numbers."""
        self._tokenizer = tokenizer
        self._skipped = {number for number, one in tokenizer.added_tokens_decoder.items() if one.special}
        # A tokenizer may drop the space before its first token: the prompt's last one stands before the text's.
        self._before = list(prompt[-1:])
        self._start = self._decode(self._before)
        self._tokens: list[int] = []
        self._context, self._known = self._before, self._start
        """Tokens whose text is settled, the newest of them, and their text."""
        self._open: list[int] = []
        """Tokens behind these, whose text later ones may still change."""
        self._given = ""
        """Beginning of their text that was given."""
        self._wait = 0
        """So many of them have to be there before they are looked at again."""
        self.text = ""
        """All that was given."""

    @property
    def whole(self) -> str:
        """The text of all tokens. It begins with `text`, unless the tokenizer takes back what it has said."""
        behind = self._decode([*self._before, *self._tokens])
        return behind[len(self._start) :] if behind.startswith(self._start) else self._decode(self._tokens)

    def take(self, tokens: Sequence[int]) -> None:
        """Take tokens whose text is not asked for yet."""
        self._tokens += tokens
        self._open += [token for token in tokens if token not in self._skipped]

    def add(self, token: int) -> str:
        """Return the text that a token adds, up to the last character that no later token changes."""
        self.take([token])
        # A byte behind others decides what all of them are, until a token of another kind ends them.
        if token in self._skipped or len(self._open) < self._wait or _byte_of(self._tokenizer, token) is not None:
            return ""
        text = self._open_text()
        ready = text.rstrip(HELD_BACK)
        if not ready.startswith(self._given):
            return ""
        new, self._given = ready[len(self._given) :], ready
        self.text += new
        if text and ready == text:
            self._context, self._known = self._open, self._decode(self._open)
            self._open, self._given, self._wait = [], "", 0
        elif len(self._open) >= _LONG:
            self._wait = len(self._open) * 5 // 4
        return new

    def end(self) -> str:
        """Return the rest, once all tokens are there; nothing if `whole` does not begin with `text`."""
        whole = self.whole
        if not whole.startswith(self.text):
            return ""
        new = whole[len(self.text) :]
        self.text = whole
        return new

    def _open_text(self) -> str:
        behind = self._decode([*self._context, *self._open])
        if behind.startswith(self._known):
            return behind[len(self._known) :]
        # The prompt ends within a character.
        return self._given if self.text else self._decode(self._open)

    def _decode(self, tokens: list[int]) -> str:
        return _text(self._tokenizer, tokens, skip_special=True)


def _text(tokenizer: Any, tokens: list[int], *, skip_special: bool = False) -> str:
    from roundlog.generation import token_text

    return token_text(tokenizer, tokens, skip_special=skip_special)


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """Return the bytes that a token stands for, which need not be whole characters."""
    if (byte := _byte_of(tokenizer, token)) is not None:
        return byte
    text = _text(tokenizer, [token])
    name = str(tokenizer.convert_ids_to_tokens(token))
    if HELD_BACK in text and all(letter in _BYTE_LETTERS for letter in name):
        return bytes(_BYTE_LETTERS[letter] for letter in name)
    return text.encode()


def _byte_of(tokenizer: Any, token: int) -> bytes | None:
    found = _BYTE.fullmatch(str(tokenizer.convert_ids_to_tokens(token)))
    return bytes.fromhex(found[1]) if found else None


def _byte_letters() -> dict[str, int]:
    """Return letters of vocabularies of bytes, as GPT-2 has them: those that can be printed are themselves, and others
    stand behind U+0100."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()


def text_behind(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of all new tokens behind a prompt, without special ones."""
    decoder = TextDecoder(tokenizer, prompt)
    decoder.take(tokens)
    return decoder.whole


class StopTexts:
    """Where texts that end a generated one appear in it. Called with each new token; whether the text up to it has one
    of them."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], texts: Sequence[str]) -> None:
        """tokenizer, prompt: as TextDecoder takes them."""
        self._decoder, self._texts = TextDecoder(tokenizer, prompt) if texts else None, texts

    def __call__(self, token: int) -> bool:
        if self._decoder is None:
            return False
        new = len(self._decoder.add(token)) + max(map(len, self._texts))
        return any(one in self._decoder.text[-new:] for one in self._texts)


def before_stop(text: str, stop_texts: Sequence[str]) -> str:
    """Return the part of a text before the first of these in it."""
    return text[: min((at for one in stop_texts if (at := text.find(one)) >= 0), default=len(text))]


def sure_part(text: str, stop_texts: Sequence[str]) -> str:
    """Return the part of a text that does not end with the beginning of one of these, which may still become one."""
    waits = [n for one in stop_texts for n in range(1, len(one)) if text.endswith(one[:n])]
    return text[: len(text) - max(waits, default=0)]


def prompt_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Return the text of a prompt, special tokens too; `<49160>` stands for a token that has none."""

    # Tokenizers drop a space that begins a text: such a token is seen behind another one.
    silent = {token for token in set(tokens) if not _text(tokenizer, [token, token])}
    runs = [(is_silent, list(some)) for is_silent, some in groupby(tokens, key=silent.__contains__)]
    return "".join(
        "".join(f"<{token}>" for token in some) if is_silent else _text(tokenizer, some) for is_silent, some in runs
    )


def without_controls(text: str) -> str:
    """Return a model's text without characters that control a terminal."""
    return _CONTROLS.sub(HELD_BACK, text)


def with_unseen(text: str) -> str:
    """Return a text in which characters that are not seen, or control a terminal, stand by their numbers,
    `<U+200B>`."""
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
