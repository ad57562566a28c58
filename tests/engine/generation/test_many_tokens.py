"""The likeliest tokens of a large vocabulary, found without sorting: those that sorting gives, ties included."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog import Job, Task, Trainer
from roundlog.capture import generated_tokens
from roundlog.capture.huggingface import Sampling, generation_task
from roundlog.capture.huggingface.generation_task import likeliest_weights
from roundlog.generation import Generator
from roundlog.training.run import Run

from tests.engine.generation.test_long_lines import choices

MANY = 20_000
"""A vocabulary too large for tokens to be sorted."""

TINY: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}


def by_sorting(weights: torch.Tensor, count: int, share: float) -> list[int]:
    """The likeliest of weights [V], by exact sums: a token is kept if those before it have less than the share."""
    order = sorted(range(len(weights)), key=lambda at: (-float(weights[at]), at))[:count]
    wanted = sum((Fraction(float(weights[at])) for at in order), Fraction(0)) * Fraction(share)
    kept, before = list[int](), Fraction(0)
    for at in order:
        if before >= wanted:
            break
        kept.append(at)
        before += Fraction(float(weights[at]))
    return sorted(kept)


@pytest.mark.parametrize("share", [2.0**-30, 0.5, 0.96875, 1])
@pytest.mark.parametrize("count", [1, 37, 300])
def test_bisection_keeps_what_sorting_keeps(count: int, share: float) -> None:
    """Of logits that are equal in many places, far apart, and all equal. Weights are powers of 2, so that sums in FP64
    are nearly exact."""
    draw = torch.Generator().manual_seed(count)
    normal = torch.randn(300, generator=draw, dtype=torch.float64)
    for logits in (
        normal,
        normal.round(),
        normal * 12,
        torch.zeros(300),
        normal.sign(),
        torch.cat([normal[:299], 9 + normal[:1]]),
    ):
        exact = (logits / torch.log(torch.tensor(2.0, dtype=torch.float64))).round()
        logits = (exact - exact.max()) * torch.log(torch.tensor(2.0, dtype=torch.float64))
        kept = likeliest_weights(logits[None], count if count < 300 else None, share if share < 1 else None)[0]
        weights = torch.exp2(exact - exact.max())
        assert torch.nonzero(kept)[:, 0].tolist() == by_sorting(weights, count, share)


def test_neighbouring_weights_are_told_apart() -> None:
    """The last bit of a fraction decides."""
    for low in (1.0, 2.0**-20, 2.0**-100):
        for at in range(1, 4):
            weights = torch.tensor([1.0, *(low * (1 - 2.0**-24 * k) for k in range(1, 4))])
            kept = generation_task._fewest(weights[None], torch.ones(1, 4), torch.full((1, 1), float(at)))[0]
            assert kept.tolist() == [place < at for place in range(4)]


@pytest.mark.slow
def test_a_large_vocabulary_is_drawn_by_its_shares() -> None:
    """Two tokens have 0.6 and 0.3 of what counts, and 20,000 others so little each that they are beyond 0.9."""
    logits = torch.full((1, MANY), -9.0)
    logits[0, 4321], logits[0, 17] = 7.0, 7.0 - torch.tensor(2.0).log()
    found = choices(Sampling(temperature=1.0, top_p=0.9), MANY, logits, 200)
    assert set(found) == {17, 4321} and 100 < found.count(4321) < 165
    equal = choices(Sampling(temperature=1.0, top_p=0.001), MANY, torch.zeros(1, MANY), 60)
    assert set(equal) <= set(range(20)) and len(set(equal)) > 14


@pytest.mark.slow
def test_a_job_a_text_and_its_check_choose_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.LlamaConfig(**TINY | {"vocab_size": MANY, "initializer_range": 1.0})
    model, prompt, how = transformers.LlamaForCausalLM(config).eval(), [5, 7], {"temperature": 0.9, "top_p": 0.95}
    job = Job.from_task(lambda: Task.from_causal_lm(model, [prompt], new_tokens=4, seed=3, **how))  # type: ignore[arg-type]
    Trainer(job, tmp_path / "run").run()
    last = Run(job, tmp_path / "run").newest(job.spec.intervals)[1]
    (tokens,) = generated_tokens(dict(zip(job.program.state_names, last, strict=True)))
    generator = Generator(model, positions=6, chunk=3)
    text = generator.generate(prompt, new_tokens=4, sampling=Sampling(**how), seed=3)
    assert text.tokens == tokens
    assert tuple(generator.right_choices(prompt, tokens, sampling=Sampling(**how), seed=3)) == text.choices
