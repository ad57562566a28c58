"""Results of a function of tensors as a captured program, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from roundlog.capture import capture
from roundlog.execution import Executor
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Recorder
from torch import Tensor, nn

from tests.engine.tasks import small_task


class _Evaluated(nn.Module):
    """A function of parameters, whose value stays in a buffer."""

    def __init__(self, function: Callable[..., Tensor], xs: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.function = function
        self.xs = nn.ParameterList(xs)
        with torch.no_grad():
            self.register_buffer("value", torch.zeros_like(function(*xs)))

    def forward(self) -> Tensor:
        y = self.function(*self.xs)
        self.value.copy_(y.detach())
        return y.sum()


class Computing(nn.Module):
    """Functions of parameters, whose values stay in buffers."""

    def __init__(self, cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]]) -> None:
        super().__init__()
        self.functions = [function for function, _ in cases]
        self.xs = nn.ParameterList([x.float() for _, xs in cases for x in xs])
        self.dtypes = [tuple(x.dtype for x in xs) for _, xs in cases]
        for place, (function, xs) in enumerate(cases):
            self.register_buffer(f"y{place}", torch.zeros_like(function(*xs)))

    def forward(self) -> Tensor:
        xs = iter(self.xs)
        with torch.no_grad():
            for place, (function, dtypes) in enumerate(zip(self.functions, self.dtypes, strict=True)):
                getattr(self, f"y{place}").copy_(function(*(next(xs).to(dtype) for dtype in dtypes)))
        return sum(x.sum() for x in self.xs)


def evaluated(function: Callable[..., Tensor], *xs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(value, gradient of the value's sum by every x) by one step of a program."""
    states = states_after_a_step(_Evaluated(function, xs))
    return states["buffer/value"], [states[f"slot/xs.{i}/momentum"] for i in range(len(xs))]


def states_after_a_step(model: nn.Module) -> dict[str, Tensor]:
    """Every state of a module without inputs, one step on; `slot/.../momentum` is a gradient."""
    return after_a_step(model)[0]


def after_a_step(model: nn.Module) -> tuple[dict[str, Tensor], Program]:
    """`states_after_a_step`, and the program."""
    still = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    task = small_task(model, lambda m, b: m(), {"x": torch.zeros(1, 1)}, optimizer=still)
    captured = capture(lambda: task)
    inputs = StepInputs(
        states=list(captured.states.values()),
        data=[task.dataset["x"]],
        schedule=captured.schedule[0],
        seed=0,
        step=0,
        device=torch.device("cpu"),
    )
    result = Executor(captured.program).run(inputs, Recorder(4))
    return dict(zip(captured.program.state_names, result.states, strict=True)), captured.program
