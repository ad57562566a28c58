"""Text of a language model's tokens: as it grows, and as a terminal may have it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HELD_BACK = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no whole character yet."""

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move or turn what a terminal shows, but for ends of lines and tabs."""


class TextDecoder:
    """The text of new tokens behind a prompt, as it grows: what was given stays as it is."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        """tokenizer: a `transformers.PreTrainedTokenizerBase`. prompt: token numbers."""
        self._tokenizer = tokenizer
        # A tokenizer may drop the space before its first token: the prompt's last one stands before the text's.
        self._before = list(prompt[-1:])
        self._start = self._decode(self._before)
        self._tokens: list[int] = []
        self.text = ""
        """All that was given."""

    @property
    def whole(self) -> str:
        """The text of all tokens. It begins with `text`, unless the tokenizer takes back what it has said."""
        behind = self._decode([*self._before, *self._tokens])
        return behind[len(self._start) :] if behind.startswith(self._start) else self._decode(self._tokens)

    def take(self, tokens: Sequence[int]) -> None:
        """Takes tokens whose text is not asked for yet."""
        self._tokens += tokens

    def add(self, token: int) -> str:
        """The text that a token adds, up to the last whole character."""
        self._tokens.append(token)
        return self._give(self.whole.rstrip(HELD_BACK))

    def end(self) -> str:
        """The rest, once all tokens are there."""
        return self._give(self.whole)

    def _give(self, text: str) -> str:
        if not text.startswith(self.text):
            return ""
        new = text[len(self.text) :]
        self.text = text
        return new

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def text_behind(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of all new tokens behind a prompt, without special ones."""
    decoder = TextDecoder(tokenizer, prompt)
    decoder.take(tokens)
    return decoder.whole


def without_controls(text: str) -> str:
    """A text of a model, which is not to control a terminal."""
    return _CONTROLS.sub(HELD_BACK, text)
