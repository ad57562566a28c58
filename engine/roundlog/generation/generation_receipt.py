"""Receipts of texts: which model wrote which tokens behind a prompt, in one JSON object (RFC 8785) that anybody who has
the model can check (docs/receipt.md). It says nothing of the machine: with the same versions, all make the same one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import numpy as np
import torch

from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.commitments import tensor_root
from roundlog.json_text import parse_json
from roundlog.operators.job_arithmetic import check_arithmetic
from roundlog.program import ProgramError
from roundlog.signed_json import (
    SIGNED,
    SignedJson,
    count_of,
    hash_of,
    hex_of,
    keys_of,
    number_of,
    signature_of,
    text_of,
)

FORMAT, VERSION = "tiebreak generation", 1
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Formats of weights that generate text, by their names in receipts and options."""
MAX_TOKENS = 1 << 20
MAX_GENERATION_BYTES = 16 << 20
"""Most bytes of a file with such a receipt."""

MAX_STOP_TEXTS = 4
MAX_LIKELIEST = 20
"""Most likeliest tokens that are told beside each."""

MODEL_HASHES = ("model_weight_hash", "config_hash", "tokenizer_hash")

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """A model as receipts name it."""

    name: str
    revision: str
    model_weight_hash: bytes
    """Merkle root over all weights (`model_folder.weight_root`)."""
    config_hash: bytes
    """Digest of `config.json` and `generation_config.json`, or SHA-256 of the GGUF file."""
    tokenizer_hash: bytes
    """Digest of the tokenizer's files, or SHA-256 of the GGUF file."""

    def plain(self) -> dict[str, str]:
        """The model as JSON has it."""
        hashes = {name: hex_of(getattr(self, name)) for name in MODEL_HASHES}
        return {"name": self.name, "revision": self.revision} | hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReceipt(SignedJson):
    """A generated text. Hashes are 32 bytes."""

    model: ModelIdentity
    dtype: str
    """`fp32` or `bf16`: of the weights."""
    arithmetic: str
    versions: Mapping[str, str]
    """`tiebreak`, `torch`, `transformers`: of the process that wrote it; the model's own code is transformers'."""
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_new_tokens: int
    stop: tuple[int, ...]
    """Tokens that end the text, ascending."""
    tokens: tuple[int, ...]
    logprobs_root: bytes
    """Tensor root of the tokens' log-probabilities, f32[n]."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end the text where they appear in it."""
    at_stop_text: bool = False
    """Whether one of them ends with the last token, or within it."""
    prompt_logprobs_root: bytes | None = None
    """Tensor root of the log-probabilities of the prompt's tokens behind its first, f32[p - 1], if they were told."""
    top_logprobs: int = 0
    """Number of likeliest tokens that were told beside each token, of the prompt's too if they were told."""
    top_logprobs_root: bytes | None = None
    """`likeliest_root` of these, if there are any."""
    choice_index: int | None = None
    """Place of the text among those of its answer, if that has several."""
    training_receipt: bytes | None = None
    """SHA-256 of the receipt of the run that the weights come from."""
    request_sha256: bytes | None = None
    response_sha256: bytes | None = None
    """SHA-256 of the bytes of the request that asked for it, and of the response, where a server was asked."""

    @property
    def finish_reason(self) -> str:
        """`stop` if the last token, or a text with it, is one that ends the text, `length` otherwise."""
        return "stop" if self.at_stop_text or self.tokens[-1] in self.stop else "length"

    def plain(self, *, signed: bool = True) -> dict[str, Any]:
        model, how = self.model, self.sampling
        found: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "model": model.plain() | {"dtype": self.dtype},
            "arithmetic": self.arithmetic,
            "versions": dict(self.versions),
            "prompt_tokens": list(self.prompt),
            "sampling": {
                "temperature": how.temperature,
                "top_k": how.top_k,
                "top_p": how.top_p,
                "repetition_penalty": how.repetition_penalty,
                "seed": str(self.seed),
                "max_new_tokens": self.max_new_tokens,
                "stop_tokens": list(self.stop),
            },
            "tokens": list(self.tokens),
            "tokens_hash": hex_of(tokens_hash(self.tokens)),
            "token_count": len(self.tokens),
            "finish_reason": self.finish_reason,
            "logprobs_root": hex_of(self.logprobs_root),
            "training_receipt": _optional(self.training_receipt),
            "request_sha256": _optional(self.request_sha256),
            "response_sha256": _optional(self.response_sha256),
        }
        # What is at its default is left out, so that a text has one receipt.
        for name in _NUMBERS:
            if getattr(how, name):
                found["sampling"][name] = getattr(how, name)
        if how.logit_bias:
            found["sampling"]["logit_bias"] = {str(token): value for token, value in how.logit_bias}
        if self.stop_texts:
            found["sampling"]["stop_texts"] = list(self.stop_texts)
        if self.prompt_logprobs_root is not None:
            found["prompt_logprobs_root"] = hex_of(self.prompt_logprobs_root)
        if self.top_logprobs_root is not None:
            found["top_logprobs"] = {"count": self.top_logprobs, "root": hex_of(self.top_logprobs_root)}
        if self.choice_index is not None:
            found["choice_index"] = self.choice_index
        return found | self.signing(signed=signed)


