"""Requests for texts, as OpenAI's interface has them: a stranger's JSON, checked by pydantic. What the server does not
do is refused: a field that is ignored would change an answer without a word."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.generation import prompt_tokens
from roundlog.generation.generation_receipt import MAX_LIKELIEST, MAX_STOP_TEXTS
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


_Text = Annotated[str, Field(max_length=MAX_REQUEST_BYTES)]  # a bound has pydantic refuse half a character, too
_Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, max_length=MAX_TOKENS)]


def _listed(prompt: object) -> object:
    """Return a list of prompts, also of one that stands alone."""
    is_list = isinstance(prompt, list) and all(isinstance(one, str | list) for one in prompt)
    return prompt if is_list else [prompt]


class _Fields(BaseModel):
    """An object in a request. A field that is null is left out."""

    model_config = ConfigDict(strict=True, extra="forbid")
    empty: ClassVar[list[Any]] = [None]

    @model_validator(mode="before")
    @classmethod
    def _given(cls, plain: Any) -> Any:
        is_object = isinstance(plain, dict)
        return {name: one for name, one in plain.items() if one not in cls.empty} if is_object else plain


class _StreamOptions(_Fields):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _TextFormat(_Fields):
    type: Literal["text"]


class _Part(_TextFormat):
    text: _Text


class _Message(_Fields):
    empty = [None, []]  # as in an answer of this interface that goes back
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[_Part], BeforeValidator(lambda one: [{"type": "text", "text": one}] if isinstance(one, str) else one)
    ]
    name: _Text = ""  # templates are not given it, so that no prompt depends on it

    def plain(self) -> dict[str, str]:
        # `developer` is OpenAI's later name of the same thing, which templates do not know.
        role = "system" if self.role == "developer" else self.role
        # As vLLM and llama.cpp join them.
        return {"role": role, "content": "\n".join(part.text for part in self.content if part.text)}


class _Request(_Fields):
    model: Any
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    n: int = Field(1, ge=1, le=MAX_TEXTS)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_k: int = Field(0, ge=0, le=1 << 31)
    top_p: float = Field(1.0, ge=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0, le=1e6)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[
        Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")], Annotated[float, Field(ge=-100, le=100)]
    ] = {}
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1000)]],
        Field(max_length=MAX_STOP_TEXTS),
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = []
    seed: int | None = Field(None, ge=0, lt=1 << 64)
    # Sent by clients with every request, at the values that ask for nothing: any other is refused.
    tools: list[Any] = Field([], max_length=0)
    functions: list[Any] = Field([], max_length=0)
    suffix: Literal[""] = ""
    store: Literal[False] = False
    verbosity: Literal["medium"] = "medium"
    tool_choice: Literal["none"] = "none"
    function_call: Literal["none"] = "none"
    response_format: _TextFormat = _TextFormat(type="text")
    modalities: list[Literal["text"]] = []
    service_tier: Literal["auto", "default"] = "auto"
    # No answer depends on these: a name for it, how a provider would store it, calls of tools that there are none of.
    metadata: dict[str, Any] = {}
    user: str = ""
    safety_identifier: str = ""
    parallel_tool_calls: bool = False
    prompt_cache_key: str = ""
    prompt_cache_retention: str = ""
    prompt_cache_options: dict[str, Any] = {}


class _ChatRequest(_Request):
    messages: list[_Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)
    best_of: Literal[1] = 1
    echo: Literal[False] = False


class _TextRequest(_Request):
    prompt: Annotated[list[_Text | _Tokens], Field(min_length=1), BeforeValidator(_listed)]
    logprobs: int | None = Field(None, ge=0, le=MAX_LIKELIEST)
    best_of: int | None = Field(None, ge=1, le=MAX_TEXTS)
    echo: bool = False


def shown(value: object) -> str:
    """Return the beginning of a value's JSON, in characters that can be printed."""
    text = "".join(islice(json.JSONEncoder().iterencode(value), 61)).replace("\x7f", "\\u007f")
    return text if len(text) <= 60 else f"{text[:60]}..."


def _unfit(name: str, value: object, way_out: str) -> RequestError:
    return RequestError(f"The field {name} is {shown(value)}: {way_out}, or leave it out.", param=name)


