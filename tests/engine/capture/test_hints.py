"""Hints about control flow that depends on values: the model's line, and the option that switches it off."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.errors import control_flow
from torch import nn
from torch.distributions import Normal

from tests.engine.capture.calls import Calls


class Dropping(nn.Module):
    """Layer drop as it is usually written."""

    def __init__(self, encoder_layerdrop: float) -> None:
        super().__init__()
        self.encoder_layerdrop = encoder_layerdrop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            if torch.rand([]) < self.encoder_layerdrop:
                continue
            x = 2 * x
        return x


class Asking(nn.Module):
    """A model that leaves a decision to a library."""

    def __init__(self) -> None:
        super().__init__()
        names: dict[str, Any] = {}
        library = Path(sysconfig.get_paths()["purelib"]) / "a_library" / "helper.py"
        exec(compile("def is_positive(x):\n    return bool(x.sum() > 0)", library, "exec"), names)
        self.is_positive = names["is_positive"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while self.is_positive(x):
            x = x - 1
        return x


def task_of(function: Callable[[torch.Tensor], torch.Tensor], inner: nn.Module | None = None) -> Task:
    torch.manual_seed(0)
    model = Calls(function)
    model.inner = inner
    return Task(
        model=model,
        loss=lambda m, b: m(b["x"]).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(4, 6)},
        batch_size=4,
        steps=1,
        interval=1,
        seed=0,
    )


def said(task: Task) -> str:
    """About what PyTorch raised while the task was traced."""
    with pytest.raises(CaptureError) as caught:
        capture(lambda: task)
    assert caught.value.__cause__ is not None
    return control_flow(caught.value.__cause__)


DROPPING, ASKING = Dropping(0.5), Asking()


@pytest.mark.parametrize(
    ("function", "inner", "sentence"),
    [
        (
            DROPPING,
            DROPPING,
            r"\(at test_hints\.py:\d+\): layer drop .*: set layerdrop \(or .*\) to 0 in the model's config$",
        ),
        (ASKING, ASKING, r"\(at test_hints\.py:\d+\): decide by torch\.where$"),
    ],
)
def test_the_line_and_the_option_are_named(function, inner, sentence: str) -> None:
    message = said(task_of(function, inner))
    assert re.search(r"^the step's control flow depends on values that it computes " + sentence, message), message


def test_the_line_is_the_models_and_not_a_librarys() -> None:
    line = Asking.forward.__code__.co_firstlineno + 1
    assert f"(at test_hints.py:{line})" in said(task_of(ASKING, ASKING))


def test_layer_drop_that_is_switched_off_is_captured() -> None:
    dropping = Dropping(0.0)
    program = capture(lambda: task_of(dropping, dropping)).program
    assert not any(node.op == "uniform" for node in program.nodes)


def test_distributions_that_check_their_arguments_are_captured() -> None:
    capture(lambda: task_of(lambda x: Normal(x, x.exp()).log_prob(x.detach())))