def tokens_hash(tokens: Sequence[int]) -> bytes:
    """SHA-256 of token numbers, each as four bytes, the least first."""
    return sha256(np.asarray(tokens, dtype="<u4").tobytes()).digest()


def logprobs_root(logprobs: Sequence[float]) -> bytes:
    """Tensor root of f32[n]."""
    return tensor_root(torch.tensor(list(logprobs), dtype=torch.float32))


def likeliest_root(likeliest: Sequence[Sequence[tuple[int, float]]]) -> bytes:
    """SHA-256 of the tensor roots of tokens i64[n, k] and of their log-probabilities f32[n, k], one behind the other:
    of the k likeliest tokens at n places."""
    tokens = torch.tensor([[token for token, _ in row] for row in likeliest])
    values = torch.tensor([[value for _, value in row] for row in likeliest], dtype=torch.float32)
    return sha256(tensor_root(tokens) + tensor_root(values)).digest()


def parse_generation_receipt(data: bytes) -> GenerationReceipt:
    """The receipt in a stranger's bytes, checked against itself; its signature is not. Raises ValueError, whose words
    go on a sentence that names the file: it is damaged, or contradicts itself."""
    if len(data) > MAX_GENERATION_BYTES:
        raise ValueError(f"has more than {MAX_GENERATION_BYTES} bytes")
    plain = keys_of("receipt", parse_json(data), _ALWAYS, SIGNED | _PERHAPS)
    if plain["format"] != FORMAT or type(plain["version"]) is not int or plain["version"] != VERSION:
        raise ValueError(f"is not of the format {FORMAT!r}, version {VERSION}")
    model = keys_of("model", plain["model"], _MODEL)
    how = keys_of("sampling", plain["sampling"], _SAMPLING, _SAMPLING_PERHAPS)
    versions = keys_of("versions", plain["versions"], _VERSIONS)
    if model["dtype"] not in tuple(DTYPES):
        raise ValueError("has a dtype that is neither fp32 nor bf16")
    seed = how["seed"]
    if not (isinstance(seed, str) and re.fullmatch("0|[1-9][0-9]{0,19}", seed) and int(seed) < 1 << 64):
        raise ValueError("has a seed that is no text of a number below 2^64")
    try:
        check_arithmetic(text_of("arithmetic", plain["arithmetic"]))
        sampling = Sampling(
            temperature=number_of("temperature", how["temperature"]),
            top_k=count_of("top_k", how["top_k"], 0),
            top_p=number_of("top_p", how["top_p"]),
            repetition_penalty=number_of("repetition_penalty", how["repetition_penalty"]),
            **{name: number_of(name, how.get(name, 0)) for name in _NUMBERS},
            logit_bias=_biases(how.get("logit_bias", {})),
        )
    except (CaptureError, ProgramError) as error:
        raise ValueError(f"cannot be followed: {error}") from error
    stop = tokens_of("stop_tokens", how["stop_tokens"])
    if list(stop) != sorted(set(stop)):
        raise ValueError("has stop_tokens that do not ascend")
    tokens = tokens_of("tokens", plain["tokens"])
    prompt = tokens_of("prompt_tokens", plain["prompt_tokens"])
    if not tokens or not prompt:
        raise ValueError("has no tokens, or no prompt")
    stop_texts = how.get("stop_texts", [])
    if not isinstance(stop_texts, list) or len(stop_texts) > MAX_STOP_TEXTS or not all(map(is_stop_text, stop_texts)):
        raise ValueError(f"has stop_texts that are not at most {MAX_STOP_TEXTS} texts")
    top = keys_of("top_logprobs", plain.get("top_logprobs", {"count": 0, "root": None}), frozenset(["count", "root"]))
    told, index = plain.get("prompt_logprobs_root"), plain.get("choice_index")
    receipt = GenerationReceipt(
        model=ModelIdentity(
            name=text_of("name", model["name"]),
            revision=text_of("revision", model["revision"]),
            **{name: hash_of(name, model[name]) for name in MODEL_HASHES},
        ),
        dtype=model["dtype"],
        arithmetic=plain["arithmetic"],
        versions={name: text_of(name, versions[name]) for name in sorted(_VERSIONS)},
        prompt=prompt,
        sampling=sampling,
        seed=int(seed),
        max_new_tokens=count_of("max_new_tokens", how["max_new_tokens"], 1),
        stop=stop,
        tokens=tokens,
        logprobs_root=hash_of("logprobs_root", plain["logprobs_root"]),
        stop_texts=tuple(stop_texts),
        at_stop_text=bool(stop_texts) and tokens[-1] not in stop and plain["finish_reason"] == "stop",
        prompt_logprobs_root=None if told is None else hash_of("prompt_logprobs_root", told),
        top_logprobs=count_of("top_logprobs", top["count"], 0),
        top_logprobs_root=None if top["root"] is None else hash_of("top_logprobs", top["root"]),
        choice_index=None if index is None else count_of("choice_index", index, 0),
        **{
            name: None if plain[name] is None else hash_of(name, plain[name])
            for name in ("training_receipt", "request_sha256", "response_sha256")
        },
        **signature_of(plain),
    )
    if any(token in stop for token in tokens[:-1]):
        raise ValueError("goes on behind a token that ends its text")
    ended = receipt.finish_reason == "stop"
    if len(tokens) > receipt.max_new_tokens or (len(tokens) < receipt.max_new_tokens and not ended):
        raise ValueError("ends neither with a token that ends its text nor after max_new_tokens")
    if (
        bool(receipt.top_logprobs) is not (receipt.top_logprobs_root is not None)
        or receipt.top_logprobs > MAX_LIKELIEST
    ):
        raise ValueError(f"has top_logprobs that are not 1 to {MAX_LIKELIEST} with their root")
    follows = receipt.plain()
    for given, right in ((plain, follows), (how, follows["sampling"])):
        if twice := sorted(given.keys() - right.keys()):
            raise ValueError(f"has {twice[0]} at its default, where it is left out")
    for name in ("tokens_hash", "token_count", "finish_reason"):
        if type(plain[name]) is not type(follows[name]) or plain[name] != follows[name]:
            raise ValueError(f"has a {name} that does not follow from its tokens")
    return receipt


