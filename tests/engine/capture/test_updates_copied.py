"""The optimizer's step is traced once for several parameters, and is each one's own in the program."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from roundlog.capture.lowering import capture
from roundlog.capture.task import Task
from roundlog.capture.tracing import updating
from tasks import classify
from torch import nn, optim


class Layered(nn.Module):
    """Parameters of many shapes, several of each; one is a scalar, one lies transposed in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.turned = nn.Parameter(torch.eye(3, 6).t().contiguous().t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.tanh(x)) * self.scale + x @ self.turned.t()


def _task(kind: type[optim.Optimizer], max_grad_norm: float | None) -> Task:
    torch.manual_seed(8)
    model = Layered()
    groups = [
        {"params": [*model.layers[:2].parameters(), model.scale], "lr": 0.02},
        {"params": [*model.layers[2:].parameters(), model.turned]},
    ]
    return Task(
        model=model,
        loss=classify,
        optimizer=kind(groups, lr=0.01),
        dataset={"x": torch.randn(24, 6), "y": torch.randint(0, 3, (24,))},
        batch_size=8,
        steps=2,
        interval=2,
        seed=2,
        max_grad_norm=max_grad_norm,
    )


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Adafactor, optim.RMSprop])
def test_it_is_that_of_an_update_for_every_parameter(
    kind: type[optim.Optimizer], max_grad_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: Counter[str] = Counter()
    trace = updating._trace

    def counted(function: updating.Function, place: str, like: list[torch.Tensor]) -> torch.fx.GraphModule:
        traced[place] += 1
        return trace(function, place, like)

    monkeypatch.setattr(updating, "_trace", counted)
    program = capture(_task(kind, max_grad_norm)).program
    # A group's update, for what has a shape and for the scalar.
    assert kind is optim.Adafactor or traced[kind.__name__] == 3

    class Forgetful(dict[object, object]):
        def __setitem__(self, key: object, value: object) -> None:
            pass

    made = updating.Updating.__init__

    def forgetting(self: updating.Updating, *arguments: object) -> None:
        made(self, *arguments)  # type: ignore[arg-type]
        self._traced = Forgetful()  # type: ignore[assignment]

    monkeypatch.setattr(updating.Updating, "__init__", forgetting)
    assert capture(_task(kind, max_grad_norm)).program == program
    assert traced[kind.__name__] > 12
