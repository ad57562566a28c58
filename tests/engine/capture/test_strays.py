"""Tensors that get out of a step, into another thread or the next step, where capture does not see them, are refused in
one sentence with the line that uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, nn
from torch.nn.functional import mse_loss


class Net(nn.Module):
    """Two layers; what it computes is given."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def sentence(model: Net) -> str:
    task = Task(
        model=model,
        loss=lambda m, b: mse_loss(m(b["x"]), b["x"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(12, 6)},
        batch_size=4,
        steps=3,
        interval=1,
        seed=3,
    )
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _in_a_thread(net: Net, x: Tensor) -> Tensor:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(net.a(x)))
    thread.start()
    thread.join()
    return net.b(found[0])


def _in_a_pool(net: Net, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return net.b(pool.submit(net.a, x).result())


def _in_two_threads(net: Net, x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(lambda layer: layer(x), [net.a, net.b]))  # type: ignore[return-value]


@pytest.mark.parametrize("forward", [_in_a_thread, _in_a_pool, _in_two_threads])
def test_a_module_that_runs_in_another_thread_is_refused_with_the_line(
    forward: Callable[[Net, Tensor], Tensor],
) -> None:
    said = sentence(Net(forward))
    assert said.startswith(
        "the step computes in another thread, where it cannot be followed: compute everything in the"
    )
    assert "test_strays.py:" in said


@pytest.mark.parametrize("after", [1, 2])
def test_a_hook_that_uses_the_tensor_of_a_former_step_is_refused_with_the_line(after: int) -> None:
    """From the second step on, or from the third."""

    store = ModuleType("store")  # capture does not look into modules of Python
    store.tensors = []  # type: ignore[attr-defined]

    def keep(layer: nn.Module, given: object, result: Tensor) -> Tensor:
        store.tensors = [*store.tensors, result]  # type: ignore[attr-defined]
        return result + store.tensors[0].detach() if len(store.tensors) > after else result

    model = Net(lambda n, x: n.b(n.a(x)))
    model.a.register_forward_hook(keep)
    said = sentence(model)
    assert "a tensor that a former step has left is used" in said and "(at test_strays.py:" in said
    assert "keep it in an attribute of the model, or a buffer" in said


def test_a_number_of_a_former_step_that_decides_is_refused() -> None:
    store = ModuleType("store")
    store.last = 0.0  # type: ignore[attr-defined]

    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.a(x) * (0.5 if store.last > 1e9 else 1.0)
        store.last = y.sum().item()  # type: ignore[attr-defined]
        return y

    assert "a number that .item() took out of a tensor decides" in sentence(Net(forward))
