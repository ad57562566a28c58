"""A tiny language model whose weights are a formula, so that receipts of its texts hold for ever."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from roundlog.capture import portable
from roundlog.generation import ModelIdentity
from roundlog.generation.model_folder import weight_root

from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")

WORDS = 61


def formula_model(dtype: torch.dtype) -> Any:
    """A Llama with weights in thirty-seconds, from -1 to 1: numbers that every format has."""
    config = small_llama(
        WORDS,
        layers=2,
        max_position_embeddings=64,
        rope_theta=10_000.0,
        rms_norm_eps=2.0**-20,
        tie_word_embeddings=False,
    )
    # The frequencies of positions are a table that the model computes.
    with portable():
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # A linear congruential generator (Knuth) for each name.
            state, numbers = zlib.crc32(name.encode()), []
            for _ in range(weight.numel()):
                state = (state * 1664525 + 1013904223) % (1 << 32)
                numbers.append(((state >> 26) - 32) / 32)
            weight.copy_(torch.tensor(numbers).reshape(weight.shape))
    return model.eval().to(dtype)


def formula_identity(model: Any) -> ModelIdentity:
    """The identity of such a model, which has no files."""
    return ModelIdentity(
        name="formula",
        revision="1",
        model_weight_hash=weight_root(model),
        config_hash=bytes(range(32)),
        tokenizer_hash=bytes(range(32, 64)),
    )
