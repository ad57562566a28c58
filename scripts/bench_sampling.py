"""The cost of choosing a token: seconds a token and of the capture, by size of the vocabulary and by how it is drawn.

    .venv/bin/python scripts/bench_sampling.py [--vocabulary 49152 151936] [--rounds 7] [--json FILE]

Logits are drawn from a normal distribution of deviation 3. Each choice is of its own seed; the first one, which
compiles kernels, is not counted; printed are medians. Vocabularies are by default those of SmolLM2 and Qwen2.5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from roundlog.capture.huggingface import Sampling
from roundlog.generation import TokenSampler, sampler_numbers
from roundlog.generation.step_program import StepProgram

SETTINGS = {
    "greedy": Sampling(),
    "of all": Sampling(temperature=0.8),
    "top_k 50": Sampling(temperature=0.8, top_k=50),
    "top_k 1000": Sampling(temperature=0.8, top_k=1000),
    "top_p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "top_p 0.9, penalty 1.1": Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1),
}
POSITIONS = 128


def measured(how: Sampling, logits: torch.Tensor, rounds: int) -> dict[str, float]:
    """Seconds of a capture, and of one choice by logits f32[1, V]."""
    form, began = how.form(logits.shape[-1]), time.perf_counter()
    program = StepProgram(TokenSampler(form, logits.shape[-1], POSITIONS))
    capture, seconds = time.perf_counter() - began, []
    given = {
        "buffer/logits": logits,
        "buffer/tokens": torch.zeros(1, POSITIONS, dtype=torch.int64),
        "buffer/position": torch.tensor(1),
        **sampler_numbers(how, form),
    }
    for seed in range(rounds + 1):
        began = time.perf_counter()
        program.run(given, {}, seed=seed, step=1)
        seconds.append(time.perf_counter() - began)
    told = {"capture, s": round(capture, 2), "a token, ms": round(1000 * statistics.median(seconds[1:]), 1)}
    return told | {"operators": len(program.program.nodes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[49_152, 151_936])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    told: dict[str, dict[str, dict[str, float]]] = {}
    draw = torch.Generator().manual_seed(3)
    for size in given.vocabulary:
        logits = 3 * torch.randn(1, size, generator=draw)
        for name, how in SETTINGS.items():
            found = measured(how, logits, given.rounds)
            told.setdefault(str(size), {})[name] = found
            print(
                f"{size:>9,}  {name:<24}" + "".join(f"  {what} {value:g}" for what, value in found.items()), flush=True
            )
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
