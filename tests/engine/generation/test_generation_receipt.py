"""Receipts of texts: their one form in JSON, what a stranger can write into one, and two that are kept for ever."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture.huggingface import Sampling
from roundlog.generation import GenerationReceipt, Generator, check_text, parse_generation_receipt
from roundlog.generation.generation_receipt import MAX_GENERATION_BYTES, logprobs_root, tokens_hash

from tests.engine.generation.formula_model import formula_identity, formula_model

KEPT = {
    "kept_fp32.json": (torch.float32, "939348d7ae5fa39b8c6ff20de40302446bc2942a3dfd9f1f4acc3f6285f3a0c1"),
    "kept_bf16.json": (torch.bfloat16, "a8dc95756a18ce0357f3af9e3b994ce792da9f8f8f92fe1372eaf6cf8e4f7215"),
}
"""Files beside this one -> dtype of the model, and digest. The first is signed and drawn; the second is of hopper."""


def kept(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


@pytest.fixture
def receipt() -> GenerationReceipt:
    return parse_generation_receipt(kept("kept_fp32.json"))


@pytest.mark.slow_but("kept_fp32.json")
@pytest.mark.parametrize("name", KEPT)
def test_a_kept_receipt_is_read_and_is_right_for_ever(name: str) -> None:
    dtype, digest = KEPT[name]
    found = parse_generation_receipt(kept(name))
    assert found.digest.hex() == digest
    assert found.to_json().encode() == kept(name)
    model = formula_model(dtype)
    assert formula_identity(model) == found.model
    generator = Generator(model, positions=24, arithmetic=found.arithmetic)
    for by_token in (False, True):
        assert check_text(found, generator, stop=found.stop, by_token=by_token).is_right
    wrong = check_text(replace(found, logprobs_root=bytes(32)), generator, stop=found.stop)
    assert wrong.wrong_logprobs and wrong.wrong_token is None
    other = replace(found, tokens=(*found.tokens[:3], (found.tokens[3] + 1) % 60, *found.tokens[4:]))
    wrong = check_text(other, generator, stop=found.stop)
    assert wrong.wrong_token == 3 and wrong.right is not None and wrong.right.token == found.tokens[3]


def test_hashes_are_those_of_the_page(receipt: GenerationReceipt) -> None:
    assert tokens_hash([1, 258, 1 << 30]) == sha256(bytes([1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 64])).digest()
    plain = json.loads(receipt.to_json())
    assert plain.pop("signature") and plain["signer"]
    unsigned = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert receipt.signed_text() == unsigned and receipt.digest == sha256(unsigned.encode()).digest()
    assert logprobs_root([-1.5, 0.0]) != logprobs_root([-1.5, -0.0]), "bits are compared"


def test_a_receipt_comes_back_as_it_was_written(receipt: GenerationReceipt) -> None:
    for one in (
        receipt,
        receipt.by(bytes(20)).signed(bytes(range(20)), bytes(65)),
        replace(receipt, signer=None, signature=None, seed=(1 << 64) - 1, training_receipt=None),
        replace(receipt, request_sha256=bytes(range(32)), response_sha256=bytes(32)),
        replace(receipt, model=replace(receipt.model, name='a "name" with \\ and <', revision="")),
        replace(receipt, sampling=Sampling(), tokens=receipt.tokens[:4], max_new_tokens=4),
    ):
        text = one.to_json()
        assert parse_generation_receipt(text.encode()) == one
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).replace("1.0,", "1,")
        assert parse_generation_receipt(json.dumps(json.loads(text), indent=3).encode()) == one


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values in JSON."""
    inside = plain.items() if isinstance(plain, dict) else enumerate(plain[:2]) if isinstance(plain, list) else ()
    for name, value in inside:
        yield (*path, name)
        yield from places(value, (*path, name))


def with_value(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(plain)
    place = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return made


def without(plain: Any, path: tuple[Any, ...]) -> Any:
    made = copy.deepcopy(plain)
    place = made
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return made


STRANGE = [
    *(
        None,
        True,
        False,
        [],
        {},
        [[]],
        {"a": 1},
        "",
        "x",
        "0x",
        "0x" + "g" * 64,
        "0x" + "AB" * 32,
        "é",
        "x" * 201,
        "\x00",
    ),
    *("0", "-1", "01", "1e3", str(1 << 64), -1, 1.5, 1 << 31, 1 << 64, 10**400, -(10**400), 1e300, 2**-101),
]


def refusal(data: bytes) -> str | None:
    """The one clause with which a receipt is refused; None if it is one."""
    try:
        parse_generation_receipt(data)
    except ValueError as error:
        return str(error)
    return None


def test_what_contradicts_itself_or_is_too_large_is_refused(receipt: GenerationReceipt) -> None:
    for made, said in (
        (replace(receipt, tokens=(60, *receipt.tokens[1:])), "goes on behind a token that ends its text"),
        (replace(receipt, tokens=receipt.tokens[:-1]), "ends neither"),
        (replace(receipt, max_new_tokens=4), "ends neither"),
        (replace(receipt, stop=(60, 60)), "do not ascend"),
        (replace(receipt, prompt=()), "no prompt"),
        (replace(receipt, arithmetic="slide rule"), "there is no arithmetic"),
    ):
        assert said in (refusal(made.to_json().encode()) or "")
    assert "more than" in (refusal(b" " * (MAX_GENERATION_BYTES + 1)) or "")
    twice = receipt.to_json().replace('"seed":"7"', '"seed":"7","seed":"8"')
    assert "has a key twice" in (refusal(twice.encode()) or "")
    assert "is not JSON" in (refusal(kept("kept_fp32.json") + b"}") or "")
    assert "is not JSON" in (refusal(b"\xef\xbb\xbf" + kept("kept_fp32.json")) or "")
