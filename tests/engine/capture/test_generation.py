"""Text by causal language models as jobs: the tokens of `generate`, one root on every machine, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError, Task, generated_tokens
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer

transformers = pytest.importorskip("transformers")

VOCABULARY, NEW = 97, 6
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, head_dim=8)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE, sliding_window=32)),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=32)
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**SHAPE, num_local_experts=4)),
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval().to(dtype)


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def run(task: Task, room: Path) -> tuple[list[list[int]], Job]:
    job = Job.from_task(lambda: task)
    trained = Trainer(job, room).run()
    assert Auditor(job, room / "audit").run().state_roots == trained.state_roots
    last = Run(job, room).newest(job.spec.intervals)[1]
    return generated_tokens(dict(zip(job.program.state_names, last, strict=True))), job


def by_transformers(model: torch.nn.Module, prompt: Sequence[int], count: int, **options: object) -> list[int]:
    found = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None, **options
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.slow
def test_a_repetition_penalty_is_that_of_generate(tmp_path: Path) -> None:
    model, given = model_of("llama"), prompts(5)
    found, _ = run(Task.from_causal_lm(model, given, new_tokens=NEW, repetition_penalty=0.1), tmp_path)
    assert found == [by_transformers(model, given[0], NEW, repetition_penalty=0.1)]
    assert found != [by_transformers(model, given[0], NEW)]


@pytest.mark.slow
def test_a_sequence_ends_at_a_stop_token_and_others_go_on(tmp_path: Path) -> None:
    model, given = model_of("gpt2"), prompts(3, 4)
    free = [by_transformers(model, prompt, 4 + NEW - len(prompt)) for prompt in given]
    stop = [90, next(token for token in free[0] if token not in free[1])]
    task = Task.from_causal_lm(model, given, new_tokens=NEW, stop=stop)
    job = Job.from_task(lambda: task)
    losses: list[float] = []
    Trainer(job, tmp_path, RunOptions(on_step=lambda event: losses.append(event.loss))).run()
    state = dict(zip(job.program.state_names, Run(job, tmp_path).newest(1)[1], strict=True))
    at = free[0].index(stop[1])
    assert state["buffer/tokens"][0, 3:].tolist() == [*free[0][: at + 1], *[90] * (len(free[0]) - at - 1)]
    assert generated_tokens(state, stop) == [free[0][:at], free[1]]
    assert state["buffer/ended"].tolist() == [True, False]
    # A loss is of the tokens that are chosen: none of a prompt, none behind an end.
    expected = [0.0] * len(losses)
    for prompt, tokens in zip(given, (free[0][: at + 1], free[1]), strict=True):
        read = [*prompt, *tokens]
        shares = model(torch.tensor([read])).logits[0].detach().log_softmax(-1)
        for place, token in enumerate(tokens, len(prompt)):
            expected[place - 1] -= float(shares[place - 1, token])
    assert losses == pytest.approx(expected, rel=1e-4) and losses[:2] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "a prompt has no tokens: give at least one"),
        ([[1, 97]], {}, "the token 97 is none of the model's 97: take the tokenizer of this model"),
        ([[1]], {"stop": [-1]}, "the token -1 is none of the model's 97"),
        ([[1]], {"new_tokens": 0}, "0 new tokens are nothing to generate: give at least 1"),
        ([[1]], {"new_tokens": 64}, "65 positions are more than the model's max_position_embeddings of 64"),
        ([[1]], {"temperature": -1.0}, "temperature is -1.0: give a number, 0, or at least 2"),
        ([[1]], {"temperature": float("nan")}, "temperature is nan: give a number, 0, or at least 2"),
        ([[1]], {"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0: give a number, at least 2\\^-100, up to 1"),
        ([[1]], {"top_k": 3}, "top_k, top_p and min_p are for tokens that are drawn"),
        ([[1]], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0: give a number, at least 2\\^-100"),
    ],
)
def test_what_nothing_can_be_generated_of_is_refused(
    given: list[list[int]], options: dict[str, object], said: str
) -> None:
    with pytest.raises(CaptureError, match=said):
        Task.from_causal_lm(model_of("llama"), given, **{"new_tokens": 1, **options})  # type: ignore[arg-type]


def test_more_positions_than_a_window_of_attention_are_refused() -> None:
    with pytest.raises(CaptureError, match="33 positions are more than the model's sliding_window of 32"):
        Task.from_causal_lm(model_of("mistral"), [[1] * 30], new_tokens=3)


@pytest.mark.parametrize(
    ("name", "dtype"), [("a window of its own", torch.bfloat16), ("positions that begin at 2", torch.float32)]
)
def test_a_model_that_a_static_cache_makes_another_one_is_refused(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "max_position_embeddings": 64}
    if name == "a window of its own":
        config = transformers.GPTNeoConfig(
            **shape, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4, window_size=4
        )
        model = transformers.GPTNeoForCausalLM(config)
    else:
        config = transformers.RobertaConfig(
            **shape, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, is_decoder=True
        )
        model = transformers.RobertaForCausalLM(config)
    with pytest.raises(
        CaptureError, match="gives other logits token by token, with a static cache, than of all tokens"
    ):
        Task.from_causal_lm(model.to(dtype), prompts(5), new_tokens=12)


@pytest.mark.slow
def test_a_model_that_generates_is_left_as_it_was(tmp_path: Path) -> None:
    model = model_of("llama").train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    Job.from_task(lambda: Task.from_causal_lm(model, prompts(3), new_tokens=2))
    assert not model.training and all(x.requires_grad and x.grad is None for x in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