_VERSIONS = frozenset(["tiebreak", "torch", "transformers"])
_MODEL = frozenset(["name", "revision", *MODEL_HASHES, "dtype"])
_SAMPLING = frozenset(["temperature", "top_k", "top_p", "repetition_penalty", "seed", "max_new_tokens", "stop_tokens"])
_NUMBERS = ("min_p", "presence_penalty", "frequency_penalty")
_SAMPLING_PERHAPS = frozenset([*_NUMBERS, "logit_bias", "stop_texts"])
_PERHAPS = frozenset(["prompt_logprobs_root", "top_logprobs", "choice_index"])
_ALWAYS = frozenset(
    [
        *("format", "version", "model", "arithmetic", "versions", "prompt_tokens", "sampling", "tokens", "tokens_hash"),
        *("token_count", "finish_reason", "logprobs_root", "training_receipt", "request_sha256", "response_sha256"),
    ]
)


def _biases(value: object) -> tuple[tuple[int, float], ...]:
    numbers = isinstance(value, dict) and all(re.fullmatch("0|[1-9][0-9]{0,9}", token) for token in value)
    if not numbers:
        raise ValueError("has a logit_bias that is no object of token numbers")
    return tuple(
        sorted((int(token), number_of("logit_bias", one)) for token, one in cast(dict[str, Any], value).items())
    )


def is_stop_text(value: object) -> bool:
    """Whether a value can end texts: 1 to 1,000 whole characters."""
    return isinstance(value, str) and 0 < len(value) <= 1000 and not _HALF_CHARACTER.search(value)


def tokens_of(name: str, value: object) -> tuple[int, ...]:
    fits = isinstance(value, list) and len(value) <= MAX_TOKENS
    if not fits or any(type(one) is not int or not 0 <= one < 1 << 31 for one in cast(list[Any], value)):
        raise ValueError(f"has {name} that are not a list of at most {MAX_TOKENS} token numbers")
    return tuple(cast(list[int], value))


def _optional(data: bytes | None) -> str | None:
    return None if data is None else hex_of(data)
