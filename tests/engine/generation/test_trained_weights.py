"""Weights out of a trained state: adapters merged to the bit, and states that no model follows from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Task, capture
from roundlog.generation import FolderError, set_weights, trained_weights
from roundlog.generation.trained_weights import merged_weight
from roundlog.program import Program

from tests.engine.generation.small_gguf import small_model

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

RANK, ALPHA = 3, 5
LAYER = "base_model.model.model.layers.1.self_attn.q_proj"


def adapted(room: Path, alpha: int = ALPHA) -> tuple[Program, dict[str, torch.Tensor]]:
    """A step of LoRA on a model in BF16, and a state of it whose adapters are drawn."""
    torch.manual_seed(0)
    lora = peft.LoraConfig(r=RANK, lora_alpha=alpha, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(small_model().to(torch.bfloat16), lora)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(250, (4, 8))]
    arguments: dict[str, Any] = {"output_dir": str(room), "bf16": True, "use_cpu": True, "max_steps": 1}
    arguments |= {"per_device_train_batch_size": 2, "optim": "adamw_torch", "report_to": "none"}
    trainer = transformers.Trainer(model=model, args=transformers.TrainingArguments(**arguments), train_dataset=rows)
    captured = capture(lambda: Task.from_trainer(trainer))
    states = dict(captured.states)
    for name, tensor in states.items():
        if "lora_B" in name and name.startswith("parameter/"):
            states[name] = torch.randn(tensor.shape) / 8
    return captured.program, states


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[str, torch.Tensor]]:
    return adapted(tmp_path_factory.mktemp("adapted"))


def test_adapters_are_merged_as_those_in_files_are(trained: tuple[Program, dict[str, torch.Tensor]]) -> None:
    program, states = trained
    weights = trained_weights(program, states)
    model = small_model().to(torch.bfloat16)
    assert weights.keys() == model.state_dict().keys()
    pair = [states[f"parameter/{LAYER}.lora_{one}.default.weight"] for one in "BA"]
    base, found = states[f"parameter/{LAYER}.base_layer.weight"], weights["model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(found, merged_weight(base, *pair, ALPHA / RANK)[0]) and not torch.equal(found, base)
    others = [name for name in weights if "q_proj" not in name and "v_proj" not in name]
    assert all(torch.equal(weights[name], states[f"parameter/base_model.model.{name}"]) for name in others)
    set_weights(model, weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def renamed(program: Program, states: dict[str, torch.Tensor], old: str, new: str) -> tuple[Program, dict[str, Any]]:
    names = tuple(name.replace(old, new) for name in program.state_names)
    assert names != program.state_names
    return replace(program, state_names=names), dict(zip(names, states.values(), strict=True))


REFUSED = {
    "two adapters": (f"{LAYER[:-6]}k_proj.weight", f"{LAYER}.lora_A.second.weight", "has several adapters"),
    "half an adapter": (f"{LAYER}.lora_A.default.weight", "another.weight", "has half an adapter"),
    "another kind": ("lora_A.default.weight", "lora_magnitude_vector.default.weight", "is not followed"),
    "no layer": (f"{LAYER}.base_layer.weight", "another.weight", "has no linear layer under it"),
    "a name twice": ("base_model.model.lm_head.weight", f"base_model.model.{LAYER}.weight", None),
    "the other way round": ("lora_A", "lora_X", "is not followed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_no_model_follows_from_are_refused(
    trained: tuple[Program, dict[str, torch.Tensor]], name: str
) -> None:
    old, new, said = REFUSED[name]
    found = renamed(*trained, old, new)
    if said is None:  # no adapter's, but none that the model has
        with pytest.raises(FolderError, match="which the model has not"):
            set_weights(small_model(), trained_weights(*found))
        return
    with pytest.raises(FolderError, match=said):
        trained_weights(*found)


def test_weights_of_another_model_are_refused(trained: tuple[Program, dict[str, torch.Tensor]]) -> None:
    weights = trained_weights(*trained)
    lacking = {name: one for name, one in weights.items() if name != "model.norm.weight"}
    wide = weights | {"model.norm.weight": torch.zeros(33, dtype=torch.bfloat16)}
    mixed = weights | {"model.norm.weight": torch.zeros(32)}
    for given, said in ((lacking, "lacks model.norm"), (wide, "another shape"), (mixed, "several formats")):
        with pytest.raises(FolderError, match=said):
            set_weights(small_model(), given)
