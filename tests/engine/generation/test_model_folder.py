"""Folders with models: receipts are bound to every weight, saved buffers too, and what is lacking is not made up."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from roundlog.capture.huggingface import Sampling
from roundlog.generation import FolderError, Generator, check_text, load_model, make_receipt, other_model
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

WORDS = 40
BUFFER = "model.layers.0.mlp.gate.e_score_correction_bias"
"""A buffer that is saved with the weights: it decides which expert reads a token."""


def byte_words() -> object:
    """A tokenizer with a token for each of 40 words, the first of which ends a text."""
    from tokenizers import Tokenizer, models

    plain = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w1"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w0")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of two experts, with a buffer, saved with a tokenizer and two tokens that end a text."""
    folder = tmp_path_factory.mktemp("experts") / "model"
    torch.manual_seed(7)
    config = transformers.Glm4MoeConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=0,
        max_position_embeddings=64,
        initializer_range=0.5,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = transformers.Glm4MoeForCausalLM(config)
    model.generation_config.eos_token_id = [3, 1]
    model.save_pretrained(folder)
    byte_words().save_pretrained(folder)  # type: ignore[attr-defined]
    assert BUFFER in load_file(folder / "model.safetensors") and BUFFER in dict(model.named_buffers())
    return folder


def with_weights(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A copy of a folder with other weights."""
    shutil.copytree(folder, to)
    states = load_file(to / "model.safetensors")
    change(states)
    save_file(states, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.slow
def test_a_changed_buffer_is_another_model(saved: Path, tmp_path: Path) -> None:
    """Of the last bit, too, which changes no token here; and of more, which does."""
    loaded = load_model(saved)
    generator = Generator(loaded.model, positions=10, chunk=1)
    how = Sampling(temperature=1.0)
    prompt = [5, 9, 2]
    text = generator.generate(prompt, new_tokens=5, sampling=how, seed=1)
    receipt = make_receipt(
        *(loaded, generator, prompt, text), sampling=how, seed=1, max_new_tokens=len(text.tokens), tiebreak_version="0"
    )
    assert other_model(receipt.model, load_model(saved)) is None
    for name, bias in (("last bit", torch.tensor([0.0, 2.0**-149])), ("other expert", torch.tensor([-9.0, 9.0]))):
        other = load_model(
            with_weights(saved, tmp_path / name, lambda states, bias=bias: states.update({BUFFER: bias}))
        )
        assert torch.equal(other.model.state_dict()[BUFFER], bias)
        assert other_model(receipt.model, other) == "model_weight_hash"
    assert not check_text(receipt, Generator(other.model, positions=10, chunk=1), stop=other.stop).is_right


@pytest.mark.parametrize("name", [BUFFER, "model.norm.weight", "lm_head.weight"])
def test_a_weight_that_is_missing_or_of_another_shape_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    """And is not filled with zeros, or random numbers, by which two readers would have two models."""
    lacking = with_weights(saved, tmp_path / "lacking", lambda states: states.pop(name))
    longer = with_weights(
        saved, tmp_path / "longer", lambda states: states.update({name: states[name].repeat_interleave(2, 0)})
    )
    for folder in (lacking, longer):
        with pytest.raises(FolderError) as refusal:
            load_model(folder)
        assert re.search(f"weights.* lack {re.escape(name)}, or have it in another shape", str(refusal.value))


def test_a_tied_weight_is_not_missing(saved: Path, tmp_path: Path) -> None:
    folder = with_weights(saved, tmp_path / "tied", lambda states: states.pop("lm_head.weight"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    states = load_model(folder).model.state_dict()
    assert torch.equal(states["lm_head.weight"], states["model.embed_tokens.weight"])


def test_texts_end_at_the_tokens_of_model_and_tokenizer(saved: Path, tmp_path: Path) -> None:
    assert load_model(saved).stop == (0, 1, 3)
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": WORDS}))
    with pytest.raises(FolderError, match=f"the eos_token_id {WORDS} is none of the model's {WORDS} tokens"):
        load_model(folder)
