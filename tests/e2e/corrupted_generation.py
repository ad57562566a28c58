"""Corruptions of generated text, each as it looks in a receipt and in a job: a provider that computes something else
than the model it names, and writes and defends all that follows from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from roundlog.capture import Task
from roundlog.capture.huggingface import Sampling
from roundlog.execution import RunningStep, StepExecutor
from roundlog.generation import Generation, Generator
from roundlog.program import Node, Program
from roundlog.training import Job
from tiebreak_demo.adversary.engines import MakeExecution, execution_of
from tiebreak_demo.adversary.tampering import BentExecutor, turned

from tests.engine.generation.small_llama import small_llama

transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH, LAYERS = 23, 16, 2
PROMPTS = [[1, 2, 3], [4]]
NEW, INTERVAL, SEED = 6, 2, 5
SAMPLING = Sampling(temperature=0.9, top_k=20, top_p=0.95)

Bend = Callable[[RunningStep, int], None]
"""Computes an operator of a running step, in place of `RunningStep.compute`."""


def model_of_text() -> Any:
    """A Llama in BF16 with random weights."""
    torch.manual_seed(0)
    config = small_llama(VOCABULARY, WIDTH, 2 * WIDTH, LAYERS, max_position_embeddings=32, initializer_range=0.3)
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.bfloat16
    ).eval()


def job_of_text() -> Job:
    """Two prompts, behind which tokens are drawn; a checkpoint every two steps."""
    how = {name: getattr(SAMPLING, name) for name in ("temperature", "top_k", "top_p")}
    task = Task.from_causal_lm(model_of_text(), PROMPTS, new_tokens=NEW, interval=INTERVAL, seed=SEED, **how)
    return Job.from_task(lambda: task)


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A provider's other computation.

    op: the operator of a job at which it is first seen. state: the state that this operator reads, if it reads one.
    bend: the computation of a job's operators. model, prompt, seed, sampling: what the text of a receipt is really
    of."""

    op: str
    bend: Callable[[Program], Bend]
    state: str | None = None
    model: Callable[[Any], Any] = field(default=lambda model: model)
    prompt: Callable[[list[int]], list[int]] = field(default=lambda prompt: prompt)
    seed: int = SEED
    sampling: Sampling = SAMPLING

    @property
    def execution(self) -> MakeExecution:
        """The `execution` of `RunOptions`."""

        def executor(job: Job) -> StepExecutor:
            return BentExecutor(job.program, job.spec.f32_format, compute=self.bend(job.program))

        return execution_of(executor)

    def text(self, model: Any, prompt: list[int], new_tokens: int) -> Generation:
        """The text that the provider sells as the model's."""
        other = self.model(copy.deepcopy(model))
        generator = Generator(other, positions=len(prompt) + new_tokens, chunk=4)
        return generator.generate(self.prompt(prompt), new_tokens=new_tokens, sampling=self.sampling, seed=self.seed)


# In a job.


def state_read(program: Program, operator: int) -> str | None:
    """Name of the state that an operator reads; None if it reads none."""
    node = program.nodes[operator]
    slot = node.attributes.get("slot")
    return program.state_names[slot] if node.op == "state" and isinstance(slot, int) else None


def _reads(program: Program, fits: Callable[[str], bool]) -> list[int]:
    """Operators that read states with such names."""
    names = {q: state_read(program, q) for q in range(len(program.nodes))}
    return [q for q, name in names.items() if name is not None and fits(name)]


def _another_state(
    name: Callable[[str], bool], change: Callable[[torch.Tensor], torch.Tensor], program: Program, *, step: int = 0
) -> Bend:
    """Goes on from other states than its own in a step, which stores what it has read for those behind it. In step 0,
    these are other ones than the job's."""
    reads = _reads(program, name)

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if running.inputs.step == step and index in reads:
            running.values[index] = change(running.values[index])

    return bend


def _likeliest(program: Program) -> Bend:
    """Takes the first of the tokens to draw from, which are in the order of their shares."""
    (draw,) = [q for q, node in enumerate(program.nodes) if node.op == "argmax"]

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index == draw:
            running.values[index] = torch.zeros_like(running.values[index])

    return bend


