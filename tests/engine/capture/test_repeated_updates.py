"""Updates of parameters that are alike are traced once, and the program is the one that tracing each gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.capture import Task, capture
from roundlog.capture.optimizers import Update
from roundlog.capture.tracing.traced_optimizers import RepeatedUpdates
from roundlog.program import to_json
from torch import nn
from torch.nn import functional as F

from tests.engine.capture.adversarial_games import dcgan
from tests.engine.capture.test_optimizers import OPTIMIZERS

LAYERS = 4


def task_of(kind: str, **options: Any) -> Task:
    """Four layers of one shape in two groups, and one that has no gradient."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(LAYERS)]
    model = nn.ModuleList([*layers, nn.Linear(6, 6)])
    make, given = OPTIMIZERS[kind]
    groups = [{"params": layers[0].parameters(), "lr": 0.3}, {"params": [p for m in model[1:] for p in m.parameters()]}]

    def loss(m: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        h = batch["x"]
        for layer in list(m)[:LAYERS]:  # type: ignore[call-overload]
            h = torch.tanh(layer(h))
        return F.mse_loss(h, batch["x"])

    return Task(
        model=model,
        loss=loss,
        optimizer=make(groups, **given),
        dataset={"x": torch.randn(8, 6)},
        batch_size=4,
        steps=3,
        interval=1,
        seed=0,
        **options,
    )


def counted(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Task]) -> tuple[str, int]:
    """A program, and how many updates are traced for it."""
    calls, apply = [], Update.apply
    monkeypatch.setattr(Update, "apply", lambda self, *given: (calls.append(1), apply(self, *given))[1])
    text = to_json(capture(make()).program)
    monkeypatch.undo()
    return text, len(calls)


def same_by_fewer(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Task]) -> None:
    found, few = counted(monkeypatch, make)
    monkeypatch.setattr(RepeatedUpdates, "apply", lambda self, update, function, inputs: function(*inputs))
    expected, many = counted(monkeypatch, make)
    assert found == expected
    assert few < many


@pytest.mark.slow_cases("SGD, Nesterov", "Adafactor", "Rprop")
@pytest.mark.parametrize("kind", ["SGD, Nesterov", "NAdam", "RMSprop, all", "Adafactor", "ASGD, averaging", "Rprop"])
def test_an_optimizer_has_the_program_of_single_updates(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_by_fewer(monkeypatch, lambda: task_of(kind))


@pytest.mark.parametrize("options", [{"max_grad_norm": 0.1}, {"micro_batches": 2}, {"schedule": lambda s: 0.5**s}])
def test_clipped_and_scheduled_updates_have_it_too(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    same_by_fewer(monkeypatch, lambda: task_of("AdamW, amsgrad", **options))


def test_optimizers_in_turn_have_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    same_by_fewer(monkeypatch, dcgan)
