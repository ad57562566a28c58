"""Tasks of many steps with a counter and other Python state in their model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from roundlog.capture import Task
from torch import Tensor, nn

STEPS = 60


class Net(nn.Module):
    """A layer, a counter, and what is done with them."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.how = forward
        self.n, self.x, self.on = 0, 1.0, True
        self.table = [1.0] * 9 + [2.0]
        self.held: list[object] = []
        self.kept: dict[object, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.how is None:
            return self.a(x)
        self.n += 1
        return self.how(self, x)


def task_of(model: Net, loss: Callable[..., Tensor] | None = None, **more: object) -> Task:
    torch.manual_seed(5)
    more = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **more}
    return Task(
        model=model,
        loss=loss or (lambda m, b: m(b["x"]).square().mean()),
        dataset={"x": torch.randn(8, 4)},
        **{"batch_size": 4, "steps": STEPS, "interval": STEPS, "seed": 3, **more},  # type: ignore[arg-type]
    )
