"""Receipts of evaluations: which scores a model has in which tasks, in one JSON object (RFC 8785) with every answer, so
that the scores follow from the answers, and each answer from its model (docs/receipt.md)."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import rfc8785
from roundlog.commitments import MerkleTree
from roundlog.generation import ModelIdentity
from roundlog.generation.generation_receipt import DTYPES, MODEL_HASHES, SignedJson, hex_of
from roundlog.json_text import parse_json
from roundlog.operators.job_arithmetic import check_arithmetic
from roundlog.program import ProgramError

FORMAT, VERSION = "tiebreak evaluation", 1
MAX_EVALUATION_BYTES = 64 << 20
"""Most bytes of a file with such a receipt."""

_VERSIONS = ("tiebreak", "torch", "transformers", "lm_eval")
_TEXT = re.compile("[ -~]{1,200}")


@dataclass(frozen=True, slots=True)
class Likelihood:
    """An answer: the sum of the log-probabilities of a continuation's tokens, FP32 numbers added in FP64 in their
    order, and whether each of them is the likeliest one there."""

    logprob: float
    is_greedy: bool

    def plain(self) -> dict[str, Any]:
        return {"logprob": self.logprob, "is_greedy": self.is_greedy}


@dataclass(frozen=True, slots=True)
class Continuation:
    """An answer: the likeliest tokens behind a prompt."""

    tokens: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        return {"tokens": list(self.tokens)}


Answer = Likelihood | Continuation


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What a model is asked, in token numbers."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...] = ()
    """Tokens whose likelihood is asked for; none: the likeliest tokens are."""
    max_new_tokens: int = 0
    stop_texts: tuple[str, ...] = ()
    """Texts that end these."""

    @property
    def size(self) -> int:
        """Most tokens of the prompt with an answer."""
        return len(self.prompt) + len(self.continuation) + self.max_new_tokens

    def leaf(self, answer: Answer) -> bytes:
        """Payload of the leaf of a request with its answer: canonical JSON."""
        asked: dict[str, Any] = {"prompt": list(self.prompt)}
        if self.continuation:
            asked["continuation"] = list(self.continuation)
        else:
            asked |= {"max_new_tokens": self.max_new_tokens, "stop_texts": list(self.stop_texts)}
        return rfc8785.dumps({"asked": asked, "answer": answer.plain()})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTask:
    """A task and what the model has in it."""

    name: str
    config_sha256: bytes
    """SHA-256 of the task's configuration, in canonical JSON."""
    data: Mapping[str, bytes]
    """SHA-256 of each file of its data, by the place that the configuration has it at."""
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReceipt(SignedJson):
    """An evaluation. Hashes are 32 bytes."""

    model: ModelIdentity
    dtype: str
    arithmetic: str
    versions: Mapping[str, str]
    """`tiebreak`, `torch`, `transformers`, `lm_eval`."""
    limit: int | None
    """Documents of each task that were taken, the first ones; None: all."""
    tasks: tuple[EvaluatedTask, ...]
    answers: tuple[Answer, ...]
    requests_root: bytes
    """Merkle root over all requests with their answers, in the order in which lm-eval asks."""

    def plain(self, *, signed: bool = True) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model.plain() | {"dtype": self.dtype},
            "arithmetic": self.arithmetic,
            "versions": dict(self.versions),
            "limit": self.limit,
            "tasks": [
                {
                    "name": task.name,
                    "config_sha256": hex_of(task.config_sha256),
                    "data": {name: hex_of(digest) for name, digest in task.data.items()},
                    "scores": dict(task.scores),
                }
                for task in self.tasks
            ],
            "request_count": len(self.answers),
            "requests_root": hex_of(self.requests_root),
            "answers": [answer.plain() for answer in self.answers],
        } | self.signing(signed=signed)


def requests_root(requests: Sequence[EvaluationRequest], answers: Sequence[Answer]) -> bytes:
    """Merkle root over requests with their answers; at least one of each."""
    return MerkleTree(one.leaf(answer) for one, answer in zip(requests, answers, strict=True)).root


def drawn_requests(seed: str, digest: bytes, total: int, count: int) -> frozenset[int]:
    """Return the numbers of the `count` requests of a share: those that come first by SHA-256 of seed, the receipt's
    digest (32 bytes) and their number, so that anybody draws the same (docs/receipt.md)."""
    order = sorted(range(total), key=lambda number: sha256(f"{seed} 0x{digest.hex()} {number}".encode()).digest())
    return frozenset(order[:count])


