"""The comparison of a captured step with the user's own notices what a capture gets wrong, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from roundlog.capture import Captured, CaptureError, Task, capture
from roundlog.capture.real_steps.eager_steps import EagerTraining
from roundlog.commitments import state_root
from roundlog.data import spill_file
from roundlog.program import Program
from roundlog.training import sameness
from roundlog.training.job import Job
from roundlog.training.sameness import Sameness, confirm_same
from torch import Tensor, nn

from tests.engine.tasks import small_task


def task_of(function: Callable[[Tensor], Tensor] = torch.tanh, lr: float = 0.01, **more: object) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 4))
    more.setdefault("loss", lambda m, b: function(m(b["x"])).square().mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    run = {"batch_size": 5, "steps": 4, "interval": 2, "seed": 1, **more}
    return small_task(model, data={"x": torch.randn(20, 6)}, optimizer=optimizer, **run)


def compared(task: Task) -> Sameness:
    found: list[Sameness] = []
    Job.from_task(lambda: task, report=found.append)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "is_still"), [(0.01, False), (1e-12, True)])
def test_a_training_in_which_no_parameter_changes_is_told(lr: float, is_still: bool) -> None:
    task = task_of(lr=lr)
    for parameter in task.model.parameters():
        nn.init.uniform_(parameter, 0.5, 1.0)
    warning = compared(task).warning
    assert bool(warning) == is_still == ("6 trained parameters changes in the first 3 step(s): raise the" in warning)


def test_a_capture_agrees_with_pytorch_in_fp64() -> None:
    same = compared(task_of(max_grad_norm=0.5, schedule=lambda step: 0.9**step))
    assert same.in_fp64 and same.steps == 3 and 0 < same.largest < 1e-4
    assert "captured step equals yours: 3 steps from two states, largest difference" in str(same)


def other_constants(program: Program, change: Callable[[float], float]) -> Program:
    """FP32 literals of one element, changed."""
    nodes = list(program.nodes)
    for index, node in enumerate(nodes):
        if node.op == "constant" and node.type.dtype.name == "F32" and len(node.attributes["bits"]) == 1:  # type: ignore[arg-type]
            bits = torch.tensor(node.attributes["bits"], dtype=torch.int32).view(torch.float32)
            changed = torch.tensor([change(float(bits))]).view(torch.int32)
            nodes[index] = replace(node, attributes={"bits": tuple(int(b) & 0xFFFFFFFF for b in changed)})
    return replace(program, nodes=tuple(nodes))


def without(items: dict[str, int], name: str) -> dict[str, int]:
    return {key: value for key, value in items.items() if key != name}


WRONG: dict[str, tuple[Callable[[Captured], Captured], str]] = {
    "another learning rate": (lambda c: replace(c, schedule=c.schedule * 1.001), "the change of parameter/"),
    "another constant": (
        lambda c: replace(c, program=other_constants(c.program, lambda x: x * 1.001 if 0 < x < 1 else x)),
        "differs by",
    ),
    "a gradient that is missing": (
        lambda c: replace(c, origin=replace(c.origin, gradients=without(c.origin.gradients, "0.bias"))),
        "only yours has the gradient of 0.bias",
    ),
}


@pytest.mark.slow_cases("another learning rate", "another constant")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_noticed(name: str) -> None:
    spoil, message = WRONG[name]
    task = task_of()
    captured = capture(lambda: task)
    confirm_same(captured)
    with pytest.raises(CaptureError, match=message) as caught:
        confirm_same(spoil(captured))
    assert "\n" not in str(caught.value)


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("large", [sameness._LARGE, 0])
def test_a_rule_that_is_slightly_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    from roundlog.capture.rules import RULES

    monkeypatch.setattr(sameness, "_LARGE", large)
    right = RULES["tanh"]
    monkeypatch.setitem(RULES, "tanh", lambda c, x: c.op("mul", right(c, x), c.f32(1.0001)))
    with pytest.raises(CaptureError, match="the captured step is not yours: at step 0 the loss differs"):
        Job.from_task(task_of)


@pytest.mark.slow
@pytest.mark.parametrize("module", [sameness, spill_file], ids=["in memory", "in a file"])
def test_a_large_model_is_compared_by_kernels_and_in_fp64_where_they_seem_off(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    monkeypatch.setattr(sameness, "_LARGE", 0)
    monkeypatch.setattr(module, "_LARGE", 0)  # where states are
    same = compared(task_of())
    assert same.kernels > 100 and not same.in_fp64
    # A number beyond FP32's largest, which PyTorch has as infinite, and a gradient of NaN.
    assert compared(task_of(lambda y: y.exp().exp(), lr=1e20)).kernels == 0


@pytest.mark.slow
def test_a_write_into_a_frozen_parameter_that_capture_has_not_seen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Task:
        task = task_of()
        task.model[3].weight.requires_grad_(False)  # type: ignore[index]
        return task

    captured, step = capture(make), EagerTraining.step

    def writing(training: EagerTraining, *given: Any) -> float:
        training.task.model[3].weight.detach()[0] += 1  # type: ignore[index]
        return step(training, *given)

    monkeypatch.setattr(EagerTraining, "step", writing)
    with pytest.raises(CaptureError, match=r"yours writes into parameter/3\.weight, and the program"):
        confirm_same(captured)


@pytest.mark.slow
@pytest.mark.parametrize("large", [spill_file._LARGE, 0])
def test_a_job_keeps_its_weights_when_the_tasks_that_it_was_made_of_change(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(spill_file, "_LARGE", large)
    made: list[Task] = []

    def make() -> Task:
        made.append(task_of())
        made[-1].model[3].weight.requires_grad_(False)  # type: ignore[index]
        return made[-1]

    job = Job.from_task(make)
    with torch.no_grad():
        for task in made:
            for tensor in (*task.model.parameters(), *task.model.buffers()):
                tensor += 1
    assert state_root(job.initial.values()) == job.spec.initial_state_root


@pytest.mark.slow
def test_what_a_step_writes_into_its_batch_is_gone_when_it_runs_again() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"].mul_(3.0)).square().mean()

    assert compared(task_of(loss=loss)).in_fp64


@pytest.mark.slow
def test_ties_and_steps_that_magnify_rounding_pass() -> None:
    """Equal maxima, gradients that are zero but for rounding under Adam, and a sine of large numbers."""
    compared(task_of(lambda y: torch.relu(y * 0).amax(1) + y.round().max(1).values * 0))
    compared(task_of(lambda y: y - y.mean(1, keepdim=True) + y.softmax(1).sum(1, keepdim=True)))
    compared(task_of(lambda y: torch.sin(y * 1e4)))


def test_a_step_that_stops_where_pytorch_goes_on_is_refused() -> None:
    with pytest.raises(CaptureError, match="the captured step stops where yours goes on: step 0: operator"):
        Job.from_task(lambda: task_of(lambda y: (y * 0 + 1e30).long().bool().float() + y))
