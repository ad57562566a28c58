"""Tasks with several optimizers, taken in turn: what belongs together, and what is refused. Scripts that do the same by
hand are in `tests/scripts` and `tests/fuzz`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.job import Job
from torch import Tensor, nn
from torch.nn import functional as F

# Refusals.


def two(**options: Any) -> Task:
    """Two layers with an optimizer each. optimizer: made of the model."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 1)})
    made = {
        "model": model,
        "loss": [lambda m, b: m["a"](b["x"]).square().mean(), lambda m, b: m["b"](m["a"](b["x"])).mean()],
        "optimizer": [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("a", "b")],
        "dataset": {"x": torch.randn(8, 3)},
        **{"batch_size": 4, "steps": 3, "interval": 1, "seed": 3},
    }
    return Task(**{**made, **{name: one(model) if name == "optimizer" else one for name, one in options.items()}})  # type: ignore[arg-type]


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def half(m: Any, b: Mapping[str, Tensor]) -> Tensor:
    return F.mse_loss(m["a"](b["x"]), b["x"])


def twice(m: Any) -> list[torch.optim.Optimizer]:
    optimizer = sgd(m["a"])
    return [optimizer, optimizer]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one loss": ({"loss": half}, "^there are 2 optimizers, and one loss: give the loss of each, in their order$"),
    "three losses": ({"loss": [half] * 3}, "^there are 2 optimizers, and 3 of loss: give the loss of each"),
    "losses by name": ({"loss": {"a": half, "b": half}}, "the optimizers and the loss are given in two ways"),
    "none": ({"optimizer": lambda m: [], "loss": []}, "^there is no optimizer: give at least one, with its loss$"),
    "twice the same": ({"optimizer": twice}, r"^optimizer\[0\] and optimizer\[1\] are one optimizer, .* give it once$"),
    "a shared parameter": (
        {"optimizer": lambda m: [sgd(m["a"]), sgd(m["b"], m["a"])]},
        r"^a\.weight is trained by optimizer\[0\] and optimizer\[1\], which would both step it: leave it in one",
    ),
    "parameters of nobody": (
        {"optimizer": lambda m: [sgd(m["a"]), sgd(nn.Linear(2, 2))]},
        r"^the optimizer\[1\] holds 2 parameters that are not the model's: give a model with all",
    ),
    "text": ({"loss": [half, "mse"]}, r"^the loss\[1\] is a str: give a function of both"),
    "a loss of another": (
        {"loss": [half, half]},
        r"^the loss\[1\] depends on no parameter that optimizer\[1\] trains: check whether it belongs to another",
    ),
    "a loss of nothing": (
        {"loss": [half, lambda m, b: half(m, b).detach()]},
        r"^the loss\[1\] depends on no parameter that is trained",
    ),
    "one scheduler": (
        {"schedule": torch.optim.lr_scheduler.ConstantLR(sgd(nn.Linear(1, 1)))},
        "^there are 2 optimizers, and one schedule: give one of each, or one function of the step for all$",
    ),
    "schedulers of others": (
        {"schedule": [lambda step: 1.0, torch.optim.lr_scheduler.ConstantLR(sgd(nn.Linear(1, 1)))]},
        "^the schedule ConstantLR belongs to another optimizer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(name: str) -> None:
    options, words = REFUSED[name]
    with pytest.raises(CaptureError, match=words):
        Job.from_task(lambda: two(**options))


class Kept:
    """Losses of which the second goes on with what the first has computed: with `seen`, through which the first has
    gone back by then, or with `aside`, which comes from parameters that have been stepped by then."""

    def __init__(self, name: str, *, cut: bool) -> None:
        self.seen = self.aside = torch.zeros(4, 3)
        self.name, self.cut = name, cut

    def first(self, m: Any, b: Mapping[str, Tensor]) -> Tensor:
        self.seen = m["a"](b["x"]).exp()
        self.aside = m["a"](m["b"](b["x"]).exp() * b["x"])
        return self.seen.mean()

    def second(self, m: Any, b: Mapping[str, Tensor]) -> Tensor:
        kept = getattr(self, self.name)
        return m["b"](kept.detach() if self.cut else kept).mean()


@pytest.mark.slow_but("seen*")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seen", "a loss goes back through what the backward pass of another has freed: compute it again"),
        ("aside", "what was computed with a tensor that has changed since, as an optimizer changes its parameters"),
    ],
)
def test_a_graph_that_is_gone_is_refused_and_one_that_is_cut_off_is_not(name: str, words: str) -> None:
    def make(*, cut: bool) -> Task:
        kept = Kept(name, cut=cut)
        return two(loss=[kept.first, kept.second])

    Job.from_task(lambda: make(cut=True))
    with pytest.raises(CaptureError, match=f"^the step fails in PyTorch itself: .*{words}.*detach"):
        Job.from_task(lambda: make(cut=False))


def reads(m: Any, b: Mapping[str, Tensor]) -> Tensor:
    return m["b"](b["x"]).mean() * m["a"].weight.grad.norm()


@pytest.mark.slow
def test_a_loss_that_reads_an_optimizer_is_refused_by_its_name() -> None:
    optimizers: list[Any] = []

    def of_both(model: Any) -> list[Any]:
        optimizers[:] = [torch.optim.SGD(model[name].parameters(), lr=0.1, momentum=0.9) for name in ("a", "b")]
        return optimizers

    def asks(m: Any, b: Mapping[str, Tensor]) -> Tensor:
        return m["b"](b["x"]).mean() * (1 + len(optimizers[1].state))

    with pytest.raises(CaptureError, match="the captured step is not yours"):
        Job.from_task(lambda: two(loss=[half, asks], optimizer=of_both))
    with pytest.raises(CaptureError, match="the step reads an optimizer's settings"):
        Job.from_task(
            lambda: two(
                loss=[half, lambda m, b: m["b"](b["x"]).mean() * optimizers[0].param_groups[0]["lr"]],
                optimizer=of_both,
                schedule=lambda step: 1 / (1 + step),
            )
        )


def test_tied_parameters_of_two_optimizers_are_refused() -> None:
    def make() -> Task:
        task = two()
        model: Any = task.model
        model["c"] = nn.Linear(3, 3)
        model["c"].weight = nn.Parameter(model["a"].weight.detach())
        losses = [lambda m, b: m["a"].weight.sum(), lambda m, b: m["c"].weight.sum()]
        return replace(task, loss=losses, optimizer=[sgd(model["a"]), sgd(model["c"])])

    with pytest.raises(CaptureError, match="are two parameters with the same memory"):
        capture(make)
