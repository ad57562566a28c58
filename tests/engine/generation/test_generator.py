"""Text of a model outside a job: the bits of the job that generates it, in chunks of any size, and in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, generated_tokens
from roundlog.capture.huggingface import Sampling
from roundlog.generation import Choice, FinishReason, Generator
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer

from tests.engine.capture.test_generation import MODELS, NEW, by_transformers, model_of, prompts
from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")


def by_a_job(model: torch.nn.Module, given: Sequence[Sequence[int]], room: Path, **options: object) -> list[list[int]]:
    """Tokens behind each prompt. All texts of a job end at the same position."""
    job = Job.from_task(lambda: Task.from_causal_lm(model, given, new_tokens=NEW, **options))  # type: ignore[arg-type]
    Trainer(job, room).run()
    last = Run(job, room).newest(job.spec.intervals)[1]
    return generated_tokens(dict(zip(job.program.state_names, last, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_chunks_caches_and_passes_give_the_bits_of_a_job(name: str, tmp_path: Path) -> None:
    """In FP32, the tokens are those of `generate` as well; in BF16 its logits are other roundings."""
    dtype = torch.bfloat16 if name in ("llama", "gemma3") else torch.float32
    model, (prompt, other) = model_of(name, dtype), prompts(9, 4)
    wanted, together = by_a_job(model, [prompt, other], tmp_path)
    if dtype == torch.float32:
        assert (wanted, together) == tuple(by_transformers(model, one, 9 + NEW - len(one)) for one in (prompt, other))
    found = set[tuple[Choice, ...]]()
    for positions, chunk in ((15, 1), (16, 9), (32, 7)):
        generator = Generator(model, positions=positions, chunk=chunk)  # type: ignore[arg-type]
        text = generator.generate(prompt, new_tokens=NEW)
        assert text.finish_reason is FinishReason.LENGTH and text.tokens == wanted
        assert tuple(generator.right_choices(prompt, text.tokens)) == text.choices
        found.add(text.choices)
    assert len(found) == 1


@pytest.mark.slow
def test_choices_of_a_job_and_of_one_pass_are_drawn_alike(tmp_path: Path) -> None:
    model, (prompt,) = model_of("llama", torch.bfloat16), prompts(5)
    how = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}
    (wanted,) = by_a_job(model, [prompt], tmp_path, seed=3, **how)
    generator = Generator(model, positions=16, chunk=4)  # type: ignore[arg-type]
    text = generator.generate(prompt, new_tokens=NEW, sampling=Sampling(**how), seed=3)  # type: ignore[arg-type]
    assert text.tokens == wanted
    assert tuple(generator.right_choices(prompt, wanted, sampling=Sampling(**how), seed=3)) == text.choices  # type: ignore[arg-type]
    other = generator.generate(prompt, new_tokens=NEW, sampling=Sampling(**how), seed=4)  # type: ignore[arg-type]
    assert other.tokens != wanted


def test_a_text_ends_at_a_stop_token_which_it_has() -> None:
    model, (prompt,) = model_of("gpt2"), prompts(4)
    free = by_transformers(model, prompt, NEW)
    generator = Generator(model, positions=10)  # type: ignore[arg-type]
    text = generator.generate(prompt, new_tokens=NEW, stop=[96, free[2]])
    assert text.tokens == free[: free.index(free[2]) + 1] and text.finish_reason is FinishReason.STOP


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_branches_of_a_prompt_have_the_bits_of_whole_texts(name: str) -> None:
    """Over the ends of chunks, at the end of the cache, and where a branch has one token."""
    dtype = torch.bfloat16 if name in ("llama", "gemma3") else torch.float32
    model, texts = model_of(name, dtype), [[5], [9, 8, 7, 6, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [40]]
    for prompt in ([7], prompts(9)[0]):
        generator = Generator(model, positions=len(prompt) + 16, chunk=7)  # type: ignore[arg-type]
        whole = [generator.generate([*prompt, *text], new_tokens=1, likeliest=1, of_prompt=True) for text in texts]
        found = generator.likelihoods_behind(prompt, texts)
        assert found == [list(one.prompt_choices[len(prompt) - 1 :]) for one in whole]
    with pytest.raises(CaptureError, match="more than the 25 positions"):
        generator.likelihoods_behind(prompt, [*texts, [3]])


@pytest.mark.slow
def test_a_model_that_counts_positions_in_the_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a branch they are others than those of its text."""
    generator = Generator(model_of("llama"), positions=12, chunk=9)  # type: ignore[arg-type]
    step = generator.step
    monkeypatch.setattr(generator, "step", lambda tokens, positions, cache, branches=(): step(tokens, positions, cache))
    with pytest.raises(CaptureError, match="other logits with a static cache"):
        generator.try_model()


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "said"),
    [
        ([], 1, "a prompt has no tokens"),
        ([97], 1, "the token 97 is none of the model's 97"),
        ([1], 0, "0 new tokens are nothing to generate"),
        ([1] * 8, 3, "8 tokens and 3 new ones are more than the 10 positions of the cache: give more positions"),
    ],
)
def test_what_cannot_be_generated_is_refused(prompt: list[int], new_tokens: int, said: str) -> None:
    generator = Generator(model_of("llama"), positions=10)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=said):
        generator.generate(prompt, new_tokens=new_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [[5], [5, 6, 7, 8, 9, 10, 11, 12, 13]])
def test_a_model_whose_attention_is_cut_into_chunks_is_refused_whatever_the_prompt(prompt: list[int]) -> None:
    """Llama 4's: a prompt of one token, repeated, does not show it, and a check in one pass has to see it as well."""
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        intermediate_size_mlp=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        attention_chunk_size=4,
        max_position_embeddings=64,
    )
    model = transformers.Llama4ForCausalLM(config).eval()
    for work in ("generate", "right_choices"):
        generator = Generator(model, positions=20)
        with pytest.raises(CaptureError):
            if work == "generate":
                generator.generate(prompt, new_tokens=3)
            else:
                list(generator.right_choices(prompt, [1, 2, 3]))


def test_positions_that_depend_on_the_length_are_refused() -> None:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )
    with pytest.raises(CaptureError, match="scaled by the length of the text"):
        Generator(transformers.LlamaForCausalLM(config), positions=8)


def test_a_token_that_the_model_does_not_have_is_a_wrong_one() -> None:
    generator = Generator(model_of("llama"), positions=16)  # type: ignore[arg-type]
    right = generator.generate([4, 2], new_tokens=3)
    found = list(generator.right_choices([4, 2], [*right.tokens[:2], 1 << 30]))
    assert found == list(right.choices)


@pytest.mark.slow
def test_a_model_that_is_another_far_from_the_begin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From position 599 on it gives other logits than its programs."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(small_llama(50, inner=16, max_position_embeddings=1024)).eval()
    generator = Generator(model, positions=600, chunk=64)
    step = generator.step

    def other(tokens: Any, positions: Any, *more: Any) -> torch.Tensor:
        logits, first = step(tokens, positions, *more).clone(), positions[0]
        logits[0, max(599 - first, 0) :] += 1.0 if first + len(tokens[0]) > 599 else 0.0
        return logits

    monkeypatch.setattr(generator, "step", other)
    with pytest.raises(CaptureError, match="other logits with a static cache"):
        generator.try_model()
