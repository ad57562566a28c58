"""The choice of a token: by numbers that are read, from large vocabularies, and by bisection in place of sorting."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from roundlog.capture.huggingface import Sampling, SamplingForm, generation_task
from roundlog.capture.huggingface.generation_task import likeliest_weights
from roundlog.capture.rules import reductions
from roundlog.generation import Generator, TokenSampler, load_model, sampler_numbers
from roundlog.generation.step_program import StepProgram

pytest.importorskip("transformers")

CONFORMANCE = Path(__file__).resolve().parents[3] / "conformance"
VOCABULARY, POSITIONS = 40, 6

CHOICES = {
    "greedy": [Sampling(), Sampling(repetition_penalty=1.3), Sampling(repetition_penalty=0.7)],
    "all": [Sampling(temperature=0.3), Sampling(temperature=1.0), Sampling(temperature=7.1)],
    "some": [
        Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1),
        Sampling(temperature=1.7, top_p=0.31, repetition_penalty=1.9),
        Sampling(temperature=1e-30, top_p=2.0**-100, repetition_penalty=1e-30),
    ],
    "few": [Sampling(temperature=0.8, top_k=9, top_p=0.9), Sampling(temperature=2.3, top_k=9, top_p=0.4)],
}
TEXT = torch.tensor([[3, 1, 4, 1, 0, 0]])


def drawn(program: StepProgram, form: SamplingForm, how: Sampling, logits: torch.Tensor) -> list[int]:
    """Tokens that are chosen by each of logits f32[n, V], each with four seeds."""
    given = {"buffer/tokens": TEXT, "buffer/position": torch.tensor(3)}
    given |= sampler_numbers(how, form, 0, logits.shape[-1])
    return [
        int(program.run(given | {"buffer/logits": row[None]}, {}, seed=seed, step=3)["buffer/chosen"])
        for row in logits
        for seed in range(4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("bisects", [False, True], ids=["sorted", "bisected"])
@pytest.mark.parametrize("name", CHOICES)
def test_numbers_that_are_read_choose_as_constants_do(
    name: str, bisects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bisects:
        monkeypatch.setattr(generation_task, "_MOST_COMPARISONS", 0)
    logits = 3 * torch.randn(12, VOCABULARY, generator=torch.Generator().manual_seed(5))
    logits[6:] = logits[6:].round()
    forms = {how: how.form(VOCABULARY) for how in CHOICES[name]}
    programs = {form: StepProgram(TokenSampler(form, VOCABULARY, POSITIONS)) for form in set(forms.values())}
    assert len(programs) == len({how.repetition_penalty == 1 for how in CHOICES[name]}), "one for each form"
    found = [drawn(programs[form], form, how, logits) for how, form in forms.items()]
    for (how, form), tokens in zip(forms.items(), found, strict=True):
        assert "buffer/temperature" in programs[form].program.state_names
        constant = replace(form, constants=how)
        constants = StepProgram(TokenSampler(constant, VOCABULARY, POSITIONS))
        assert drawn(constants, constant, how, logits) == tokens
    assert len({tuple(tokens) for tokens in found}) == len(found), "each has tokens of its own"


def test_a_generator_captures_a_kind_once() -> None:
    loaded = load_model(CONFORMANCE / "models" / "llama")
    generator = Generator(loaded.model, positions=12, chunk=1)
    logits = torch.randn(1, 257, generator=torch.Generator().manual_seed(1))
    for temperature in (0.5, 0.8, 1.1):
        generator.choose(logits, [5], Sampling(temperature=temperature), 0, 1)
    generator.choose(logits, [5], Sampling(temperature=0.8, repetition_penalty=1.1), 0, 1)
    assert len(generator._samplers) == 2


LINE = 300
"""A vocabulary that is ordered in several parts, where parts are made small."""


def choices(how: Sampling, vocabulary: int, logits: torch.Tensor, draws: int) -> list[int]:
    """Tokens that are chosen by logits f32[n, V], each with so many seeds."""
    form = how.form(vocabulary)
    program = StepProgram(TokenSampler(form, vocabulary, 4))
    tokens = torch.tensor([[1, 2, 0, 0]])
    found = []
    for row in logits:
        given = {"buffer/logits": row[None], "buffer/tokens": tokens, "buffer/position": torch.tensor(1)}
        given |= sampler_numbers(how, form, 0, logits.shape[-1])
        found += [int(program.run(given, {}, seed=seed, step=1)["buffer/chosen"]) for seed in range(draws)]
    return found


@pytest.mark.slow_but("*top_k=20*")
@pytest.mark.parametrize("how", [Sampling(temperature=0.7), Sampling(temperature=2.0, top_k=20, top_p=0.9)], ids=str)
def test_parts_give_the_tokens_of_whole_lines(how: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logits that are equal in many places, too."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(2, LINE, generator=generator) * 2
    logits = torch.cat([drawn, drawn.round(), torch.zeros(1, LINE)])
    whole = choices(how, LINE, logits, 8)
    # Parts of at least 64: of 300 logits there are several, and so there are of the candidates.
    monkeypatch.setattr(reductions, "MAX_COMPARISONS", 100 * LINE)
    assert choices(how, LINE, logits, 8) == whole
    assert len(set(whole)) > 10


MANY = 20_000
"""A vocabulary too large for tokens to be sorted."""


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
