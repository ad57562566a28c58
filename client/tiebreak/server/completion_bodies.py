"""Answers as OpenAI's interface writes them: bodies, and the events of streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from roundlog.generation import Choice, GenerationReceipt, token_text
from roundlog.json_text import canonical_json

from tiebreak.generated_text import token_bytes

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWriter:
    """The bodies of one answer."""

    name: str
    """`cmpl-` or `chatcmpl-` and 32 hex digits."""
    model: str
    created: int
    """Seconds since 1970."""
    fingerprint: str
    is_chat: bool
    logprobs: bool
    tokenizer: Any

    def body(self, text: str, choices: Sequence[Choice], reason: str, usage: dict[str, int]) -> bytes:
        """Return the whole answer."""
        choice: dict[str, object] = {"index": 0}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": self._logprobs(choices, 0), "finish_reason": reason}
        kind = "chat.completion" if self.is_chat else "text_completion"
        return _json(self._head(kind) | {"choices": [choice], "usage": usage})

    def first_event(self) -> bytes:
        """Return the event before all text; messages alone have one."""
        return self._event({"role": "assistant", "content": "", "refusal": None}, None, None) if self.is_chat else b""

    def event(self, text: str, choices: Sequence[Choice], offset: int) -> bytes:
        """Return the event of new text, of these tokens. offset: characters before it."""
        return self._event({"content": text}, text, self._logprobs(choices, offset))

    def last_events(self, reason: str, usage: dict[str, int] | None) -> bytes:
        """Return the events behind all text; the last is `DONE`. usage: to be told."""
        found = self._event({}, "", None, reason)
        if usage is not None:
            found += _event(self._head(self._chunk) | {"choices": [], "usage": usage})
        return found + DONE

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _event(self, delta: dict[str, object], text: str | None, logprobs: Any, reason: str | None = None) -> bytes:
        said: dict[str, object] = {"delta": delta} if self.is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": reason}
        return _event(self._head(self._chunk) | {"choices": [choice]})

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _logprobs(self, choices: Sequence[Choice], offset: int) -> dict[str, object] | None:
        """Return the logarithms of the tokens' probabilities: FP32 numbers, exactly."""
        if not self.logprobs:
            return None
        texts = [token_text(self.tokenizer, [choice.token]) for choice in choices]
        if self.is_chat:
            return {
                "content": [
                    {
                        "token": text,
                        "logprob": choice.logprob,
                        "bytes": list(token_bytes(self.tokenizer, choice.token)),
                        "top_logprobs": [],
                    }
                    for choice, text in zip(choices, texts, strict=True)
                ],
                "refusal": None,
            }
        offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [choice.logprob for choice in choices],
            "top_logprobs": None,
            "text_offset": offsets,
        }


def fingerprint_of(receipt: GenerationReceipt) -> str:
    """Return name of weights, arithmetic and versions, as a receipt has them: 16 hex digits behind `fp_`."""
    plain = receipt.plain()
    named = canonical_json({name: plain[name] for name in ("model", "arithmetic", "versions")})
    return "fp_" + sha256(named.encode()).hexdigest()[:16]


def error_event(error: dict[str, object]) -> bytes:
    """Return the event of an error in the middle of a stream, behind which nothing comes."""
    return _event(error)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + _json(content) + b"\n\n"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
