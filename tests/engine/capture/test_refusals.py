"""What a rule knows but cannot write is refused by the operator's name, its line, and what cannot be done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from torch import nn
from torch.nn import functional as F

Batch = dict[str, torch.Tensor]


def task_of(function: Callable[[torch.Tensor, Batch], torch.Tensor]) -> Task:
    """function: of the output f32[4, 4] of a linear layer, and a batch of numbers "x" and indices "i", [4, 4] each."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    return Task(
        model=model,
        loss=lambda m, b: function(m(b["x"]), dict(b)).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(4, 4), "i": torch.arange(16).reshape(4, 4) % 4},
        batch_size=4,
        steps=1,
        interval=1,
        seed=0,
    )


REFUSED: dict[str, tuple[Callable[[torch.Tensor, Batch], torch.Tensor], str, str]] = {
    "bits of integers": (lambda y, b: y * ~b["i"], "bitwise_not", "works on the bits of integers"),
    "gradients by frequency": (
        lambda y, b: F.embedding(b["i"], y, scale_grad_by_freq=True),
        "embedding_dense_backward",
        "scales embedding gradients by frequency",
    ),
    "integers added at indices": (
        lambda y, b: y * torch.zeros(4, 4, dtype=torch.int64).index_put((b["i"][0],), b["i"], accumulate=True),
        "index_put",
        "adds integers at indices: convert them to float32",
    ),
    "values at indices that may be equal": (
        lambda y, b: torch.zeros(4, 4).index_put((b["i"][0],), y),
        "index_put",
        "writes several values at indices that may be equal",
    ),
    "values whose order matters": (
        lambda y, b: torch.zeros(4, 4).scatter(0, b["i"], y),
        "scatter",
        "scatters more than one value a line, whose order would matter",
    ),
    "long lines sorted": (
        lambda y, b: torch.sort(y.reshape(-1).repeat(1000))[0],
        "sort",
        "sorts lines of 16000, which takes more than 67108864 comparisons",
    ),
    "many lists searched": (
        lambda y, b: y * torch.searchsorted(b["x"], b["x"]),
        "searchsorted",
        "searches in several lists, or in unsorted ones",
    ),
    "a permutation of fractions": (
        lambda y, b: y * torch.randperm(4, dtype=torch.float32),
        "randperm",
        "permutes numbers that are not integers",
    ),
    "dropout outside of training": (
        lambda y, b: torch.native_dropout(y, 0.5, False)[0],
        "native_dropout",
        "applies dropout outside of training",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name_line_and_reason(what: str) -> None:
    function, operator, reason = REFUSED[what]
    with pytest.raises(CaptureError) as caught:
        capture(task_of(function))
    message = str(caught.value)
    assert f"aten.{operator}" in message and "(at test_refusals.py:" in message and reason in message, message
    assert "\n" not in message


def test_a_task_in_which_nothing_is_trained_is_refused() -> None:
    task = task_of(lambda y, b: y)
    task.model.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"^nothing is trained: no parameter of the optimizer requires a gradient$"):
        capture(task)
