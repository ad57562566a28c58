"""The check of a request and of its response, as their bytes were sent, against the receipt that names them: a receipt
alone says which text is a model's, and not that it is the one that was asked for, or the one that was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256

from roundlog.capture.huggingface import Sampling
from roundlog.generation import Choice, FinishReason, FolderError, Generation, GenerationReceipt, LoadedModel
from roundlog.json_text import parse_json

from tiebreak.server.completion_bodies import AnswerWriter, StreamWriter, answer_text, fingerprint_of
from tiebreak.server.completion_requests import CompletionRequest, RequestError, parse_request, tokens_of_prompt

MAX_RESPONSE_BYTES = 1 << 28

_MOST_HEAD = 200
_HEAD = re.compile(rb'"id":"((?:chat)?cmpl-[0-9a-f]{32})","object":"[a-z._]+","created":([0-9]{1,12}),')
"""The beginning of an answer: its name, and the second in which it was made."""


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
    # If more were tried than given, the likeliest were, whichever those are.
    tried = [request.seed_of(one) for one in range(request.tried)] if request.tried > request.count else []
    if not request.drawn_seed and receipt.seed not in tried:
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


def wrong_response(
    receipt: GenerationReceipt,
    loaded: LoadedModel,
    data: bytes,
    *,
    request: bytes,
    told: tuple[Sequence[Choice], Sequence[Choice]] | None,
) -> list[str]:
    """Return differences between the bytes of a response, whole or a stream of events, and those that the server writes
    of a receipt, a clause for each; other texts of the answer have receipts of their own. request: the bytes that asked
    for it. told: the prompt's tokens behind its first and all new ones, with their probabilities, by a repetition; None
    where the receipt is not right, and nothing but the hash is compared."""
    found = list[str]()
    if receipt.response_sha256 != sha256(data).digest():
        found.append("the response's bytes have another SHA-256 than response_sha256")
    try:
        asked = _request(receipt, request)
    except RequestError:
        return found  # told by `wrong_request`
    several = len(asked.prompts) * asked.count
    if told is None or (receipt.choice_index is None) is (several > 1) or (receipt.choice_index or 0) >= several:
        return found
    head = _HEAD.search(data[:_MOST_HEAD])
    if head is None or head[1].startswith(b"chat") is not asked.is_chat:
        return [*found, "the response is no answer of the server's to such a request"]
    writer = AnswerWriter(
        name=head[1].decode(),
        model=receipt.model.name,
        created=int(head[2]),
        fingerprint=fingerprint_of(receipt),
        is_chat=asked.is_chat,
        logprobs=asked.logprobs,
        tokenizer=loaded.tokenizer,
    )
    given, wanted = data, _body(receipt, asked, writer, told)
    if receipt.choice_index is not None:
        try:
            given, wanted = _one_text(data, receipt.choice_index, several), _one_text(wanted, 0, 1)
        except (ValueError, LookupError, TypeError, AttributeError):
            return [*found, "the response is no answer of the server's to such a request"]
    return found if given == wanted else [*found, _difference(given, wanted)]


def _body(
    receipt: GenerationReceipt,
    asked: CompletionRequest,
    writer: AnswerWriter,
    told: tuple[Sequence[Choice], Sequence[Choice]],
) -> bytes:
    """Return the body that the server writes of a receipt's text, as if it were the only one of its answer."""
    prompt, index, reason = receipt.prompt, receipt.choice_index or 0, receipt.finish_reason
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(receipt.tokens)}
    usage["total_tokens"] = sum(usage.values())
    if asked.stream:
        stream = StreamWriter(writer, prompt, asked.stop_texts)
        events = [writer.first_event(), *map(stream.add, told[1]), stream.rest(reason)]
        return b"".join([*events, writer.last_events(reason, usage if asked.include_usage else None)])
    made = Generation(tuple(told[1]), FinishReason(reason), tuple(told[0]))
    return writer.body([answer_text(writer.tokenizer, asked, index // asked.count, prompt, made, index)], usage)


def _one_text(body: bytes, index: int, count: int) -> bytes:
    """Return one of the `count` texts of a whole body with what all share but the numbers of tokens. Raises ValueError,
    LookupError, TypeError, AttributeError for what is no such body."""
    plain = parse_json(body)
    plain.pop("usage")
    if len(plain["choices"]) != count:
        raise ValueError("other texts than were asked for")
    return json.dumps(plain | {"choices": [plain["choices"][index]]}, ensure_ascii=False).encode()


def _difference(given: bytes, wanted: bytes) -> str:
    """Return a clause on the first place in which two bodies differ."""
    pairs = zip(given, wanted, strict=False)
    at = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(given), len(wanted)))
    begin = max(0, at - 30)
    said, right = (ascii(body[begin : at + 40].decode(errors="replace")) for body in (given, wanted))
    return f"the response says {said} (byte {at}), and by the receipt it is {right}"


def _request(receipt: GenerationReceipt, data: bytes) -> CompletionRequest:
    """Raise RequestError."""
    try:
        plain = parse_json(data)
    except ValueError:
        plain = None  # told by `parse_request`
    return parse_request(data, receipt.model.name, is_chat=isinstance(plain, dict) and "messages" in plain)
