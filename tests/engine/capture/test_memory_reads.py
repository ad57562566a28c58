"""Reads of a tensor's memory that no operator shows, and of tensors that the first step has made where there were none:
what stood there at capture is nobody's number."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import Net, followed, task_of

Forward = Callable[[Net, Tensor], Tensor]


def _task(read: Callable[[Net], Tensor | float], state: str) -> Task:
    """state: what is read, a buffer, an attribute, or one that is None before the first step."""

    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.a(x) + (0.0 if net.read is None else read(net))
        if state == "buffer":
            net.read.mul_(0.5).add_(x.mean(0))
        else:
            net.read = x.mean(0) if net.read is None else 0.5 * net.read + x.mean(0)
        return y

    net = Net(forward)
    if state == "buffer":
        net.register_buffer("read", torch.ones(4))
    else:
        net.read = torch.ones(4) if state == "attribute" else None
    return task_of(net, lambda m, b: (m(b["x"]) - 1).square().mean(), steps=8, interval=8)


STATES = ("buffer", "attribute", "none")

FOLLOWED: dict[str, Callable[[Net], Tensor | float]] = {
    "deepcopy": lambda net: copy.deepcopy(net.read),
    "deepcopy of a dictionary": lambda net: copy.deepcopy({"one": net.read, "two": [net.read]})["two"][0],
    "deepcopy of all": lambda net: copy.deepcopy(net.state_dict())["a.bias"] + net.read,
    "a decision": lambda net: 2.0 if net.read.sum() > 0.3 else 1.0,
}


@pytest.mark.slow_but("none-a decision", "attribute-deepcopy")
@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("state", STATES)
def test_a_read_is_of_the_state(name: str, state: str) -> None:
    followed(lambda: _task(FOLLOWED[name], state))


REFUSED: dict[str, tuple[Callable[[Net], Tensor | float], str]] = {
    "tolist": (lambda net: net.read.tolist()[0], "turns a tensor that it computes into numbers of Python"),
    "numpy": (lambda net: float(net.read.numpy().sum()), "turns a tensor that it computes into numbers of Python"),
    "asarray": (lambda net: float(np.asarray(net.read).sum()), "turns a tensor that it computes into numbers"),
    "repr": (lambda net: len(repr(net.read)), "looks into the text of a number that it computes"),
    "str": (lambda net: len(str(net.read)), "looks into the text of a number that it computes"),
    "DLPack": (lambda net: torch.from_dlpack(net.read).clone(), "DLPack"),
    "DLPack of old": (
        lambda net: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(net.read)).clone(),
        "DLPack",
    ),
}


@pytest.mark.slow_but("buffer-tolist")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("state", STATES)
def test_a_read_that_no_operator_shows_is_refused(name: str, state: str) -> None:
    read, sentence = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        Job.from_task(_task(read, state))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_printing_a_state_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def read(net: Net) -> float:
        print(net.read, f"{net.read}", [net.read])
        return 0.0

    followed(lambda: _task(read, "buffer"))
