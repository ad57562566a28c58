"""Where a text ends is bound by its receipt: at a token that ends the model's texts, or at max_new_tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from roundlog.generation import GenerationReceipt, Generator, TextCheck, check_text, parse_generation_receipt
from roundlog.generation.generation_receipt import logprobs_root

from tests.engine.generation.formula_model import formula_model
from tests.engine.generation.test_generation_receipt import kept

STOP = 60
"""The one token that ends the formula's texts: the last of sixteen in the kept receipt."""


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(formula_model(torch.float32), positions=24)


@pytest.fixture(scope="module")
def right() -> GenerationReceipt:
    found = parse_generation_receipt(kept("kept_fp32.json"))
    assert found.stop == (STOP,) and found.tokens.index(STOP) == len(found.tokens) - 1 == 15
    return replace(found, signer=None, signature=None)


def checked(receipt: GenerationReceipt, generator: Generator) -> list[TextCheck]:
    """Findings of both repetitions of a receipt, which contradicts itself in nothing."""
    again = parse_generation_receipt(receipt.to_json().encode())
    assert again == receipt
    return [check_text(again, generator, stop=[STOP], by_token=by_token) for by_token in (False, True)]


def told(generator: Generator, receipt: GenerationReceipt) -> GenerationReceipt:
    """The receipt with the log-probabilities of its tokens, as an author who lies about the end alone has them."""
    found = list(generator.right_choices(receipt.prompt, receipt.tokens, sampling=receipt.sampling, seed=receipt.seed))
    assert [choice.token for choice in found] == list(receipt.tokens)
    return replace(receipt, logprobs_root=logprobs_root([choice.logprob for choice in found]))


def test_the_right_end_is_right(right: GenerationReceipt, generator: Generator) -> None:
    assert all(found.is_right for found in checked(right, generator))


def test_a_text_that_is_said_to_end_earlier_is_wrong(right: GenerationReceipt, generator: Generator) -> None:
    """By a token that does not end the model's texts: all its tokens are the model's."""
    first = right.tokens.index(43)
    short = told(generator, replace(right, tokens=right.tokens[: first + 1], stop=(43, STOP)))
    assert short.finish_reason == "stop"
    for found in checked(short, generator):
        assert found.wrong_stop and not found.is_right and found.wrong_token is None


def test_a_text_that_goes_on_behind_its_end_is_wrong(right: GenerationReceipt, generator: Generator) -> None:
    """By a receipt that leaves away the token that ends it."""
    endless = generator.generate(right.prompt, new_tokens=19, sampling=right.sampling, seed=right.seed)
    assert endless.tokens[:16] == list(right.tokens)
    long = replace(
        right,
        tokens=tuple(endless.tokens),
        stop=(),
        max_new_tokens=19,
        logprobs_root=logprobs_root([choice.logprob for choice in endless.choices]),
    )
    for found in checked(long, generator):
        assert found.wrong_stop and not found.is_right


@pytest.mark.parametrize("stop", [(), (7, STOP), (7,)])
def test_tokens_that_end_texts_are_the_models_whether_they_came_or_not(
    right: GenerationReceipt, generator: Generator, stop: tuple[int, ...]
) -> None:
    assert 7 not in right.tokens
    cut = told(generator, replace(right, tokens=right.tokens[:6], max_new_tokens=6))
    assert all(found.is_right for found in checked(cut, generator))
    assert all(found.wrong_stop for found in checked(replace(cut, stop=stop), generator))
