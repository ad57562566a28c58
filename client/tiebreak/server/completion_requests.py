"""Requests for texts, as OpenAI's interface has them: a stranger's JSON, checked field by field. What the server does
not do is refused: a field that is ignored would change an answer without a word."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Any, cast

from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.generation import prompt_tokens
from roundlog.generation.generation_receipt import MAX_LIKELIEST, MAX_STOP_TEXTS, is_stop_text
from roundlog.json_text import parse_json

MAX_REQUEST_BYTES = 1 << 20
MAX_TOKENS = 1 << 20
"""Most tokens in a prompt."""
MAX_TEXTS = 128
"""Most texts that a request asks for."""
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
        """Return the error object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request for texts: `count` behind each prompt, the likeliest of `tried`."""

    is_chat: bool
    prompts: list[str | list[int] | list[dict[str, str]]]
    """Texts, token numbers, or messages ({"role": ..., "content": ...})."""
    count: int
    tried: int
    echo: bool
    """Whether the prompt is to stand before its text."""
    sampling: Sampling
    stop_texts: tuple[str, ...]
    seed: int
    """Of the first text behind a prompt; `seed_of` has those of others."""
    drawn_seed: bool
    """Whether the request gives none."""
    max_tokens: int | None
    """Most new tokens; None: as many as there is room for."""
    logprobs: bool
    likeliest: int
    """Tokens to be told beside each."""
    stream: bool
    include_usage: bool

    def seed_of(self, number: int) -> int:
        """Return the seed of a text behind a prompt, by its number among those that are tried."""
        drawn = sha256(f"{self.seed} {number}".encode()).digest()[:8]
        return int.from_bytes(drawn) if number else self.seed


def parse_request(data: bytes, model: str, *, is_chat: bool) -> CompletionRequest:
    """Return the request in the body of `/v1/chat/completions`, or of `/v1/completions`, to the server of a model.

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
    stream, echo = _flag(fields, "stream"), _flag(fields, "echo")
    prompts = _prompts(fields.get("prompt")) if not is_chat else [_messages(fields.get("messages"))]
    count = _whole(fields, "n", 1, MAX_TEXTS, 1)
    tried = max(count, 1 if is_chat else _whole(fields, "best_of", count, MAX_TEXTS, count))
    if len(prompts) * tried > MAX_TEXTS:
        raise RequestError(
            f"The request asks for {len(prompts) * tried} texts: ask for at most {MAX_TEXTS}.", param="prompt"
        )
    if stream and (len(prompts) * tried > 1 or echo):
        raise _unfit("stream", True, "give one prompt, n and best_of 1 and echo false with it")
    logprobs, likeliest = _logprobs(fields, is_chat=is_chat)
    return CompletionRequest(
        is_chat=is_chat,
        prompts=prompts,
        count=count,
        tried=tried,
        echo=echo,
        sampling=_sampling(fields),
        stop_texts=_stop_texts(fields),
        seed=_whole(fields, "seed", 0, (1 << 64) - 1, secrets.randbits(_SEED_BITS)),
        drawn_seed="seed" not in fields,
        max_tokens=_max_tokens(fields, is_chat=is_chat),
        logprobs=logprobs,
        likeliest=likeliest,
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
    )


def tokens_of_prompt(tokenizer: Any, prompt: str | list[int] | list[dict[str, str]]) -> list[int]:
    """Return the tokens of a request's prompt. Raises FolderError."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return prompt
    return prompt_tokens(tokenizer, cast(str | list[dict[str, str]], prompt))


_COMMON = frozenset(
    [
        *("model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "logprobs"),
        *("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "n"),
    ]
)
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs"}
_TEXT = _COMMON | {"prompt", "best_of", "echo"}

_WITHOUT_EFFECT: dict[str, Sequence[Any] | type] = {
    # Sent by clients with every request, at the values that ask for nothing: any other is refused.
    **{"best_of": [1], "echo": [False], "suffix": [""], "store": [False], "verbosity": ["medium"]},
    **{"tools": [[]], "tool_choice": ["none"], "functions": [[]], "function_call": ["none"]},
    **{"response_format": [{"type": "text"}], "modalities": [["text"]], "service_tier": ["auto", "default"]},
    # No answer depends on these: a name for it, how a provider would store it, calls of tools that there are none of.
    **{"metadata": dict, "user": str, "safety_identifier": str, "parallel_tool_calls": bool},
    **{"prompt_cache_key": str, "prompt_cache_retention": str, "prompt_cache_options": dict},
    **dict.fromkeys(("audio", "moderation", "prediction", "reasoning_effort", "web_search_options"), ()),
}
_KINDS = {dict: "an object", str: "a text", bool: "true or false"}


def shown(value: object) -> str:
    """Return the beginning of a value's JSON, in characters that can be printed."""
    text = "".join(islice(json.JSONEncoder().iterencode(value), 61)).replace("\x7f", "\\u007f")
    return text if len(text) <= 60 else f"{text[:60]}..."


