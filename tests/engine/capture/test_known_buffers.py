"""Buffers that no step writes have known values, like tensors that the step closes over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task
from roundlog.capture.checkpoint import load_state
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.random_branches import trained_both_ways
from tests.engine.capture.script_tasks import Net, refused, same, task_of
from tests.engine.trainings import batch_of, train_by_program

EDGES = torch.tensor([[0, 1, 1, 2, 2, 0, 3], [1, 0, 2, 1, 0, 2, 3]])


def _net(forward: Callable[[Net, Tensor], Tensor], **buffers: Tensor) -> Net:
    model = Net(forward)
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer.clone())
    return model


def _graph(net: Net, x: Tensor) -> Tensor:
    """What packages for graphs do with edges: how many nodes, which edges are loops, what goes where."""
    edges = net.edges[:, net.edges[0] != net.edges[1]]
    count = int(net.edges.max()) + 1
    loops = torch.arange(count).repeat(2, 1)
    source, target = torch.cat([edges, loops], 1)
    return torch.zeros(count, 6).index_add(0, target, net.a(x)[source])


@pytest.mark.parametrize(
    "model",
    [
        _net(_graph, edges=EDGES),
        _net(lambda n, x: n.a(x)[:, n.mask], mask=torch.arange(6) % 2 == 0),
        _net(lambda n, x: n.a(x)[:, n.mask], mask=(torch.arange(6) % 2).to(torch.uint8).bool()),
        _net(lambda n, x: n.a(x) if n.on else n.b(x), on=torch.tensor(False)),
        _net(lambda n, x: n.a(x)[:, : int(n.width.sum())] * n.width[1].item(), width=torch.tensor([2.0, 1.5])),
        _net(lambda n, x: n.a(x).repeat_interleave(n.times, 1), times=torch.tensor([1, 0, 2, 1, 3, 1])),
        _net(lambda n, x: n.a(x)[:, n.order.long()] * n.order, order=torch.tensor([3, 1, 2], dtype=torch.int32)[None]),
        _net(lambda n, x: n.a(x) * n.scale.float(), scale=torch.linspace(0, 1, 6, dtype=torch.float64)),
        _net(lambda n, x: n.a(x) * n.scale, scale=torch.tensor(0.1, dtype=torch.float64)),
        _net(
            lambda n, x: n.a(x) * torch.view_as_real(n.turn).sum(-1), turn=torch.polar(torch.ones(6), torch.arange(6.0))
        ),
        _net(lambda n, x: n.a(x) & 0 if n.bytes.sum() == 0 else n.a(x), bytes=torch.ones(3, dtype=torch.uint8)),
    ],
    ids=[
        "edges",
        "mask",
        "bytes as mask",
        "flag",
        "numbers",
        "repeats",
        "int32",
        "float64",
        "a float64",
        "complex",
        "u8",
    ],
)
def test_it_trains_as_by_pytorch(model: Net) -> None:
    job = same(task_of(model))
    stored = (torch.float32, torch.int64, torch.bool)
    assert all(f"buffer/{name}" in job.initial for name, x in model.named_buffers() if x.dtype in stored)


def test_buffers_whose_values_nobody_asks_for_stay_states() -> None:
    job = Job.from_task(task_of(_net(lambda n, x: n.a(x) * n.scale, scale=torch.linspace(0, 1, 6))))
    assert [node.op for node in job.program.nodes].count("state") == len(job.program.states)
    assert not any(name.startswith("constant/") for name in job.initial)


def test_one_that_is_asked_for_beside_one_that_is_written_is_known() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.mean.mul_(0.9).add_(x.mean(), alpha=0.1)
        net.total = net.total + net.mean
        return net.a(x)[:, net.mask] - net.mean * net.total

    model = _net(forward, mask=torch.arange(6) > 2, mean=torch.zeros(()), total=torch.zeros(()))
    ours = train_by_program(Job.from_task(task_of(model)), 3)
    task = task_of(model)
    for step in range(3):
        task.optimizer.zero_grad()
        task.loss(model, batch_of(task, step)).backward()
        task.optimizer.step()
    for name in ("mean", "total"):
        torch.testing.assert_close(ours[f"buffer/{name}"], model.get_buffer(name))


def _writes(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)[:, net.mask.clone()]
    net.mask.logical_not_()
    return y


def _writes_through_a_view(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)[:, net.mask.clone()]
    net.mask[:2].view(-1).fill_(True)
    return y


def _replaces(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)[:, net.mask]
    net.mask = ~net.mask
    return y


@pytest.mark.parametrize("forward", [_writes, _writes_through_a_view, _replaces])
def test_a_mask_that_steps_write_is_a_state(forward: Callable[[Net, Tensor], Tensor]) -> None:
    job = same(task_of(_net(forward, mask=torch.arange(6) > 2)))
    assert [name for name in job.initial if "mask" in name]


def _writes_later(net: Net, x: Tensor) -> Tensor:
    net.n = int(net.n) + 1
    if net.n == 3:
        net.mask.logical_not_()
    return net.a(x)[:, net.mask]


def _replaces_later(net: Net, x: Tensor) -> Tensor:
    net.n = int(net.n) + 1
    if net.n == 3:
        net.mask = ~net.mask
    return net.a(x)[:, net.mask]


@pytest.mark.parametrize("forward", [_writes_later, _replaces_later])
def test_a_mask_that_a_late_step_changes_is_a_state(forward: Callable[[Net, Tensor], Tensor]) -> None:
    def make() -> Task:
        model = _net(forward, mask=torch.arange(6) > 2)
        model.n = 0
        return task_of(model, steps=6)

    assert trained_both_ways(make, 6).apart < 1e-5


def _writes_by_numpy(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)[:, net.mask]
    net.mask.numpy()[:] ^= True
    return y


def _initializes(net: Net, x: Tensor) -> Tensor:
    if not net.mask[0]:
        net.mask.fill_(True)
        return net.b(x)
    return net.a(x)


@pytest.mark.parametrize(
    "forward, sentence",
    [
        (_writes_by_numpy, "the step turns a tensor that it computes into numbers of Python"),
    ],
)
def test_one_that_steps_change_is_not_known(forward: Callable[[Net, Tensor], Tensor], sentence: str) -> None:
    model = _net(forward, mask=torch.arange(6) > 2)
    model.n = 0
    refused(task_of(model, steps=6), sentence)
    assert model.mask.tolist() == [False] * 3 + [True] * 3


def test_what_is_unknown_with_known_buffers_too_is_named() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.a(x)[:, : int(net.width)]
        while y.sum() > 0:
            y = y - 1
        return y

    line = forward.__code__.co_firstlineno + 2
    refused(task_of(_net(forward, width=torch.tensor(3))), f"test_known_buffers.py:{line})")


def test_a_parameter_by_another_name_is_not_known() -> None:
    model = Net(lambda n, x: n.a(x) if n.alias.sum() > 0 else n.b(x))
    model.register_buffer("alias", model.a.bias.detach())
    same(task_of(model))


def test_one_that_decides_and_changes_is_a_state() -> None:
    for flag in (True, False):
        same(task_of(_net(_initializes, mask=torch.tensor([flag, False]))))


def test_one_of_another_dtype_that_steps_change_is_refused_with_what_to_do() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.count += 1
        return net.a(x) * net.count.float()

    sentence = "a step changes count, which is torch.int32: convert it before the first step, model.count = "
    refused(task_of(_net(forward, count=torch.zeros(6, dtype=torch.int32))), sentence + "model.count.long()")
    refused(task_of(_net(forward, count=torch.zeros(6, dtype=torch.float64))), "model.count.float()")


def test_a_trained_state_needs_none_of_another_dtype(tmp_path: Path) -> None:
    model = _net(lambda n, x: n.a(x) * n.scale.float(), scale=torch.ones(6, dtype=torch.float64))
    job = Job.from_task(task_of(model))
    job.write(tmp_path)
    with torch.no_grad():
        model.a.weight.zero_()
    load_state(model, tmp_path / "initial.safetensors")
    assert model.a.weight.any() and model.scale.dtype == torch.float64
