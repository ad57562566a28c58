"""Requests for texts, as OpenAI's interface has them: a stranger's JSON, checked field by field. What the server does
not do is refused: a field that is ignored would change an answer without a word."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.json_text import parse_json

MAX_REQUEST_BYTES = 1 << 20
MAX_TOKENS = 1 << 20
"""Most tokens in a prompt, and behind it."""
MAX_MESSAGES = 1000

_DEFAULT_NEW_TOKENS = 16
"""Tokens behind a text for which no number is given, as OpenAI has it; behind messages: to the last position."""

_SEED_BITS = 53
"""Bits of a seed that is drawn here: every reader of JSON keeps such a number exactly."""


class RequestError(Exception):
    """A request that is refused. The message is one sentence; the rest is as OpenAI's error objects have it."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status, self.headers = param, code, status, dict(headers or {})

    def body(self) -> dict[str, object]:
        """The error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request for one text."""

    is_chat: bool
    prompt: str | list[int] | list[dict[str, str]]
    """A text, token numbers, or messages ({"role": ..., "content": ...})."""
    sampling: Sampling
    seed: int
    drawn_seed: bool
    """Whether the request gives none."""
    max_tokens: int | None
    """Most new tokens; None: as many as there is room for."""
    logprobs: bool
    stream: bool
    include_usage: bool


def parse_request(data: bytes, model: str, *, is_chat: bool) -> CompletionRequest:
    """The request in the body of `/v1/chat/completions`, or of `/v1/completions`, to the server of a model.

    Raises RequestError."""
    try:
        plain = parse_json(data)
    except ValueError as error:
        raise RequestError(f"The request {error}.") from None
    if not isinstance(plain, dict):
        raise RequestError("The request is no JSON object.")
    fields = {name: value for name, value in cast(dict[str, Any], plain).items() if value is not None}
    _check_names(fields, is_chat=is_chat)
    _check_model(fields.get("model"), model)
    stream = _flag(fields, "stream")
    return CompletionRequest(
        is_chat=is_chat,
        prompt=_messages(fields.get("messages")) if is_chat else _prompt(fields.get("prompt")),
        sampling=_sampling(fields),
        seed=_whole(fields, "seed", 0, (1 << 64) - 1, secrets.randbits(_SEED_BITS)),
        drawn_seed="seed" not in fields,
        max_tokens=_max_tokens(fields, is_chat=is_chat),
        logprobs=_logprobs(fields, is_chat=is_chat),
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
    )


def _is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_COMMON = frozenset(
    [
        *("model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "logprobs"),
        *("top_k", "repetition_penalty"),
    ]
)
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs"}
_TEXT = _COMMON | {"prompt"}

_WITHOUT_EFFECT: dict[str, Callable[[object], bool]] = {
    # Sent by clients with every request, at the value that asks for nothing.
    "n": _is_one_of(1),
    "best_of": _is_one_of(1),
    "echo": _is_one_of(False),
    "suffix": _is_one_of(""),
    "stop": _is_one_of([]),
    "presence_penalty": _is_one_of(0, 0.0),
    "frequency_penalty": _is_one_of(0, 0.0),
    "logit_bias": _is_one_of({}),
    "tools": _is_one_of([]),
    "tool_choice": _is_one_of("none"),
    "functions": _is_one_of([]),
    "function_call": _is_one_of("none"),
    "response_format": _is_one_of({"type": "text"}),
    "modalities": _is_one_of(["text"]),
    "store": _is_one_of(False),
    "metadata": _is_one_of({}),
    "service_tier": _is_one_of("auto", "default"),
    # Names that a provider may use to tell its customers apart: no answer depends on them.
    "user": _is_text,
    "safety_identifier": _is_text,
    "prompt_cache_key": _is_text,
}
_REFUSED = frozenset(
    [
        *("audio", "parallel_tool_calls", "prediction", "reasoning_effort", "verbosity", "web_search_options"),
        *("prompt_cache_retention", "moderation"),
    ]
)


def _check_names(fields: dict[str, Any], *, is_chat: bool) -> None:
    for name, value in fields.items():
        if name in (_CHAT if is_chat else _TEXT):
            continue
        shown = name[:60].encode("ascii", "replace").decode()
        is_harmless = _WITHOUT_EFFECT.get(name)
        if is_harmless is not None and not is_harmless(value):
            raise RequestError(f"This value of {shown} is not supported here: leave the field away.", param=name)
        if is_harmless is None and name in (_REFUSED | _CHAT | _TEXT):
            raise RequestError(f"The field {shown} is not supported here: leave it away.", param=shown)
        if is_harmless is None:
            raise RequestError(f"The field {shown!r} is not known: leave it away.", param=shown)


def _check_model(given: object, served: str) -> None:
    if not isinstance(given, str):
        raise RequestError(f"The request names no model: give {served!r}.", param="model")
    if given != served:
        raise RequestError(
            f"This model is not served here: give {served!r}.", param="model", code="model_not_found", status=404
        )


def _text(value: object, what: str, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"The {what} is no text.", param=param)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"The {what} has half a character (a lone surrogate).", param=param) from None
    return value


