"""LoRA adapters on a language model of Hugging Face, trained on a text by `transformers.Trainer` in BF16.

    tiebreak job create scripts/fine_tuning/lora_task.py:task --set model=SmolLM2-135M-Instruct --out job

`model` is a folder with weights, configuration and tokenizer, as `huggingface-cli download
HuggingFaceTB/SmolLM2-135M-Instruct --local-dir SmolLM2-135M-Instruct` leaves it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
from roundlog import Task
from roundlog.capture import CaptureError
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

TEXT = Path(__file__).resolve().parents[2] / "docs" / "design.md"
BATCH, TOKENS = 2, 64
"""Rows in a step, and tokens in a row."""


def rows_of(model: Path, text: Path) -> list[dict[str, torch.Tensor]]:
    """A text as rows of TOKENS tokens, without the last ones if they do not fill a row."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The whole text is longer than what the model reads at a time; the rows are not.
    ids = torch.tensor(tokenizer(text.read_text(), verbose=False)["input_ids"])
    return [{"input_ids": row, "labels": row} for row in ids[: len(ids) // TOKENS * TOKENS].view(-1, TOKENS)]


def trainer_of(model: Path, rows: list[dict[str, torch.Tensor]], steps: int, **more: Any) -> Trainer:
    """A trainer as a script has it. more: further arguments of TrainingArguments."""
    torch.manual_seed(0)
    # transformers keeps the format of the weights, which is BF16; peft's adapters are FP32.
    base = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    arguments: dict[str, Any] = {
        "output_dir": "output",
        "bf16": True,
        "use_cpu": True,
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "lr_scheduler_type": "cosine",
        "optim": "adamw_torch",
        "save_steps": min(10, steps),
        "report_to": "none",
        "seed": 1,
    }
    arguments |= more
    return Trainer(model=peft.get_peft_model(base, lora), args=TrainingArguments(**arguments), train_dataset=rows)


def task(model: str, text: str = str(TEXT), steps: int = 40) -> Task:
    """The task of a folder with a model, a text file and a number of steps. Raises CaptureError if one is not there."""
    if not (Path(model) / "config.json").is_file():
        raise CaptureError(f"there is no folder {model} with a model: lora_task.py says how to fetch one")
    if not Path(text).is_file():
        raise CaptureError(f"there is no file {text}: check text")
    return Task.from_trainer(trainer_of(Path(model), rows_of(Path(model), Path(text)), steps))