def parse_request(data: bytes, model: str, *, is_chat: bool) -> CompletionRequest:
    """Return the request in the body of `/v1/chat/completions`, or of `/v1/completions`, to the server of a model.

    Raises RequestError."""
    try:
        plain = parse_json(data)
    except ValueError as error:
        raise RequestError(f"The request {error}.") from None
    if not isinstance(plain, dict):
        raise RequestError("The request is no JSON object.")
    kind = _ChatRequest if is_chat else _TextRequest
    for name, value in plain.items():
        if value is not None and name not in kind.model_fields:
            word = shown(name).strip('"')
            raise RequestError(
                f"The field {word} is {shown(value)}, which is not supported here: leave it out.", param=word
            )
    if (given := plain.get("model")) != model:
        how: dict[str, Any] = {"code": "model_not_found", "status": 404} if isinstance(given, str) else {}
        raise RequestError(f"The model {shown(given)} is not served here: give {model!r}.", param="model", **how)
    try:
        return _checked(kind.model_validate(plain))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        name, *inner = map(str, wrong["loc"])
        if wrong["type"] == "missing":
            raise RequestError(f"There is no {'.'.join([name, *inner])}: give one.", param=name) from None
        where = f" (in {shown('.'.join(inner))})" if inner else ""
        raise _unfit(name, plain.get(name), f"{wrong['msg'][0].lower()}{wrong['msg'][1:]}{where}") from None
    except CaptureError as error:
        raise RequestError(f"The {error}.") from None


def _checked(asked: _ChatRequest | _TextRequest) -> CompletionRequest:
    """Return a request whose fields go together. Raises RequestError, CaptureError."""
    most = asked.max_tokens
    if isinstance(asked, _ChatRequest):
        prompts: list[Any] = [[one.plain() for one in asked.messages]]
        if asked.top_logprobs is not None and not asked.logprobs:
            raise _unfit("top_logprobs", asked.top_logprobs, "give logprobs true, too")
        if None not in (most, asked.max_completion_tokens) and most != asked.max_completion_tokens:
            raise _unfit("max_tokens", most, f"give max_completion_tokens {asked.max_completion_tokens} alone")
        tried, logprobs, likeliest = asked.n, asked.logprobs, asked.top_logprobs or 0
        most = most or asked.max_completion_tokens
    else:
        prompts, tried = asked.prompt, asked.n if asked.best_of is None else asked.best_of
        logprobs, likeliest = asked.logprobs is not None, asked.logprobs or 0
        most = most or _DEFAULT_NEW_TOKENS
    if tried < asked.n:
        raise _unfit("best_of", tried, f"give at least {asked.n}, as n is")
    if (texts := len(prompts) * tried) > MAX_TEXTS:
        raise RequestError(f"The request asks for {texts} texts: ask for at most {MAX_TEXTS}.", param="prompt")
    if asked.stream and (texts > 1 or asked.echo):
        raise _unfit("stream", True, "give one prompt, n and best_of 1 and echo false with it")
    if asked.stream_options != _StreamOptions() and not asked.stream:
        raise _unfit("stream_options", asked.stream_options.model_dump(), "give stream true, too")
    how = {one.name: getattr(asked, one.name) for one in fields(Sampling)}
    how["logit_bias"] = tuple(sorted((int(token), bias) for token, bias in asked.logit_bias.items() if bias))
    if not (asked.temperature and asked.top_p):
        # The likeliest token is among those of any top_k, top_p and min_p, and the only one of a top_p that nears 0.
        how |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return CompletionRequest(
        is_chat=isinstance(asked, _ChatRequest),
        prompts=prompts,
        count=asked.n,
        tried=tried,
        echo=asked.echo,
        sampling=Sampling(**how),
        stop_texts=tuple(asked.stop),
        seed=secrets.randbits(_SEED_BITS) if asked.seed is None else asked.seed,
        drawn_seed=asked.seed is None,
        max_tokens=most,
        logprobs=logprobs,
        likeliest=likeliest,
        stream=asked.stream,
        include_usage=asked.stream_options.include_usage,
    )


def tokens_of_prompt(tokenizer: Any, prompt: str | list[int] | list[dict[str, str]]) -> list[int]:
    """Return the tokens of a request's prompt. Raises FolderError."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return prompt
    return prompt_tokens(tokenizer, cast(str | list[dict[str, str]], prompt))
