"""Tensors whose numbers are nowhere in memory, or in no plain tensor: let be beside a step, and refused in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.engine.capture.test_scripts import Net, refused, same, task_of
from tests.engine.capture.test_surroundings import net


def _given_back() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="meta"),
        lambda: nn.Linear(3, 3, device="meta"),
        lambda: nn.LazyLinear(3),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.ones(3, dtype=torch.uint8).view(torch.bits8),
        _given_back,
    ],
)
def test_tensors_without_numbers_may_lie_beside_a_step(make: Callable[[], object]) -> None:
    """Such as a model on the meta device, of which a script takes the shapes."""
    model = net()
    model.kept = [make()]
    same(task_of(model))


def test_a_sparse_tensor_of_which_a_step_is_made_is_a_constant() -> None:
    model = Net(lambda n, x: n.a(x) * n.kept[0].to_dense().sum())
    model.kept = [torch.eye(3).to_sparse()]
    same(task_of(model))


def test_a_step_that_writes_to_a_tensor_without_numbers_is_refused() -> None:
    kept = torch.empty(3, device="meta")
    model = Net(lambda n, x: n.a(x) if kept.add_(1.0) is kept else x)
    refused(task_of(model), "uses a tensor on the meta device")


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (torch.eye(3).to_sparse(), "kept is no plain tensor (torch.sparse_coo)"),
        (torch.empty(3, device="meta"), "kept is on the meta device"),
        (_given_back(), "kept has given its memory back"),
        (torch.ones(1).expand(3), "kept has one number in several places (.expand): make it a copy"),
    ],
)
def test_buffers_that_no_state_holds_are_refused(buffer: Tensor, words: str) -> None:
    model = net()
    model.register_buffer("kept", buffer)
    refused(task_of(model), words)
