"""Choices of tokens of one kind have one program, which reads their numbers: the tokens that constants give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog import Job, Task
from roundlog.capture.huggingface import Sampling, SamplingForm, generation_task
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
    given |= sampler_numbers(how, form, 0, logits.shape[1])
    return [
        int(program.run(given | {"buffer/logits": row[None]}, {}, seed=seed, step=3)["buffer/chosen"])
        for row in logits
        for seed in range(4)
    ]


@pytest.mark.slow_but("few-sorted")
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


def test_a_generator_captures_a_kind_once_and_jobs_have_constants() -> None:
    """The program of the job that is kept in conformance/ is what it was."""
    loaded = load_model(CONFORMANCE / "models" / "llama")
    generator = Generator(loaded.model, positions=12, chunk=1)
    logits = torch.randn(1, 257, generator=torch.Generator().manual_seed(1))
    for temperature in (0.5, 0.8, 1.1):
        generator.choose(logits, [5], Sampling(temperature=temperature), 0, 1)
    generator.choose(logits, [5], Sampling(temperature=0.8, repetition_penalty=1.1), 0, 1)
    assert len(generator._samplers) == 2
    kept = Job.read(CONFORMANCE / "jobs" / "llama")
    prompt = kept.initial["buffer/tokens"][0, :9].tolist()
    how = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
    task = Task.from_causal_lm(loaded.model, [prompt], new_tokens=12, stop=loaded.stop, seed=19, interval=10, **how)  # type: ignore[arg-type]
    assert Job.from_task(lambda: task).spec == kept.spec
