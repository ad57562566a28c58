"""Text of a model outside a job: the bits of the job that generates it, in chunks of any size, and in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task, generated_tokens
from roundlog.generation.generator import Choice, FinishReason, Generator
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer

from tests.engine.capture.test_generation import MODELS, NEW, model_of, prompts

transformers = pytest.importorskip("transformers")


def by_a_job(model: torch.nn.Module, prompt: Sequence[int], room: Path, **options: object) -> list[int]:
    job = Job.from_task(Task.from_causal_lm(model, [prompt], new_tokens=NEW, **options))  # type: ignore[arg-type]
    Trainer(job, room).run()
    last = Run(job, room).newest(job.spec.intervals)[1]
    (tokens,) = generated_tokens(dict(zip(job.program.state_names, last, strict=True)))
    return tokens


@pytest.mark.slow_but("llama-bf16", "gpt2-*", "mixtral-bf16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_chunks_caches_and_passes_give_the_bits_of_a_job(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, (prompt,) = model_of(name, dtype), prompts(9)
    wanted = by_a_job(model, prompt, tmp_path)
    found = set[tuple[Choice, ...]]()
    for positions, chunk in ((15, 1), (15, 7), (16, 9), (32, 32)):
        generator = Generator(model, positions=positions, chunk=chunk)  # type: ignore[arg-type]
        text = generator.generate(prompt, new_tokens=NEW)
        assert text.finish_reason is FinishReason.LENGTH and text.tokens == wanted
        assert tuple(generator.right_choices(prompt, text.tokens)) == text.choices
        found.add(text.choices)
    assert len(found) == 1