def largest_unnoticed(total: int, drawn: int, odds: int = 20) -> int:
    """Upper bound at 95 % on the wrong answers among `total`, if `drawn` of them, drawn without replacement, are right:
    the largest number of which a draw misses all with a probability of at least 1 / odds (hypergeometric)."""
    whole = math.comb(total, drawn)
    return bisect_left(range(total + 1), True, key=lambda wrong: odds * math.comb(total - wrong, drawn) < whole) - 1


def parse_evaluation_receipt(data: bytes) -> EvaluationReceipt:
    """The receipt in a stranger's bytes, whose fields have their forms; neither root, scores nor signature are checked.
    Raises ValueError, whose words go on a sentence that names the file."""
    if len(data) > MAX_EVALUATION_BYTES:
        raise ValueError(f"has more than {MAX_EVALUATION_BYTES} bytes")
    plain = parse_json(data)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT or plain.get("version") != VERSION:
        raise ValueError(f"is not of the format {FORMAT!r}, version {VERSION}")
    try:
        model, answers = plain["model"], plain["answers"]
        check_arithmetic(_text(plain["arithmetic"]))
        receipt = EvaluationReceipt(
            model=ModelIdentity(
                name=_text(model["name"], least=0),
                revision=_text(model["revision"], least=0),
                **{name: _bytes(model[name], 32) for name in MODEL_HASHES},
            ),
            dtype=_text(model["dtype"]),
            arithmetic=plain["arithmetic"],
            versions={name: _text(plain["versions"][name]) for name in _VERSIONS},
            limit=None if plain["limit"] is None else _whole(plain["limit"], 1),
            tasks=tuple(
                EvaluatedTask(
                    name=_text(task["name"]),
                    config_sha256=_bytes(task["config_sha256"], 32),
                    data={name: _bytes(digest, 32) for name, digest in task["data"].items()},
                    scores={name: _number(score) for name, score in task["scores"].items()},
                )
                for task in plain["tasks"]
            ),
            answers=tuple(map(_answer, answers)),
            requests_root=_bytes(plain["requests_root"], 32),
            signer=_bytes(plain["signer"], 20) if "signer" in plain else None,
            signature=_bytes(plain["signature"], 65) if "signature" in plain else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks a field, or has one of another kind ({ascii(error)[:60]})") from None
    except ProgramError as error:
        raise ValueError(f"cannot be followed: {error}") from error
    if not answers or not receipt.tasks or receipt.dtype not in DTYPES:
        raise ValueError("has no answers, no tasks, or weights that are neither fp32 nor bf16")
    if (receipt.signer is None) is not (receipt.signature is None):
        raise ValueError("has a signer without a signature, or a signature without a signer")
    # The file has to be what this receipt writes: unknown fields, a smaller count and other forms of numbers are none.
    if receipt.to_json().encode() != rfc8785.dumps(plain):
        raise ValueError("has a field that is not known, or that does not follow from its answers")
    return receipt


def _answer(plain: Any) -> Answer:
    if "tokens" in plain:
        return Continuation(tuple(_whole(token, 0) for token in plain["tokens"]))
    if type(plain["is_greedy"]) is not bool:
        raise ValueError("has an answer that is neither greedy nor not")
    return Likelihood(_number(plain["logprob"]), plain["is_greedy"])


def _text(value: object, least: int = 1) -> str:
    if (
        not isinstance(value, str)
        or (len(value) >= least and value and not _TEXT.fullmatch(value))
        or len(value) < least
    ):
        raise ValueError("has a text that is none of at most 200 ASCII characters")
    return value


def _bytes(value: object, size: int) -> bytes:
    if not (isinstance(value, str) and re.fullmatch(f"0x[0-9a-f]{{{2 * size}}}", value)):
        raise ValueError(f"has a hash that is not 0x and {2 * size} lower-case hex digits")
    return bytes.fromhex(value[2:])


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(cast(float, value)):
        raise ValueError("has a score or a log-probability that is no finite number")
    return float(cast(float, value))


def _whole(value: object, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"has a count or a token that is no whole number from {least} on")
    return value