def _by_another_seed(program: Program) -> Bend:
    def bend(running: RunningStep, index: int) -> None:
        prescribed = running.inputs
        if program.nodes[index].op == "uniform":
            running.inputs = replace(prescribed, seed=SEED + 1)
        running.compute(index)
        running.inputs = prescribed

    return bend


def _moved(node: Node, numbers: torch.Tensor) -> torch.Tensor:
    """The result of a `permute` or `reshape` on numbers of any format."""
    dims = node.attributes.get("dims")
    return numbers.permute(dims) if isinstance(dims, tuple) else numbers.reshape(node.type.shape)


def _attention_in_fp32(program: Program) -> Bend:
    """Does not round the mix of values to BF16 before it is projected."""
    nodes = program.nodes
    paths = {}
    for q in _reads(program, lambda name: name.endswith("o_proj.weight")):
        (product,) = [p for p, node in enumerate(nodes) if node.op == "matmul" and nodes[node.inputs[1]].inputs == (q,)]
        path = [nodes[product].inputs[0]]
        while nodes[path[0]].op != "to_bf16":
            path.insert(0, nodes[path[0]].inputs[0])
        paths[product] = path
    assert len(paths) == LAYERS
    rounded = {path[0]: product for product, path in paths.items()}
    wide: dict[int, torch.Tensor] = {}

    def bend(running: RunningStep, index: int) -> None:
        running.compute(index)
        if index in rounded:
            wide[rounded[index]] = running.values[nodes[index].inputs[0]].double()
        if index in paths:
            mixed = wide[index]
            for q in paths[index][1:]:
                mixed = _moved(nodes[q], mixed)
            weight = running.values[nodes[index].inputs[1]]
            running.values[index] = (mixed @ weight.double()).to(torch.bfloat16)

    return bend


# In a model.

_WEIGHT = "model.layers.0.mlp.gate_proj.weight"


def _by_one_ulp(weight: torch.Tensor) -> torch.Tensor:
    """The last place of the largest number flipped."""
    other = weight.clone()
    flat = other.view(-1)
    place = int(flat.abs().argmax())
    flat[place] = turned(flat[place].clone(), 0)
    return other


def _with_weights(fits: Callable[[str], bool], change: Callable[[torch.Tensor], torch.Tensor], model: Any) -> Any:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if fits(name):
                weight.copy_(change(weight))
    return model


class _Wide(torch.nn.Module):
    """An attention that computes in FP32 all the way, and rounds its result."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention.float()

    def forward(self, hidden_states: torch.Tensor, position_embeddings: Any, **options: Any) -> Any:
        positions = tuple(x.float() for x in position_embeddings)
        found, weights = self.attention(hidden_states=hidden_states.float(), position_embeddings=positions, **options)
        return found.to(hidden_states.dtype), weights


def _wide(model: Any) -> Any:
    for layer in model.model.layers:
        layer.self_attn = _Wide(layer.self_attn)
    return model


def _is_weight(name: str) -> bool:
    return name.removeprefix("parameter/model.") == _WEIGHT


def _one_token_less(lengths: torch.Tensor) -> torch.Tensor:
    return lengths - torch.tensor([1, 0])


CORRUPTIONS: dict[str, Corruption] = {
    "one weight by one ulp": Corruption(
        op="state",
        state=f"parameter/model.{_WEIGHT}",
        bend=partial(_another_state, _is_weight, _by_one_ulp, step=5),
        model=partial(_with_weights, _is_weight, _by_one_ulp),
    ),
    "the likeliest token, not the drawn one": Corruption(op="argmax", bend=_likeliest, sampling=Sampling()),
    "a shortened prompt": Corruption(
        op="state",
        state="buffer/lengths",
        bend=partial(_another_state, "buffer/lengths".__eq__, _one_token_less),
        prompt=lambda prompt: prompt[:-1],
    ),
    "another seed": Corruption(op="uniform", bend=_by_another_seed, seed=SEED + 1),
    "attention in FP32": Corruption(op="matmul", bend=_attention_in_fp32, model=_wide),
}
"""Weights and prompts are the first state of a job, whose root the contract knows. So a provider of another model, or
of another prompt, is one that reads another state than there is, at the beginning or (the first one) on the way; a game
ends where it is read."""
