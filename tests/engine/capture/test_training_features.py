"""Features around a step: clipping, accumulation, groups, schedules, frozen parameters. Each is captured as the
training that PyTorch does when a user writes it out by hand (in FP64 here)."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.optimizers import rates
from roundlog.training.job import Job
from torch import nn
from torch.optim import lr_scheduler

from tests.engine.tasks import classify, small_task
from tests.engine.trainings import steps_by_program, train_by_program, train_by_pytorch

STEPS = 5


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """FP32 against FP64: five steps differ by a few roundings, a wrong formula by far more."""
    assert set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(
            ours[name].to(tensor.dtype), tensor, rtol=2e-5, atol=3e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


def net_task(optimizer: Callable[[nn.Module], torch.optim.Optimizer], **more: object) -> Task:
    """A small net whose gradients have a norm of about one."""
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    data = {"x": torch.randn(24, 6), "y": torch.randint(0, 3, (24,))}
    options = {"batch_size": 8, "steps": STEPS, "interval": STEPS, "seed": 2, "loss": classify, **more}
    return small_task(model, data=data, optimizer=optimizer(model), **options)


def decay_groups(model: nn.Module) -> list[dict[str, object]]:
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) == many] for many in (True, False))
    return [{"params": matrices, "weight_decay": 0.3, "lr": 0.05}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(decay_groups(m), momentum=0.9),
    "AdamW": lambda m: torch.optim.AdamW(decay_groups(m), eps=1e-3),
}


@pytest.mark.slow
def test_losses_of_micro_batches_are_averaged_or_added_up() -> None:
    """Divided by what is counted in the whole batch, the sum is the mean of the batch."""

    def summed(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum") / batch["rows"]

    def step(**options: object) -> tuple[torch.Tensor, torch.Tensor]:
        job = Job.from_task(lambda: net_task(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), **options))
        ((result, _),) = steps_by_program(job, 1)
        states = dict(zip(job.program.state_names, result.states, strict=True))
        return torch.tensor(result.loss), states["parameter/0.weight"] - job.initial["parameter/0.weight"]

    loss, moved = step()
    count = {"loss": summed, "of_batch": lambda batch: {"rows": (batch["y"] >= 0).sum()}}
    for options, factor in (({}, 1), ({"accumulate": "sum"}, 2), ({"accumulate": "sum", **count}, 1)):
        torch.testing.assert_close(step(micro_batches=2, **options), (factor * loss, factor * moved))


class Sometimes(nn.Module):
    """A parameter that nothing uses, beside one that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


@pytest.mark.slow
def test_a_parameter_without_a_gradient_stays_as_it_is_even_with_decay(tmp_path) -> None:
    torch.manual_seed(0)
    model = Sometimes()
    model.used.bias.requires_grad_(False)
    data = {"x": torch.randn(8, 6), "y": torch.randint(0, 3, (8,))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    run = {"steps": 3, "interval": 3, "micro_batches": 2, "max_grad_norm": 0.1}
    task = small_task(model, classify, data, optimizer=optimizer, **run)
    ours = train_by_program(Job.from_task(lambda: task), task.steps)
    assert_same(ours, train_by_pytorch(task, 3, torch.float64))
    for name in ("unused.weight", "unused.bias", "used.bias"):
        assert torch.equal(ours[f"parameter/{name}"], dict(model.named_parameters())[name])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, [lambda step: 1 / (1 + step), lambda step: 0.9**step]),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10, 1e-3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2], total_steps=10, cycle_momentum=False),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 7)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_gives_the_rates_that_it_gives_pytorch(name: str) -> None:
    task = net_task(OPTIMIZERS["SGD"])
    scheduler = SCHEDULERS[name](task.optimizer)
    before = copy.deepcopy(scheduler.state_dict()), [group["lr"] for group in task.optimizer.param_groups]
    found = [[rate(step) for rate in rates(task.optimizer, scheduler, 10)] for step in range(10)]
    # Asking has changed nothing.
    assert before == (scheduler.state_dict(), [group["lr"] for group in task.optimizer.param_groups])
    expected = []
    for _ in range(10):
        expected.append([group["lr"] for group in task.optimizer.param_groups])
        task.optimizer.step()
        scheduler.step()
    assert found == expected
    assert len({tuple(row) for row in found}) > 1


