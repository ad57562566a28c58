"""Constants of programs with numbers in BF16 that no number of a few steps shows: the comparison notices wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from roundlog.capture import Captured, CaptureError, capture
from roundlog.training.update_sameness import confirm_same_updates
from torch import optim
from torch.nn import functional as F

from tests.engine.running.short_steps import Between, compared, task_of
from tests.engine.tasks import in_bf16, under_autocast


def moved(captured: Captured, number: float) -> Captured:
    """The program with a constant that is a hundredth larger."""
    nodes, found = list(captured.program.nodes), 0
    for place, node in enumerate(nodes):
        if node.op == "constant" and node.type.dtype.is_float:
            kind = getattr(torch, f"uint{8 * node.type.dtype.itemsize}")
            held = torch.tensor(node.attributes["bits"]).to(kind).view(node.type.dtype.torch_dtype)
            if held.tolist() == [pytest.approx(number, rel=0.004)]:
                bits = tuple((held * 1.01).view(kind).tolist())
                nodes[place], found = replace(node, attributes={"bits": bits}), found + 1
    assert found
    return replace(captured, program=replace(captured.program, nodes=tuple(nodes)))


def captured_of(make: Any = None, function: Any = torch.tanh, loss: Any = in_bf16, **more: Any) -> Captured:
    model = Between(function).to(torch.bfloat16 if loss is in_bf16 else torch.float32)
    task = task_of(model, loss, None if make is None else make(model.parameters()), **more)
    return capture(lambda: task)


@pytest.mark.slow_but("Adam")
@pytest.mark.parametrize(
    ("make", "numbers", "norm"),
    [
        (lambda p: optim.SGD(p, lr=0.03, weight_decay=0.01), [0.01], None),
        (lambda p: optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True), [0.9], 0.3),
        (lambda p: optim.AdamW(p, lr=0.01), [0.999, 0.001, 1e-8, 0.1], None),
        (lambda p: optim.Adam(p, lr=0.01, weight_decay=0.05, amsgrad=True), [0.05, 0.3, 1e-6], 0.3),
    ],
    ids=["SGD", "Nesterov", "AdamW", "Adam"],
)
def test_a_wrong_constant_of_an_optimizer_is_noticed(make: Any, numbers: list[float], norm: float | None) -> None:
    captured = captured_of(make, max_grad_norm=norm)
    confirm_same_updates(captured)
    for number in numbers:
        with pytest.raises(CaptureError, match=r"not yours: at step \d the change of parameter/.*comparison chooses"):
            confirm_same_updates(moved(captured, number))


@pytest.mark.slow_but("clamp")
@pytest.mark.parametrize(
    ("function", "number", "kernel", "loss"),
    [
        (lambda x: x.clamp(-30.0, 40.0), 40.0, "clamp", in_bf16),
        (lambda x: torch.where(x > 25.0, x, -x), 25.0, "gt", under_autocast),
        (lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-6), 1e-6, "add", in_bf16),
        (lambda x: F.softplus(x, threshold=3.0), 3.0, "softplus", under_autocast),
        (F.hardswish, -3.0, "hardswish", in_bf16),
    ],
    ids=["clamp", "where", "sum", "softplus", "hardswish"],
)
def test_a_wrong_bound_that_no_number_crosses_is_noticed(function: Any, number: float, kernel: str, loss: Any) -> None:
    captured = captured_of(function=function, loss=loss)
    assert compared(captured) > 10
    with pytest.raises(CaptureError, match=rf"aten\.{kernel}.* of numbers around"):
        compared(moved(captured, number))
