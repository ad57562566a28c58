"""Answers as OpenAI's interface writes them: bodies, and the events of streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from roundlog.generation import Choice, FinishReason, Generation, GenerationReceipt, token_text
from roundlog.json_text import canonical_json

from tiebreak.generated_text import TextDecoder, before_stop, sure_part, text_behind, token_bytes
from tiebreak.server.completion_requests import CompletionRequest

DONE = b"data: [DONE]\n\n"
"""The last event of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerText:
    """One text of an answer."""

    text: str
    choices: Sequence[Choice]
    """Its tokens; those of an echoed prompt behind its first before them."""
    reason: str
    index: int = 0
    first: int | None = None
    """The first token of an echoed prompt, which has no probability."""


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

    def body(self, texts: Sequence[AnswerText], usage: dict[str, int]) -> bytes:
        """Return the whole answer."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        return _json(self._head(kind) | {"choices": [self._choice(one) for one in texts], "usage": usage})

    def _choice(self, one: AnswerText) -> dict[str, object]:
        choice: dict[str, object] = {"index": one.index}
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": one.text, "refusal": None}
        else:
            choice["text"] = one.text
        return choice | {"logprobs": self._logprobs(one.choices, 0, one.first), "finish_reason": one.reason}

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
            found += event_of(self._head(self._chunk) | {"choices": [], "usage": usage})
        return found + DONE

    @property
    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _event(self, delta: dict[str, object], text: str | None, logprobs: Any, reason: str | None = None) -> bytes:
        said: dict[str, object] = {"delta": delta} if self.is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": reason}
        return event_of(self._head(self._chunk) | {"choices": [choice]})

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _logprobs(self, choices: Sequence[Choice], offset: int, first: int | None = None) -> dict[str, object] | None:
        """Return the logarithms of the tokens' probabilities: FP32 numbers, exactly."""
        if not self.logprobs:
            return None
        if self.is_chat:
            told = [
                self._named(one.token, one.logprob) | {"top_logprobs": [self._named(*pair) for pair in one.likeliest]}
                for one in choices
            ]
            return {"content": told, "refusal": None}
        before: list[Any] = [] if first is None else [None]
        texts = [self._text(token) for token in [*([] if first is None else [first]), *(one.token for one in choices)]]
        likeliest = [self._likeliest(one) for one in choices] if any(one.likeliest for one in choices) else None
        return {
            "tokens": texts,
            "token_logprobs": [*before, *(choice.logprob for choice in choices)],
            "top_logprobs": None if likeliest is None else [*before, *likeliest],
            "text_offset": [offset + sum(map(len, texts[:place])) for place in range(len(texts))],
        }

    def _likeliest(self, choice: Choice) -> dict[str, float]:
        """Return the likeliest tokens' by their texts, the chosen one's too; of tokens with one text the likelier's."""
        pairs = [(self._text(token), value) for token, value in (*choice.likeliest, (choice.token, choice.logprob))]
        return dict(reversed(dict(reversed(pairs)).items()))

    def _named(self, token: int, logprob: float) -> dict[str, object]:
        return {"token": self._text(token), "logprob": logprob, "bytes": list(token_bytes(self.tokenizer, token))}

    def _text(self, token: int) -> str:
        return token_text(self.tokenizer, [token])


class StreamWriter:
    """The events of the stream of one text, from its tokens as they come."""

    def __init__(self, writer: AnswerWriter, prompt: Sequence[int], stop_texts: Sequence[str]) -> None:
        """prompt: its tokens."""
        self._writer, self._stops, self._given = writer, stop_texts, ""
        self._decoder = TextDecoder(writer.tokenizer, prompt)

    def add(self, choice: Choice) -> bytes:
        """Return the event of a token; nothing where none of its text is sure and no log-probabilities are told."""
        self._decoder.add(choice.token)
        text = sure_part(before_stop(self._decoder.text, self._stops), self._stops)[len(self._given) :]
        return self._event(text, [choice]) if text or self._writer.logprobs else b""

    def rest(self, reason: str) -> bytes:
        """Return the event of the text that was held back, once all tokens are there."""
        self._decoder.end()
        text = ended_text(self._decoder.text, reason, self._stops)[len(self._given) :]
        return self._event(text, []) if text else b""

    @property
    def is_changed(self) -> bool:
        """Whether the end of the text changes what was sent of it."""
        return self._decoder.text != self._decoder.whole

    def _event(self, text: str, choices: Sequence[Choice]) -> bytes:
        event = self._writer.event(text, choices, len(self._given))
        self._given += text
        return event


def ended_text(text: str, reason: str, stop_texts: Sequence[str]) -> str:
    """Return the part of a text that is given: before the first text that ends it, unless its length did."""
    return before_stop(text, stop_texts) if reason == FinishReason.STOP else text


def answer_text(
    tokenizer: Any, request: CompletionRequest, prompt: int, tokens: Sequence[int], made: Generation, index: int
) -> AnswerText:
    """Return a generated text as an answer to a request has it. prompt: its number there. tokens: the prompt's. index:
    place of the text in the answer."""
    given = request.prompts[prompt]
    text = ended_text(text_behind(tokenizer, tokens, made.tokens), made.finish_reason, request.stop_texts)
    if request.echo:
        text = (given if isinstance(given, str) else token_text(tokenizer, list(tokens))) + text
    return AnswerText(
        text=text,
        choices=(*made.prompt_choices, *made.choices),
        reason=made.finish_reason,
        index=index,
        first=tokens[0] if request.echo else None,
    )


def fingerprint_of(receipt: GenerationReceipt) -> str:
    """Return name of weights, arithmetic and versions, as a receipt has them: 16 hex digits behind `fp_`."""
    plain = receipt.plain()
    named = canonical_json({name: plain[name] for name in ("model", "arithmetic", "versions")})
    return "fp_" + sha256(named.encode()).hexdigest()[:16]


def event_of(content: dict[str, Any]) -> bytes:
    """Return an event of a stream; nothing comes behind that of an error."""
    return b"data: " + _json(content) + b"\n\n"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
