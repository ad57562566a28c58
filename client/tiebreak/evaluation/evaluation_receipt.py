"""Receipts of evaluations: which scores a model has in which tasks, in one JSON object (RFC 8785) with every answer, so
that the scores follow from the answers, and each answer from its model (docs/receipt.md)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import rfc8785
from roundlog.commitments import MerkleTree
from roundlog.generation import ModelIdentity
from roundlog.generation.generation_receipt import DTYPES, MODEL_HASHES, tokens_of
from roundlog.json_text import parse_json
from roundlog.operators.job_arithmetic import check_arithmetic
from roundlog.program import ProgramError
from roundlog.signed_json import SignedJson, count_of, hash_of, hex_of, number_of, signature_of, text_of

FORMAT, VERSION = "tiebreak evaluation", 1
MAX_EVALUATION_BYTES = 64 << 20
"""Most bytes of a file with such a receipt."""

_VERSIONS = ("tiebreak", "torch", "transformers", "lm_eval")


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
        check_arithmetic(text_of("arithmetic", plain["arithmetic"]))
        receipt = EvaluationReceipt(
            model=ModelIdentity(
                name=text_of("name", model["name"]),
                revision=text_of("revision", model["revision"]),
                **{name: hash_of(name, model[name]) for name in MODEL_HASHES},
            ),
            dtype=text_of("dtype", model["dtype"]),
            arithmetic=plain["arithmetic"],
            versions={name: text_of(name, plain["versions"][name]) for name in _VERSIONS},
            limit=None if plain["limit"] is None else count_of("limit", plain["limit"], 1),
            tasks=tuple(
                EvaluatedTask(
                    name=text_of("name", task["name"]),
                    config_sha256=hash_of("config_sha256", task["config_sha256"]),
                    data={name: hash_of("data", digest) for name, digest in task["data"].items()},
                    scores={name: number_of("score", score) for name, score in task["scores"].items()},
                )
                for task in plain["tasks"]
            ),
            answers=tuple(map(_answer, answers)),
            requests_root=hash_of("requests_root", plain["requests_root"]),
            **signature_of(plain),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"lacks a field, or has one of another kind ({ascii(error)[:60]})") from None
    except ProgramError as error:
        raise ValueError(f"cannot be followed: {error}") from error
    if not answers or not receipt.tasks or receipt.dtype not in DTYPES:
        raise ValueError("has no answers, no tasks, or weights that are neither fp32 nor bf16")
    # The file has to be what this receipt writes: unknown fields, a smaller count and other forms of numbers are none.
    if receipt.to_json().encode() != rfc8785.dumps(plain):
        raise ValueError("has a field that is not known, or that does not follow from its answers")
    return receipt


def _answer(plain: Any) -> Answer:
    if "tokens" in plain:
        return Continuation(tokens_of("tokens", plain["tokens"]))
    if type(plain["is_greedy"]) is not bool:
        raise ValueError("has an answer that is neither greedy nor not")
    return Likelihood(number_of("logprob", plain["logprob"]), plain["is_greedy"])
