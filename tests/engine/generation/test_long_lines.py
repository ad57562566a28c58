"""Choice of a token from a large vocabulary, whose logits are ordered in parts: the tokens that whole lines give."""

from __future__ import annotations

import pytest
import torch
from roundlog.capture.huggingface import Sampling
from roundlog.capture.rules import reductions
from roundlog.generation import TokenSampler, sampler_numbers
from roundlog.generation.step_program import StepProgram

VOCABULARY, POSITIONS = 300, 4


def choices(how: Sampling, vocabulary: int, logits: torch.Tensor, draws: int) -> list[int]:
    """Tokens that are chosen by logits f32[n, V], each with so many seeds."""
    form = how.form(vocabulary)
    program = StepProgram(TokenSampler(form, vocabulary, POSITIONS))
    tokens = torch.tensor([[1, 2, 0, 0]])
    found = []
    for row in logits:
        given = {"buffer/logits": row[None], "buffer/tokens": tokens, "buffer/position": torch.tensor(1)}
        given |= sampler_numbers(how, form, 0, vocabulary)
        found += [int(program.run(given, {}, seed=seed, step=1)["buffer/chosen"]) for seed in range(draws)]
    return found


@pytest.mark.parametrize("how", [Sampling(temperature=0.7), Sampling(temperature=2.0, top_k=20, top_p=0.9)], ids=str)
def test_parts_give_the_tokens_of_whole_lines(how: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logits that are equal in many places, too."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(2, VOCABULARY, generator=generator) * 2
    logits = torch.cat([drawn, drawn.round(), torch.zeros(1, VOCABULARY)])
    whole = choices(how, VOCABULARY, logits, 8)
    # Parts of at least 64: of 300 logits there are several, and so there are of the candidates.
    monkeypatch.setattr(reductions, "MAX_COMPARISONS", 100 * VOCABULARY)
    assert choices(how, VOCABULARY, logits, 8) == whole
    assert len(set(whole)) > 10
