"""Likelihoods of texts behind prompts, by programs that another machine has captured, since PyTorch for AArch64
captures none. Nothing of lm-eval is needed for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from roundlog.capture.captured import model_tensors
from roundlog.generation import Generator
from roundlog.generation.step_program import StepProgram
from roundlog.program import Program, from_json, to_json
from torch import nn


def take_programs(room: Path) -> None:
    """Have all programs taken from a folder; those that are not there are captured, and kept there."""
    capture = StepProgram._capture

    def taken(made: StepProgram, module: nn.Module, tell: Callable[[float], None]) -> Program:
        path = room / f"{type(module).__name__} {list(module.get_buffer('logits').shape)}.json"
        if not path.exists():
            program = capture(made, module, tell)
            path.write_text(json.dumps([to_json(program).decode(), made._schedule.tolist()]))
            return program
        text, schedule = json.loads(path.read_text())
        program, own = from_json(text.encode()), model_tensors(module)
        made._schedule = torch.tensor(schedule, dtype=torch.float32)
        made.initial = {name: own[name].detach().clone().contiguous() for name in program.state_names}
        return program

    StepProgram._capture = taken  # type: ignore[method-assign]


def answer(plan: Path) -> None:
    """Print an answer a line: the hexadecimal sum of a text's log-probabilities, in FP64, and whether each token is the
    likeliest. plan: JSON of a model's folder, that of programs, and prompts with the texts behind them."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    folder, programs, asked = json.loads(plan.read_text())
    take_programs(Path(programs))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    generator = Generator(model, positions=128)
    for prompt, texts in asked:
        for told in generator.likelihoods_behind(prompt, texts):
            total = 0.0
            for one in told:
                total += one.logprob
            print(total.hex(), all(one.likeliest[0][0] == one.token for one in told), flush=True)


if __name__ == "__main__":
    import sys

    answer(Path(sys.argv[1]))