def test_everything_at_once(tmp_path) -> None:
    task = net_task(OPTIMIZERS["AdamW"], micro_batches=2, max_grad_norm=0.1)
    task.model[2].weight.requires_grad_(False)
    task = replace(task, schedule=SCHEDULERS["CosineAnnealingLR"](task.optimizer))
    assert_same(train_by_program(Job.from_task(lambda: task), task.steps), train_by_pytorch(task, STEPS, torch.float64))


def refused(task: Task, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(lambda: task)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batches": 3}, "a batch of 8 cannot be cut into 3 equal parts"),
        ({"micro_batches": 2.0}, "micro_batches is 2.0: give a whole number"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm is nan"),
        ({"dataset": {"x": [1.0, 2.0]}}, "dataset field x is a list: make it a torch.Tensor"),
        ({"dataset": {"x": torch.eye(9).to_sparse()}}, "is sparse"),
        ({"dataset": {}}, "has no fields"),
        ({"dataset": {"x": torch.ones(0, 6), "y": torch.ones(0)}}, "x is empty: give at least one row"),
        ({"dataset": {"x": torch.ones(9, 6), "y": torch.ones(8)}}, "y has 8 rows, the first field 9"),
        ({"dataset": {"x": torch.ones(9, 6, dtype=torch.float64)}}, "x is torch.float64: convert it"),
        (
            {"dataset": {"x": torch.ones(9, 6, dtype=torch.int64), "y": torch.zeros(9).long()}},
            r"same dtype.*tasks.py:\d+",
        ),
        ({"loss": lambda m, b: 1.0}, "the loss is a float"),
        ({"loss": lambda m, b: b["y"].sum()}, "the loss is torch.int64"),
        ({"loss": lambda m, b: b["x"].sum()}, "depends on no parameter"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, object], message: str) -> None:
    refused(replace(net_task(sgd), **change), message)


@pytest.mark.slow
def test_clipping_by_gradients_that_the_optimizer_does_not_see_is_refused(tmp_path) -> None:
    """clip_grad_norm_(model.parameters()) counts them, and optimizer.zero_grad() lets them grow from step to step."""
    task = net_task(lambda m: torch.optim.SGD(m[3].parameters(), lr=0.1), max_grad_norm=0.05)
    refused(task, "0.weight requires a gradient but is in no group")
    task.model[:3].requires_grad_(False)
    assert_same(train_by_program(Job.from_task(lambda: task), task.steps), train_by_pytorch(task, STEPS, torch.float64))


class GrowingDecay(lr_scheduler.LRScheduler):
    """Changes an option that no column holds."""

    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 * self.last_epoch
        return [group["lr"] for group in self.optimizer.param_groups]


def test_schedules_that_do_not_depend_on_the_step_alone_are_refused() -> None:
    def scheduled(make: Callable[[torch.optim.Optimizer], object]) -> Task:
        task = net_task(sgd)
        return replace(task, schedule=make(task.optimizer))

    refused(scheduled(lr_scheduler.ReduceLROnPlateau), "ReduceLROnPlateau depends on the loss")
    refused(scheduled(GrowingDecay), "changes more than learning rates and momenta at step 1")
    refused(scheduled(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=3, cycle_momentum=False)), "for 5 steps")
    refused(scheduled(lambda o: lr_scheduler.StepLR(sgd(nn.Linear(2, 2)), 3)), "belongs to another optimizer")
    refused(scheduled(lambda o: lambda step: float("nan") if step == 3 else 1.0), "not finite")

    refused(scheduled(lambda o: [1.0, 0.5, 0.1].__getitem__), "fails at step 3 with IndexError")
    refused(scheduled(lambda o: lambda step: None), "fails at step 0 with TypeError")

    def used(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        optimizer.step()
        scheduler.step()
        return scheduler

    refused(scheduled(used), "already taken steps")


def test_a_scheduler_that_the_task_does_not_know_of_is_noticed() -> None:
    task = net_task(sgd)
    lr_scheduler.LinearLR(task.optimizer, 0.1)
    refused(task, "has a learning rate scheduler of its own")