def _unfit(name: str, value: object, way_out: str) -> RequestError:
    return RequestError(f"The field {name} is {shown(value)}: {way_out}, or leave it out.", param=name)


def _check_names(fields: dict[str, Any], *, is_chat: bool) -> None:
    for name, value in fields.items():
        if name in (_CHAT if is_chat else _TEXT):
            continue
        taken = _WITHOUT_EFFECT.get(name, [])
        if isinstance(taken, type):
            if type(value) is not taken:
                raise _unfit(name, value, f"give {_KINDS[taken]}")
        elif not any(type(value) is type(one) and value == one for one in taken):
            known = "supported" if name in _WITHOUT_EFFECT or name in _CHAT | _TEXT else "known"
            word, more = shown(name).strip('"'), "".join(f", or give {json.dumps(one)}" for one in taken[:1])
            raise RequestError(
                f"The field {word} is {shown(value)}, which is not {known} here: leave it out{more}.", param=word
            )


def _check_model(given: object, served: str) -> None:
    if given != served:
        how: dict[str, Any] = {"code": "model_not_found", "status": 404} if isinstance(given, str) else {}
        raise RequestError(f"The model {shown(given)} is not served here: give {served!r}.", param="model", **how)


def _text(value: object, what: str, param: str, way_out: str = "give a text") -> str:
    if not isinstance(value, str):
        raise RequestError(f"The {what} is {shown(value)}: {way_out}.", param=param)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = shown(value[error.start])
            raise RequestError(f"The {what} has half a character ({half}): leave it out.", param=param) from None
    return value


def _prompts(value: object) -> list[str | list[int] | list[dict[str, str]]]:
    if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
        return [_prompt(one) for one in value]
    return [_prompt(value)]


def _prompt(value: object) -> str | list[int]:
    way_out = "give a text, or a list of token numbers"
    if isinstance(value, list):
        if not value or len(value) > MAX_TOKENS:
            raise RequestError(f"The prompt has {len(value)} tokens: give 1 to {MAX_TOKENS}.", param="prompt")
        if any(type(one) is not int or not 0 <= one < 1 << 31 for one in value):
            raise RequestError(f"The prompt is {shown(value)}: {way_out}.", param="prompt")
        return value
    return _text(value, "prompt", "prompt", way_out)


