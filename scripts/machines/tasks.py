"""The example tasks, small, and in BF16; and generations of text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from roundlog.capture import Task
from roundlog.examples.baseline import BF16, computed_in
from roundlog.examples.cifar10 import resnet50, vgg11
from roundlog.examples.digits import digits
from roundlog.examples.gpt import gpt
from roundlog.examples.gpt2 import gpt2
from roundlog.examples.logistic import logistic

_TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
"""A text that nobody edits: its bytes are in the roots of a table, which anyone should find again."""


def intervals(steps: int) -> int:
    """Steps between two checkpoints: ten where that divides them, so that a drift shows where it begins."""
    return 10 if steps % 10 == 0 else steps


def _in_bf16(make: Callable[[int], Task]) -> Callable[[int], Task]:
    """The task under autocast."""

    def made(steps: int) -> Task:
        task = make(steps)
        return replace(task, loss=computed_in(BF16, task.loss))

    return made


def _hugging_face(kind: str, batch_size: int, steps: int) -> Task:
    # An emulated machine, which is given jobs, has no transformers.
    from machines.hugging_face import hugging_face

    return replace(hugging_face(kind, steps, batch_size), interval=intervals(steps))


def _text_of(kind: str, steps: int) -> Task:
    from machines.hugging_face import text_of  # as above

    return replace(text_of(kind, steps), interval=intervals(steps))


SMALL: dict[str, Callable[[int], Task]] = {
    "digits": lambda steps: digits(steps=steps, interval=intervals(steps), batch_size=32, width=8),
    "gpt": lambda steps: gpt(
        data=_TEXT, steps=steps, interval=intervals(steps), batch_size=4, context=16, width=32, heads=2
    ),
    "gpt2": lambda steps: gpt2(
        rows=64,
        steps=steps,
        interval=intervals(steps),
        batch_size=4,
        sequence=16,
        positions=32,
        vocabulary=97,
        width=32,
        heads=2,
        layers=2,
        micro_batches=2,
        max_grad_norm=1.0,
    ),
    "logistic": lambda steps: logistic(rows=1000, features=96, steps=steps, interval=intervals(steps), batch_size=64),
    "resnet50": lambda steps: resnet50(
        rows=32, steps=steps, interval=intervals(steps), batch_size=4, width=4, stages=3
    ),
    "vgg11": lambda steps: vgg11(rows=32, steps=steps, interval=intervals(steps), batch_size=4, width=4),
}
SMALL_STEPS = 50

SHARED: dict[str, Callable[[int], Task]] = {
    "digits": lambda steps: digits(steps=steps, interval=intervals(steps), batch_size=10, width=4),
    "gpt": lambda steps: gpt(
        data=_TEXT, steps=steps, interval=intervals(steps), batch_size=9, context=8, width=16, heads=2
    ),
    "gpt2": lambda steps: gpt2(
        rows=64,
        steps=steps,
        interval=intervals(steps),
        batch_size=20,
        sequence=8,
        positions=16,
        vocabulary=61,
        width=16,
        heads=2,
        layers=2,
        micro_batches=2,
        max_grad_norm=1.0,
    ),
    "logistic": lambda steps: logistic(rows=1000, features=96, steps=steps, interval=intervals(steps), batch_size=64),
    "resnet50": lambda steps: resnet50(
        rows=32, steps=steps, interval=intervals(steps), batch_size=8, width=4, stages=2
    ),
    "vgg11": lambda steps: vgg11(rows=32, steps=steps, interval=intervals(steps), batch_size=8, width=2),
}
"""Tasks with at least eight samples for ranks to share out. They do not divide all batches evenly."""

_EXAMPLES_IN_BF16 = ("gpt", "gpt2", "logistic", "resnet50", "vgg11")
_MODELS_IN_BF16 = ("bert", "llama", "qwen2", "vit")

SMALL_IN_BF16: dict[str, Callable[[int], Task]] = {
    **{f"{name}_bf16": _in_bf16(SMALL[name]) for name in _EXAMPLES_IN_BF16},
    **{f"{kind}_bf16": _in_bf16(partial(_hugging_face, kind, 4)) for kind in _MODELS_IN_BF16},
}
SHARED_IN_BF16: dict[str, Callable[[int], Task]] = {
    **{f"{name}_bf16": _in_bf16(SHARED[name]) for name in _EXAMPLES_IN_BF16},
    **{f"{kind}_bf16": _in_bf16(partial(_hugging_face, kind, 8)) for kind in _MODELS_IN_BF16},
}
"""Examples and models of `transformers` under autocast."""

TEXTS: dict[str, Callable[[int], Task]] = {"llama_text": partial(_text_of, "llama")}
"""Generations of text, a token of every sequence a step."""

MORE_TEXTS: dict[str, Callable[[int], Task]] = {
    f"{kind.removesuffix('_text')}_text": partial(_text_of, kind)
    for kind in ("gpt2", "mixtral", "qwen2", "gemma3_text", "mistral")
}
"""Generations by other architectures, outside the matrix: plain PyTorch has no FP64 for a mixture of experts. Mistral,
whose window these texts do not reach, is Llama, to the root."""

TEXT_STEPS = 14
"""Steps that read three tokens, and write twelve."""
