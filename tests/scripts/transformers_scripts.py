"""Hugging Face's transformers

A `Trainer` becomes a task as it is; a model from a file is trained on; a language model generates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from roundlog import Task, load_checkpoint
from safetensors.torch import save_model

from tests.scripts.script_corpus import script
from tests.scripts.script_parts import task


def small_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=16, **size))


@script("Trainer of transformers", source="fine-tuning of a language model with transformers")
def trainer_of_transformers() -> Task:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        warmup_steps=1,
        bf16=True,
        use_cpu=True,
        report_to="none",
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(40, (16, 6))]
    return Task.from_trainer(Trainer(model=small_llama(), args=arguments, train_dataset=rows))


@script("A language model that generates", source="generate of transformers, with temperature, top_k and top_p")
def generated_text() -> Task:
    how = {"temperature": 0.8, "top_k": 8, "top_p": 0.9, "repetition_penalty": 1.1}
    return Task.from_causal_lm(small_llama(), [[3, 4, 5], [6, 7]], new_tokens=3, stop=[1], **how)


@script("A model from a safetensors file, with its first layers frozen", source="fine-tuning of a released model")
def fine_tuned() -> Task:
    model = small_llama()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(model, str(path))
        load_checkpoint(model, path)
    model.model.embed_tokens.requires_grad_(False)
    rows = torch.randint(40, (16, 6))
    return task(
        model,
        lambda m, batch: m(input_ids=batch["x"], labels=batch["x"]).loss,
        {"x": rows},
        optimizer=torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-3),
    )
