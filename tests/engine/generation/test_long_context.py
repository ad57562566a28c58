"""A long context: the memory of trying a model does not grow by a vocabulary for every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.generation import Generator

from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")

POSITIONS, VOCABULARY = 600, 50


def model(**more: Any) -> Any:
    torch.manual_seed(1)
    config = small_llama(VOCABULARY, inner=16, max_position_embeddings=1024, **more)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("place", [300, POSITIONS - 1])
def test_a_model_that_is_another_far_from_the_begin_is_refused(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From this place on it gives other logits than its programs."""
    generator = Generator(model(), positions=POSITIONS, chunk=64)
    step = generator.step

    def other(tokens: Any, positions: Any, cache: Any) -> torch.Tensor:
        logits = step(tokens, positions, cache).clone()
        first = positions[0]
        logits[0, max(place - first, 0) :] += 1.0 if first + len(tokens[0]) > place else 0.0
        return logits

    monkeypatch.setattr(generator, "step", other)
    with pytest.raises(CaptureError, match="other logits with a static cache"):
        generator.try_model()
