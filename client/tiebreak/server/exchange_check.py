"""The check of a request and of its response, as their bytes were sent, against the receipt that names them: a receipt
alone says which text is a model's, and not that it is the one that was asked for, or the one that was sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, cast

from roundlog.capture.huggingface import Sampling
from roundlog.generation import Choice, FinishReason, FolderError, Generation, GenerationReceipt, LoadedModel
from roundlog.json_text import canonical_json, parse_json

from tiebreak.generated_text import text_behind
from tiebreak.server.completion_bodies import DONE, AnswerWriter, answer_text, ended_text, fingerprint_of
from tiebreak.server.completion_requests import (
    MAX_TEXTS,
    CompletionRequest,
    RequestError,
    parse_request,
    tokens_of_prompt,
)

MAX_RESPONSE_BYTES = 1 << 28

_EVENT, _END = b"data: ", b"\n\n"
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
_NAME = re.compile("(?:chat)?cmpl-[0-9a-f]{32}")


class _Damaged(Exception):
    """A body that is none of the server's; the message is a clause."""


def wrong_request(receipt: GenerationReceipt, loaded: LoadedModel, data: bytes) -> list[str]:
    """Return differences between the bytes of a request and a receipt, a clause for each; none if the request asks for
    the receipt's text. loaded: the receipt's model."""
    found = list[str]()
    if receipt.request_sha256 != sha256(data).digest():
        found.append("the request's bytes have another SHA-256 than request_sha256")
    try:
        request = _request(receipt, data)
    except RequestError as error:
        return [*found, f"the server takes no such request ({str(error).rstrip('.')})"]
    several, index = len(request.prompts) * request.count, receipt.choice_index
    if (index is not None) is not (several > 1) or (index or 0) >= several:
        which = "a text alone" if index is None else f"text {index + 1}"
        return [*found, f"the request asks for {several} texts, and the receipt is of {which}"]
    prompt, number = divmod(index or 0, request.count)
    try:
        tokens = tokens_of_prompt(loaded.tokenizer, request.prompts[prompt])
    except FolderError as error:
        return [*found, f"the request has no prompt of this model ({error})"]
    if tokens != list(receipt.prompt):
        place = next(
            (at for at, pair in enumerate(zip(tokens, receipt.prompt, strict=False)) if pair[0] != pair[1]), None
        )
        where = f"from token {place + 1} on" if place is not None else "the beginning of it, or more"
        found.append(
            f"the request's prompt has {len(tokens)} tokens and the receipt's {len(receipt.prompt)}, others {where}"
        )
    asked = {one.name: getattr(request.sampling, one.name) for one in fields(Sampling)}
    asked |= {"stop_texts": request.stop_texts, "top_logprobs": request.likeliest}
    if not request.drawn_seed and (request.tried == request.count or receipt.seed not in _seeds(request)):
        asked["seed"] = request.seed_of(number)
    asked |= {} if request.max_tokens is None else {"max_new_tokens": request.max_tokens}
    for name, value in asked.items():
        said = getattr(receipt.sampling, name) if hasattr(receipt.sampling, name) else getattr(receipt, name)
        if value != said:
            found.append(f"the request asks for {name} {value}, and the receipt has {said}")
    tells_prompt = request.echo and request.logprobs and len(receipt.prompt) > 1
    if tells_prompt is not (receipt.prompt_logprobs_root is not None):
        asks, has = ("asks", "has none") if tells_prompt else ("does not ask", "has them")
        found.append(f"the request {asks} for log-probabilities of its prompt, and the receipt {has}")
    return found


def _seeds(request: CompletionRequest) -> set[int]:
    return {request.seed_of(number) for number in range(request.tried)}


