"""Several texts at once: each has the bits that it has alone, whenever it begins and whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.capture.huggingface import Sampling
from roundlog.generation import BatchGenerator, Generator, RequestDroppedError, TextRequest

from tests.engine.capture.test_generation import model_of, prompts

pytest.importorskip("transformers")

POSITIONS, ROWS = 24, 3
HOWS = [Sampling(), Sampling(temperature=0.9, top_k=7), Sampling(temperature=1.5, top_p=0.8, repetition_penalty=1.3)]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return model_of("llama", torch.bfloat16)


@pytest.fixture(scope="module")
def generator(model: torch.nn.Module) -> Generator:
    return Generator(model, positions=POSITIONS, chunk=8)  # type: ignore[arg-type]


@pytest.fixture
def batch(generator: Generator) -> Iterator[BatchGenerator]:
    made = BatchGenerator(generator, ROWS)
    yield made
    made.close()


def requests() -> list[TextRequest]:
    return [
        TextRequest(prompt, new_tokens=3 + 2 * number % 7, sampling=HOWS[number % 3], seed=number, stop=[5])
        for number, prompt in enumerate(prompts(1, 9, 4, 12, 2))
    ]


@pytest.mark.slow
def test_each_text_has_the_bits_that_it_has_alone(model: torch.nn.Module, batch: BatchGenerator) -> None:
    """More texts than rows, of other lengths and choices, each told token by token."""
    told: list[list[int]] = [[] for _ in requests()]
    asked = requests()
    for heard, request in zip(told, asked, strict=True):
        request.tell = lambda choice, heard=heard: heard.append(choice.token)  # type: ignore[misc]
        batch.submit(request)
    found = [request.result.result(timeout=120) for request in asked]
    alone = Generator(model, positions=POSITIONS + 5, chunk=3)  # type: ignore[arg-type]
    for one, text, heard in zip(asked, found, told, strict=True):
        wanted = alone.generate(
            one.prompt, new_tokens=one.new_tokens, sampling=one.sampling, stop=one.stop, seed=one.seed
        )
        assert text == wanted and heard == text.tokens
        right = alone.right_choices(one.prompt, text.tokens, sampling=one.sampling, seed=one.seed)
        assert tuple(right) == text.choices


def test_a_text_that_is_given_up_or_fails_is_no_matter_of_the_others(batch: BatchGenerator) -> None:
    given_up, fails, stays = (TextRequest([7, number], new_tokens=12) for number in (1, 2, 3))
    given_up.tell = lambda choice: given_up.dropped.set()

    def fail(choice: object) -> None:
        raise BrokenPipeError

    fails.tell = fail
    for request in (given_up, fails, stays):
        batch.submit(request)
    assert len(stays.result.result(timeout=60).tokens) == 12
    with pytest.raises(RequestDroppedError):
        given_up.result.result(timeout=60)
    with pytest.raises(BrokenPipeError):
        fails.result.result(timeout=60)


def test_a_text_that_is_not_finite_ends_alone(
    generator: Generator, batch: BatchGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token whose embedding is no number, in a row beside others."""
    wanted = generator.generate([4, 2], new_tokens=6)
    reader = generator._readers[ROWS, 1]
    name = "parameter/model.model.embed_tokens.weight"
    weights = reader.initial[name].clone()
    bad = next(token for token in range(5, 97) if token not in wanted.tokens)
    weights[bad] = float("nan")
    for one in generator._readers.values():
        monkeypatch.setitem(one.initial, name, weights)
    # Only the text itself comes to that token: its prompt is read without it.
    asked = [TextRequest([4, 2], new_tokens=6), TextRequest([9, 9], new_tokens=6)]
    seen = threading.Event()

    def turn(choice: object) -> None:
        row = next(row for row in batch._rows if row is None or row.request is asked[1])
        if row is not None and not seen.is_set():
            row.tokens[-1] = bad
            seen.set()

    asked[1].tell = turn
    for request in asked:
        batch.submit(request)
    assert asked[0].result.result(timeout=60).tokens == wanted.tokens
    assert seen.is_set() and asked[1].result.exception(timeout=60) is not None


def test_what_cannot_be_generated_is_refused_at_once(batch: BatchGenerator) -> None:
    with pytest.raises(CaptureError, match="are more than the 24 positions of the cache"):
        batch.submit(TextRequest([1] * 20, new_tokens=5))


def test_requests_end_when_it_is_closed(generator: Generator) -> None:
    batch = BatchGenerator(generator, 1)
    began = threading.Event()
    first, waiting = (TextRequest([1, number], new_tokens=20) for number in (2, 3))
    first.tell = lambda choice: began.set()
    batch.submit(first)
    batch.submit(waiting)
    assert began.wait(60)
    batch.close()
    with pytest.raises(RequestDroppedError):
        first.result.result(timeout=10)
    with pytest.raises(CancelledError):
        waiting.result.result(timeout=10)
    with pytest.raises(RuntimeError, match="it is closed"):
        batch.submit(TextRequest([1], new_tokens=1))
