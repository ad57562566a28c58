"""Adapters of PEFT merged into weights: every element is the exact sum, rounded as it is defined; what is not followed
is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.generation import FolderError, merged_adapter

from tests.engine.generation.small_llama import small_llama

peft = pytest.importorskip("peft")


def model_of(dtype: torch.dtype = torch.bfloat16, *, tied: bool = False) -> Any:
    from transformers import LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(small_llama(40, 16, 24, 2, tie_word_embeddings=tied)).to(dtype)


def adapter(folder: Path, *, dtype: torch.dtype = torch.bfloat16, tied: bool = False, **settings: Any) -> Any:
    """A model, of which an adapter with random matrices was saved; as it is with the adapter."""
    how = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "down_proj"]} | settings
    adapted = peft.get_peft_model(model_of(dtype, tied=tied), peft.LoraConfig(task_type="CAUSAL_LM", **how))
    draws = torch.Generator().manual_seed(4)
    for name, tensor in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            tensor.data = torch.randn(tensor.shape, generator=draws).mul(0.1).to(tensor.dtype)
    adapted.save_pretrained(folder)
    return adapted


def exact(model: Any, adapted: Any, layer: str, scale: float) -> np.ndarray:
    """W + s (B A), each operation a number of FP32, by numbers of 80 bits."""
    state = {name: tensor.float().numpy() for name, tensor in adapted.state_dict().items()}
    a, b = (state[f"base_model.model.{layer}.lora_{one}.default.weight"].astype(np.longdouble) for one in "AB")
    product = (b @ a).astype(np.float32)
    scaled = (np.float32(scale).astype(np.longdouble) * product).astype(np.float32)
    base = model.state_dict()[f"{layer}.weight"].float().numpy()
    return (base.astype(np.longdouble) + scaled).astype(np.float32)


@pytest.mark.slow_but("settings0-dtype0", "settings2-dtype1")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "settings", [{}, {"use_rslora": True}, {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 2}}]
)
def test_a_merged_weight_is_the_exact_sum_rounded(tmp_path: Path, dtype: torch.dtype, settings: dict[str, Any]) -> None:
    adapted, model = adapter(tmp_path, dtype=dtype, **settings), model_of(dtype)
    found = merged_adapter(model, tmp_path)
    assert len(found.weights) == 4 and found.weights.keys() == found.largest_rounding.keys()
    for name, merged in found.weights.items():
        layer = name.removesuffix(".weight")
        rank, alpha = (4, 2) if "rank_pattern" in settings and "q_proj" in name else (3, 5)
        right = torch.from_numpy(
            exact(model, adapted, layer, alpha / (rank**0.5 if "use_rslora" in settings else rank))
        )
        assert merged.dtype == dtype and torch.equal(merged, right.to(dtype))
        assert found.largest_rounding[name] == float((right.to(dtype).double() - right.double()).abs().max())
    unloaded = adapted.merge_and_unload().state_dict()
    assert all(
        torch.allclose(merged.float(), unloaded[name].float(), atol=0.02) for name, merged in found.weights.items()
    )


def test_modules_that_an_adapter_brings_whole_take_the_places_of_the_models(tmp_path: Path) -> None:
    adapted = adapter(tmp_path, modules_to_save=["lm_head"])
    found = merged_adapter(model_of(), tmp_path)
    saved = adapted.state_dict()["base_model.model.lm_head.modules_to_save.default.weight"]
    assert torch.equal(found.weights["lm_head.weight"], saved) and "lm_head.weight" not in found.largest_rounding


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a tied head": ({"target_modules": ["lm_head"], "tied": True}, {}, "is tied to another weight"),
    "a tied module": ({"modules_to_save": ["lm_head"], "tied": True}, {}, "is tied to another weight"),
    "dora": ({"use_dora": True}, {}, "has use_dora True"),
    "bias": ({}, {"bias": "all"}, "has bias 'all'"),
    "another kind": ({}, {"peft_type": "IA3"}, "is of no LoRA adapter"),
    "another rank": ({}, {"r": 4}, "has rank 3, and the configuration r 4"),
    "no number": ({}, {"lora_alpha": "x"}, "lora_alpha 'x'"),
    "an expression": ({}, {"alpha_pattern": {"q_proj|x": 2}}, "is an expression"),
    "an embedding": ({"target_modules": ["embed_tokens"]}, {}, "give its own base model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    made, changed, said = REFUSED[name]
    adapter(tmp_path, **made)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(FolderError, match=said):
        merged_adapter(model_of(tied=made.get("tied", False)), tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    adapter(tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for data in (b"", whole[:100], whole[:-8]):
        weights.write_bytes(data)
        with pytest.raises(FolderError, match="is no file of safetensors"):
            merged_adapter(model_of(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(FolderError, match="get the adapter again"):
        merged_adapter(model_of(), tmp_path)
