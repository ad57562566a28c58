"""Adapters of `peft` (LoRA) on a frozen base, trained through `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest
import roundlog
import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from safetensors.torch import load_file

from tests.engine.capture.random_trainers import ADAPTED, Case
from tests.engine.capture.test_trainer_seam import case_of, difference

peft = pytest.importorskip("peft")


def adapted(model: str, dropout: float = 0.0) -> Case:
    case = case_of(model, optim="adamw_torch", adam_epsilon=1e-3, learning_rate=1e-2, max_grad_norm=0.5)
    case.dropout = dropout
    return case


@pytest.mark.slow_but("LoRA")
@pytest.mark.parametrize("model", ADAPTED)
def test_adapters_take_the_steps_of_train(model: str, tmp_path: Path) -> None:
    case = adapted(model, 0.2 if model == "LoRA" else 0.0)
    assert difference(case, Task.from_trainer(case.trainer(tmp_path)), tmp_path) is None


@pytest.mark.slow
def test_the_base_stays_as_it_was_and_the_adapters_come_out(tmp_path: Path) -> None:
    task = Task.from_trainer(adapted("LoRA").trainer(tmp_path))
    frozen = {name for name, one in task.model.named_parameters() if not one.requires_grad}
    job = Job.from_task(lambda: task)
    slots = [name for name in job.program.states if name.startswith("slot/")]
    assert len(slots) == 2 * 2 and all("lora_" in name for name in slots), "two moments of A and of B"
    # A checkpoint holds the base whole.
    final = load_file(Trainer(job, tmp_path / "run").run().final_state)
    for name in job.initial:
        kept = torch.equal(final[name], job.initial[name])
        assert kept == (name.removeprefix("parameter/") in frozen), name
    model = adapted("LoRA").trainer(tmp_path).model
    roundlog.load_into(model, tmp_path / "run")
    for name, value in model.named_parameters():
        assert torch.equal(value, final[f"parameter/{name}"]), name

    # Weights that peft saves of it, and those that it merges, compute as it does.
    words = task.dataset["input_ids"][:3]
    with torch.no_grad():
        wanted = model.eval()(input_ids=words).logits
        model.save_pretrained(tmp_path / "adapter")
        base = adapted("LoRA").trainer(tmp_path).model.unload()
        read = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        assert torch.equal(read(input_ids=words).logits, wanted)
        merged = model.merge_and_unload()
        torch.testing.assert_close(merged(input_ids=words).logits, wanted)