def _messages(value: object) -> str | list[int] | list[dict[str, str]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        found = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
        raise RequestError(f"The field messages is {found}: give a list of 1 to {MAX_MESSAGES}.", param="messages")
    return [_message(one, f"messages[{place}]") for place, one in enumerate(value)]


def _message(value: object, param: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise RequestError(f"A message is {shown(value)}: give an object with a role and content.", param=param)
    # An answer of this interface has fields that are empty, and goes back as it came.
    fields = {name: one for name, one in value.items() if one is not None and one != []}
    # `developer` is OpenAI's later name of the same thing, which templates do not know.
    role = {"developer": "system"}.get(str(fields.get("role")), fields.get("role"))
    if role not in ("system", "user", "assistant"):
        raise RequestError(
            f"The role of a message is {shown(role)}: give system, developer, user or assistant.", param=f"{param}.role"
        )
    if unknown := sorted(fields.keys() - {"role", "content", "name"}):
        field = f"{shown(unknown[0])} of a message is {shown(fields[unknown[0]])}"
        raise RequestError(f"The field {field}, which is not supported here: leave it out.", param=param)
    # Templates are not given the name, so that no prompt depends on it.
    _text(fields.get("name", ""), "name in a message", f"{param}.name")
    content, param = fields.get("content"), f"{param}.content"
    if isinstance(content, list):
        way_out = 'give a text, as {"type": "text", "text": "..."}'
        parts = [
            one.get("text", one) if isinstance(one, dict) and one.get("type") == "text" else one for one in content
        ]
        texts = [_text(one, "part of a message", param, way_out) for one in parts]
        content = "\n".join(text for text in texts if text)  # as vLLM and llama.cpp join them
    return {"role": role, "content": _text(content, "content of a message", param)}


def _sampling(fields: dict[str, Any]) -> Sampling:
    temperature = _number(fields, "temperature", 0, 2, 1.0)
    top_k = _whole(fields, "top_k", 0, 1 << 31, 0)
    top_p = _number(fields, "top_p", 0, 1, 1.0)
    try:
        how = Sampling(
            temperature=temperature or 1.0,
            top_k=top_k,
            top_p=top_p or 1.0,
            repetition_penalty=_number(fields, "repetition_penalty", 0, 1e6, 1.0),
            min_p=_number(fields, "min_p", 0, 1, 0.0),
            presence_penalty=_number(fields, "presence_penalty", -2, 2, 0.0),
            frequency_penalty=_number(fields, "frequency_penalty", -2, 2, 0.0),
            logit_bias=_logit_bias(fields),
        )
        # The likeliest token is among those of any top_k, top_p and min_p, and the only one of a top_p that nears 0.
        return how if temperature and top_p else replace(how, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    except CaptureError as error:
        raise RequestError(f"The {error}.") from None


def _logit_bias(fields: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    value, way_out = fields.get("logit_bias", {}), "give an object of token numbers and what is added to their logits"
    if not isinstance(value, dict) or not all(re.fullmatch("0|[1-9][0-9]{0,9}", token) for token in value):
        raise _unfit("logit_bias", value, way_out)
    if not all(type(bias) in (int, float) and -100 <= bias <= 100 for bias in value.values()):
        raise _unfit("logit_bias", value, "give numbers from -100 to 100")
    return tuple((token, bias) for token, bias in sorted((int(token), float(value[token])) for token in value) if bias)


def _stop_texts(fields: dict[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop", [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MAX_STOP_TEXTS or not all(map(is_stop_text, found)):
        raise _unfit("stop", value, f"give a text, or a list of at most {MAX_STOP_TEXTS}, of 1 to 1000 characters")
    return tuple(found)


def _max_tokens(fields: dict[str, Any], *, is_chat: bool) -> int | None:
    given = {name: fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    # How many there is room for, the service knows.
    found = {_whole(fields, name, 1, (1 << 63) - 1, 1) for name in given}
    if len(found) > 1:
        raise _unfit("max_tokens", given["max_tokens"], f"give {max(found)} in one of both")
    return found.pop() if found else None if is_chat else _DEFAULT_NEW_TOKENS


def _logprobs(fields: dict[str, Any], *, is_chat: bool) -> tuple[bool, int]:
    """Return whether log-probabilities are to be told, and those of how many likeliest tokens."""
    name = "top_logprobs" if is_chat else "logprobs"
    wanted = _flag(fields, "logprobs") if is_chat else name in fields
    likeliest = _whole(fields, name, 0, MAX_LIKELIEST, 0)
    if name in fields and not wanted:
        raise _unfit(name, likeliest, "give logprobs true, too")
    return wanted, likeliest


def _include_usage(fields: dict[str, Any], *, stream: bool) -> bool:
    options = fields.get("stream_options", {})
    if not stream and options:
        raise _unfit("stream_options", options, "give stream true, too")
    if not isinstance(options, dict) or options.keys() - {"include_usage", "include_obfuscation"}:
        raise _unfit("stream_options", options, "give include_usage alone")
    if _flag(options, "include_obfuscation"):
        raise _unfit("stream_options", options, "give include_obfuscation false")
    return _flag(options, "include_usage")


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if value is not None and type(value) is not bool:
        raise _unfit(name, value, "give true or false")
    return bool(value)


def _whole(fields: dict[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise _unfit(name, value, f"give a whole number from {least} to {most}")
    return value


def _number(fields: dict[str, Any], name: str, least: float, most: float, default: float) -> float:
    value = fields.get(name, default)
    if type(value) not in (int, float) or not least <= value <= most:
        raise _unfit(name, value, f"give a number from {least:g} to {most:g}")
    return float(value)