def wrong_response(
    receipt: GenerationReceipt,
    loaded: LoadedModel,
    data: bytes,
    *,
    request: bytes | None = None,
    told: tuple[Sequence[Choice], Sequence[Choice]] | None = None,
) -> list[str]:
    """Return differences between the bytes of a response, whole or a stream of events, and the answer of a receipt, a
    clause for each; other texts of the answer have receipts of their own. request: the bytes that asked for it, if they
    are there. told: the prompt's tokens behind its first and all new ones, with their probabilities, by a repetition;
    without them those of the response are not looked at."""
    found = list[str]()
    if receipt.response_sha256 != sha256(data).digest():
        found.append("the response's bytes have another SHA-256 than response_sha256")
    asked = None
    if request is not None:
        try:
            asked = _request(receipt, request)
        except RequestError:
            return found  # told by `wrong_request`
    is_stream = data.startswith(_EVENT) if asked is None else asked.stream
    try:
        answer = _joined(data) if is_stream else _whole(data)
    except _Damaged as error:
        return [*found, f"the response {error}"]
    is_chat = str(answer["object"]).startswith("chat") if asked is None else asked.is_chat
    index, several = receipt.choice_index or 0, len(answer["choices"])
    if several <= index or (several > 1) is (receipt.choice_index is None):
        return [*found, f"the response has {several} texts, and the receipt is of text {index + 1}"]
    if asked is not None and several != len(asked.prompts) * asked.count:
        return [*found, f"the response has {several} texts, and the request asks for others"]
    answer["choices"] = [answer["choices"][index]]
    if asked is None:
        asked, fault = _assumed(receipt, loaded, answer, is_chat=is_chat)
        if fault:
            return [*found, fault]
    wanted = _wanted(receipt, loaded, answer, asked, told or ((), ()))
    if is_stream:
        wanted["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    if several > 1 or (is_stream and "usage" not in answer and (request is None or not asked.include_usage)):
        # The tokens of other texts are counted, too.
        wanted.pop("usage")
        answer.pop("usage", None)
    for one in (answer, wanted):
        place = one["choices"][0]
        if told is None:
            place.pop("logprobs", None)
        elif is_stream and isinstance(place.get("logprobs"), dict):
            place["logprobs"].pop("text_offset", None)  # of the text that was sent, which waits for whole characters
    return [*found, *_differences("", answer, wanted)]


def _assumed(
    receipt: GenerationReceipt, loaded: LoadedModel, answer: dict[str, Any], *, is_chat: bool
) -> tuple[CompletionRequest, str]:
    """Return the request that a response seems to answer, and why it cannot be compared without its own, if so."""
    fields: dict[str, Any] = {"model": receipt.model.name, "stop": list(receipt.stop_texts) or None}
    fields |= {"messages": [{"role": "user", "content": ""}]} if is_chat else {"prompt": list(receipt.prompt)}
    if answer["choices"][0].get("logprobs") is not None:
        fields |= {"logprobs": True, "top_logprobs": receipt.top_logprobs} if is_chat else {"logprobs": 0}
    asked = parse_request(canonical_json(fields).encode(), receipt.model.name, is_chat=is_chat)
    text = ended_text(
        text_behind(loaded.tokenizer, receipt.prompt, receipt.tokens), receipt.finish_reason, receipt.stop_texts
    )
    said = answer["choices"][0].get("text")
    is_longer = isinstance(said, str) and len(said) > len(text) and said.endswith(text)
    return asked, "the response has its prompt before its text: give the request, too" if is_longer else ""


def _request(receipt: GenerationReceipt, data: bytes) -> CompletionRequest:
    """Raise RequestError."""
    try:
        plain = parse_json(data)
    except ValueError:
        plain = None  # told by `parse_request`
    return parse_request(data, receipt.model.name, is_chat=isinstance(plain, dict) and "messages" in plain)


def _wanted(
    receipt: GenerationReceipt,
    loaded: LoadedModel,
    answer: dict[str, Any],
    request: CompletionRequest,
    told: tuple[Sequence[Choice], Sequence[Choice]],
) -> dict[str, Any]:
    """Return the body that the server writes of a receipt, with the name and the second of an answer."""
    name, created, is_chat = answer["id"], answer["created"], request.is_chat
    if not (isinstance(name, str) and _NAME.fullmatch(name) and name.startswith("chat") is is_chat):
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-<32 hex digits>"
    writer = AnswerWriter(
        name=name,
        model=receipt.model.name,
        created=created if type(created) is int and created >= 0 else 0,
        fingerprint=fingerprint_of(receipt),
        is_chat=is_chat,
        logprobs=request.logprobs,
        tokenizer=loaded.tokenizer,
    )
    prompt, new, index = len(receipt.prompt), len(receipt.tokens), receipt.choice_index or 0
    choices = told[1] or [Choice(token, 0.0) for token in receipt.tokens]
    made = Generation(tuple(choices), FinishReason(receipt.finish_reason), tuple(told[0]))
    text = answer_text(loaded.tokenizer, request, index // request.count, receipt.prompt, made, index)
    body = writer.body([text], {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new})
    return cast(dict[str, Any], parse_json(body))


def _whole(data: bytes) -> dict[str, Any]:
    """Return the answer in a body. Raises _Damaged."""
    return _object("", data, least=1, most=MAX_TEXTS)


def _joined(data: bytes) -> dict[str, Any]:
    """Return the answer that the events of a stream come to, as one body. Raises _Damaged."""
    if not data.endswith(_END + DONE):
        raise _Damaged("is a stream that does not end with data: [DONE]")
    parts = data.removesuffix(_END + DONE).split(_END)
    joined: dict[str, Any] = {}
    said, logprobs, usage, reason = list[dict[str, Any]](), list[dict[str, Any]](), None, None
    for number, part in enumerate(parts, 1):
        event = _object(f"event {number} ", part.removeprefix(_EVENT), least=0, most=1)
        if not part.startswith(_EVENT):
            raise _Damaged(f"has an event {number} that does not begin with data:")
        head = {name: event.pop(name) for name in _HEAD}
        if joined not in ({}, head) or usage is not None:
            raise _Damaged(f"has an event {number} of another answer, or behind the last one")
        joined = head
        choice = (event.pop("choices") or [None])[0]
        if choice is None:
            usage = event.pop("usage", None)
        if event or (choice is None) is (usage is None) or (choice is not None and reason is not None):
            raise _Damaged(f"has an event {number} that the server does not write")
        if choice is None:
            continue
        reason = choice.pop("finish_reason", None)
        if (told := choice.pop("logprobs", None)) is not None:
            logprobs.append(told)
        said.append(choice)
    whole = {"index": 0, **_said(said), "logprobs": _chained(logprobs), "finish_reason": reason}
    return joined | {"choices": [whole]} | ({} if usage is None else {"usage": usage})


def _said(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the text of choices of events, as the choice of a body has it. Raises _Damaged."""
    deltas = [one.get("delta") for one in parts]
    if deltas and deltas[0] is not None:
        first = {"role": "assistant", "content": "", "refusal": None}
        plain = all(one == {"index": 0, "delta": one.get("delta")} for one in parts)
        texts = [
            one.get("content") if isinstance(one, dict) and one.keys() == {"content"} else None for one in deltas[1:-1]
        ]
        if plain and deltas[0] == first and deltas[-1] == {} and all(isinstance(one, str) for one in texts):
            return {"message": first | {"content": "".join(cast(list[str], texts))}}
    elif all(one == {"index": 0, "text": one.get("text")} and isinstance(one["text"], str) for one in parts):
        return {"text": "".join(one["text"] for one in parts)}
    raise _Damaged("has an event that the server does not write")


def _chained(parts: Sequence[Any]) -> dict[str, Any] | None:
    """Return log-probabilities of events, as a body has them. Raises _Damaged."""
    if not parts:
        return None
    found = dict(parts[0]) if isinstance(parts[0], dict) else {}
    for part in parts[1:]:
        if not isinstance(part, dict) or part.keys() != found.keys():
            raise _Damaged("has log-probabilities that the server does not write")
        found = {name: one + part[name] if isinstance(one, list) else one for name, one in found.items()}
    return found


def _object(what: str, data: bytes, *, least: int, most: int) -> dict[str, Any]:
    """Return an object with a head and so many choices. Raises _Damaged."""
    try:
        plain = parse_json(data)
    except ValueError as error:
        raise _Damaged(f"has no {what.strip() or 'answer'} (it {error})") from None
    if isinstance(plain, dict) and "error" in plain:
        raise _Damaged("is an error, and no answer")
    if not isinstance(plain, dict) or set(_HEAD) - plain.keys():
        raise _Damaged(f"has no {what.strip() or 'answer'} as the server writes it")
    choices = plain.get("choices")
    fits = isinstance(choices, list) and least <= len(choices) <= most
    if not fits or not all(isinstance(one, dict) for one in cast(list[Any], choices)):
        raise _Damaged(f"does not have {least} to {most} choices")
    return cast(dict[str, Any], plain)


def _differences(where: str, found: Any, wanted: Any) -> Iterator[str]:
    """Return clauses on what a body has, and what the server would have written."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            place = f"{where}.{name}".lstrip(".")
            if name not in wanted:
                yield f"the response has {place[:80]!r}, which the server does not write"
            elif name not in found:
                yield f"the response lacks {place}"
            else:
                yield from _differences(place, found[name], wanted[name])
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        # One clause of a list is enough: a text has thousands of tokens.
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if clauses := list(_differences(f"{where}[{at}]", one, other)):
                yield from clauses
                return
    elif type(found) is not type(wanted) or found != wanted:
        yield f"the response says {where} {_shown(found, wanted)}, and by the receipt it is {_shown(wanted, found)}"


def _shown(value: Any, other: Any) -> str:
    """Return a value; of a long text the place where it differs."""
    if isinstance(value, str) and isinstance(other, str):
        pairs = zip(value, other, strict=False)
        at = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(value), len(other)))
        begin = max(0, at - 20)
        return f"{'...' if begin else ''}{value[begin : at + 40]!r}{'...' if len(value) > at + 40 else ''}"
    return ascii(value)[:60]