def _prompt(value: object) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, list):
        if not value or len(value) > MAX_TOKENS:
            raise RequestError(f"A prompt has 1 to {MAX_TOKENS} tokens, or is a text.", param="prompt")
        if any(isinstance(one, str | list) for one in value):
            raise RequestError(
                "Several prompts at once are not supported here: send a request for each.", param="prompt"
            )
        if any(type(one) is not int or not 0 <= one < 1 << 31 for one in value):
            raise RequestError("The prompt is neither a text nor a list of token numbers.", param="prompt")
        return value
    return _text(value, "prompt", "prompt")


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise RequestError(f"The request has no messages: give a list of 1 to {MAX_MESSAGES}.", param="messages")
    return [_message(one, f"messages[{place}]") for place, one in enumerate(value)]


def _message(value: object, param: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise RequestError("A message is no object with a role and content.", param=param)
    # An answer of this interface has fields that are empty, and goes back as it came.
    fields = {name: one for name, one in value.items() if one is not None and one != []}
    # `developer` is OpenAI's later name of the same thing, which templates do not know.
    role = {"developer": "system"}.get(str(fields.get("role")), fields.get("role"))
    if role not in ("system", "user", "assistant"):
        raise RequestError("The role of a message is system, developer, user or assistant.", param=f"{param}.role")
    if unknown := sorted(fields.keys() - {"role", "content"}):
        shown = unknown[0][:60].encode("ascii", "replace").decode()
        raise RequestError(f"The field {shown!r} of a message is not supported here: leave it away.", param=param)
    content = fields.get("content")
    if isinstance(content, list):
        parts = [one.get("text") if isinstance(one, dict) and one.get("type") == "text" else None for one in content]
        content = "".join(_text(one, "part of a message", f"{param}.content") for one in parts)
    return {"role": role, "content": _text(content, "content of a message", f"{param}.content")}


def _sampling(fields: dict[str, Any]) -> Sampling:
    temperature = _number(fields, "temperature", 0, 2, 1.0)
    top_k = _whole(fields, "top_k", 0, 1 << 31, 0)
    top_p = _number(fields, "top_p", 0, 1, 1.0)
    try:
        how = Sampling(
            temperature=temperature or 1.0,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=_number(fields, "repetition_penalty", 0, 1e6, 1.0),
        )
        # The likeliest token is among those of any top_k and top_p.
        return how if temperature else Sampling(repetition_penalty=how.repetition_penalty)
    except CaptureError as error:
        raise RequestError(f"The {error}.") from None


def _max_tokens(fields: dict[str, Any], *, is_chat: bool) -> int | None:
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in fields]
    found = {_whole(fields, name, 1, MAX_TOKENS, 1) for name in names}
    if len(found) > 1:
        raise RequestError("max_tokens and max_completion_tokens are one thing: give one.", param="max_tokens")
    return found.pop() if found else None if is_chat else _DEFAULT_NEW_TOKENS


def _logprobs(fields: dict[str, Any], *, is_chat: bool) -> bool:
    others = "Log-probabilities of other tokens than the chosen one are not supported here: give 0."
    if not is_chat:
        if _whole(fields, "logprobs", 0, MAX_TOKENS, 0):
            raise RequestError(others, param="logprobs")
        return "logprobs" in fields
    wanted = _flag(fields, "logprobs")
    if _whole(fields, "top_logprobs", 0, MAX_TOKENS, 0):
        raise RequestError(others, param="top_logprobs")
    if "top_logprobs" in fields and not wanted:
        raise RequestError("top_logprobs is for requests with logprobs: give it, too.", param="top_logprobs")
    return wanted


def _include_usage(fields: dict[str, Any], *, stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise RequestError("stream_options are for streams: leave them away.", param="stream_options")
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise RequestError("stream_options have include_usage alone.", param="stream_options")
    if _flag(options, "include_obfuscation"):
        raise RequestError("include_obfuscation is not supported here: leave it away.", param="stream_options")
    return _flag(options, "include_usage")


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if value is not None and type(value) is not bool:
        raise RequestError(f"The field {name} is neither true nor false.", param=name)
    return bool(value)


def _whole(fields: dict[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"The field {name} is no whole number from {least} to {most}.", param=name)
    return value


def _number(fields: dict[str, Any], name: str, least: float, most: float, default: float) -> float:
    value = fields.get(name, default)
    if type(value) not in (int, float) or not least <= value <= most:
        raise RequestError(f"The field {name} is no number from {least:g} to {most:g}.", param=name)
    return float(value)
