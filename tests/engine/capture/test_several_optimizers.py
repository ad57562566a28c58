"""Tasks with several optimizers, taken in turn: held against scripts that do the same by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Captured, CaptureError, Task, capture
from roundlog.capture.draws import Replay
from roundlog.data import widened
from roundlog.execution import Executor
from roundlog.operators import StepInputs
from roundlog.rounding import Recorder
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.engine.capture.adversarial_games import (
    GAMES,
    Script,
    actor_critic,
    at_once,
    autoencoder,
    dcgan,
    in_turn,
    networks,
    turned,
    wgan,
)
from tests.engine.running.processes import finish, start
from tests.engine.trainings import batch_of, trained_and_audited

STEPS = 3


def by_program(task: Task, captured: Captured) -> tuple[list[float], dict[str, Tensor], list[Tensor]]:
    """(losses, parameters and buffers at the end, what was drawn, in order) of three steps."""
    executor, states, losses, drawn = Executor(captured.program), list(captured.states.values()), [], []
    wanted = captured.origin.observed()
    assert None not in wanted, "every draw is of use"
    for step in range(STEPS):
        kept: dict[int, Tensor] = {}

        def keep(index: int, value: Tensor, kept: dict[int, Tensor] = kept) -> None:
            if index in wanted:
                kept[index] = value.clone()

        inputs = StepInputs(
            states=states,
            data=[widened(one) for one in batch_of(task, step).values()],
            schedule=captured.schedule[step],
            seed=task.seed,
            step=step,
            device=torch.device("cpu"),
        )
        result = executor.run(
            inputs,
            Recorder(4),
            observe=keep,
        )
        losses.append(float(result.loss))
        states = list(result.states)
        drawn += [one for one in captured.origin.drawn(kept) if one is not None]
    named = zip(captured.states, states, strict=True)
    return losses, {name.partition("/")[2]: one for name, one in named if not name.startswith("slot/")}, drawn


def distance(task: Task, script: Script) -> float:
    """Largest difference of a captured task from a script in FP64: of three losses, and of the state behind them."""
    losses, states, drawn = by_program(task, capture(lambda: task))
    task.model.double()
    default = torch.get_default_dtype()
    cast = lambda one: one.double() if one.is_floating_point() else one  # noqa: E731
    try:
        torch.set_default_dtype(torch.float64)
        with Replay(drawn) if drawn else torch.enable_grad():
            true = script(task, lambda step: {name: cast(one) for name, one in batch_of(task, step).items()}, STEPS)
    finally:
        torch.set_default_dtype(default)
    apart = [abs(one - two) / max(1.0, abs(two)) for one, two in zip(losses, true, strict=True)]
    moved = 0
    for name, one in [*task.model.named_parameters(), *task.model.named_buffers()]:
        apart.append(float((states[name].double() - one.detach()).abs().max()))
        moved += 1
    assert moved == len(states)
    return max(apart)


@pytest.mark.parametrize("name", GAMES)
def test_three_steps_are_those_of_the_script(name: str) -> None:
    game = GAMES[name]
    assert distance(game.task(), game.script) < 1e-6


@pytest.mark.slow
def test_the_comparison_notices_another_order_and_steps_at_once() -> None:
    assert distance(wgan(), in_turn) < 1e-6
    assert distance(wgan(), at_once) > 1e-5
    task = wgan()
    captured = capture(lambda: turned(task))
    losses, _, _ = by_program(task, captured)
    assert abs(losses[0] - by_program(task, capture(lambda: task))[0][0]) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("part", ["schedule", "max_grad_norm"])
def test_the_comparison_notices_what_is_followed_wrongly(part: str) -> None:
    whole = {"schedule": lambda step: 1.0, "max_grad_norm": None}

    def otherwise(task: Task, *rest: Any) -> list[float]:
        return in_turn(replace(task, **{part: whole[part]}), *rest)

    assert distance(autoencoder(), otherwise) > 1e-5
    assert distance(autoencoder(accumulate="sum"), in_turn) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_the_step_is_compared_trained_and_audited(name: str, tmp_path: Path) -> None:
    job, result = trained_and_audited(GAMES[name].task(), tmp_path)
    audit = Auditor(job, tmp_path / "in parts", RunOptions(micro_batches=2), log_dir=result.log_dir).run()
    assert (audit.checkpoint_root, audit.findings) == (result.checkpoint_root, [])


@pytest.mark.slow
def test_two_machines_come_to_one_root(tmp_path: Path) -> None:
    Job.from_task(dcgan).write(tmp_path / "job")
    roots = {finish(start(one, "train", tmp_path / "job", tmp_path / one))["root"] for one in ("native", "old")}
    assert len(roots) == 1


def test_every_forward_pass_counts_and_draws_for_itself(tmp_path: Path) -> None:
    """The discriminator has seen three batches in each step; dropout masks of its passes are not the same."""
    task = dcgan()
    _, states, drawn = by_program(task, capture(lambda: task))
    assert int(states["discriminator.4.num_batches_tracked"]) == 3 * STEPS
    assert int(states["generator.1.num_batches_tracked"]) == STEPS
    noise = [one for one in drawn if one.shape == (8, 4, 1, 1)]
    masks = [one for one in drawn if one.shape == (8, 4, 4, 4)]
    assert (len(noise), len(masks)) == (STEPS, 3 * STEPS)
    for several in (noise, masks):
        assert all(not torch.equal(one, two) for number, one in enumerate(several) for two in several[:number])


def test_one_optimizer_in_a_list_is_one_optimizer() -> None:
    def task(several: bool) -> Task:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(b["x"]).square().mean()
        given: dict[str, Any] = {"optimizer": [optimizer], "loss": [loss]} if several else {}
        options = {"optimizer": optimizer, "loss": loss, "max_grad_norm": 1.0, **given}
        return Task(model=model, dataset={"x": torch.ones(4, 3)}, batch_size=2, steps=2, interval=1, seed=0, **options)  # type: ignore[arg-type]

    one, two = capture(lambda: task(True)), capture(lambda: task(False))
    assert one.program == two.program and torch.equal(one.schedule, two.schedule)


def test_the_schedule_has_the_columns_of_all_groups() -> None:
    captured = capture(autoencoder)
    names = captured.program.schedule_names
    rates = {name: captured.schedule[:, number].tolist() for number, name in enumerate(names)}
    assert rates["1/lr"] == pytest.approx([0.2, 0.1, 0.2 / 3, 0.05])
    assert {name.partition("/")[0] for name in names} == {"0", "1"}


def test_the_task_is_left_as_it_was() -> None:
    task = autoencoder()
    before = copy.deepcopy(task.model.state_dict())
    state = torch.get_rng_state()
    Job.from_task(lambda: task)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in task.model.state_dict().items())
    assert isinstance(task.optimizer, dict)
    assert all(not optimizer.state for optimizer in task.optimizer.values())
    assert all(parameter.grad is None for parameter in task.model.parameters())


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
    "another name": (
        {"optimizer": lambda m: {"a": sgd(m["a"]), "b": sgd(m["b"])}, "loss": {"a": half, "c": half}},
        "^the optimizer 'b' has no loss of that name",
    ),
    "names of numbers": ({"optimizer": lambda m: {1: sgd(m["a"])}}, "the optimizer 1 has a name that is no text"),
    "several losses of one": (
        {"optimizer": lambda m: sgd(m)},
        "^the loss is a list, and there is one optimizer: give one loss$",
    ),
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
    "LBFGS": (
        {"optimizer": lambda m: [sgd(m["a"]), torch.optim.LBFGS(m["b"].parameters())]},
        "^the optimizer LBFGS is not supported",
    ),
    "a class": (
        {"optimizer": lambda m: [sgd(m["a"]), torch.optim.SGD]},
        r"^the optimizer\[1\] is the class SGD itself",
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
    "a vector": ({"loss": [lambda m, b: m["a"](b["x"]), half]}, r"^the loss\[0\] has the shape \[4, 3\]"),
    "a norm of text": ({"max_grad_norm": [1.0, "1"]}, r"^max_grad_norm\[1\] is '1': give a finite number"),
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


def test_a_step_beside_these_is_captured_and_a_frozen_parameter_may_be_in_both() -> None:
    def of_both(m: Any) -> list[torch.optim.Optimizer]:
        m["a"].bias.requires_grad_(False)
        return [sgd(m["a"]), torch.optim.SGD([*m["b"].parameters(), m["a"].bias], lr=0.1)]

    Job.from_task(two)
    Job.from_task(lambda: two(optimizer=of_both))


def frozen(m: Any, b: Mapping[str, Tensor]) -> Tensor:
    """A loss that freezes the other's parameters while it is computed."""
    m["a"].requires_grad_(False)
    loss = m["b"](m["a"](b["x"])).mean()
    m["a"].requires_grad_(True)
    return loss


def left_frozen(m: Any, b: Mapping[str, Tensor]) -> Tensor:
    m["a"].requires_grad_(False)
    return m["b"](m["a"](b["x"])).mean()


def recomputed(m: Any, b: Mapping[str, Tensor]) -> Tensor:
    return m["b"](checkpoint(m["a"], b["x"].requires_grad_(), use_reentrant=True)).mean()


def test_parameters_may_be_frozen_meanwhile_recomputed_or_trained_by_nobody() -> None:
    Job.from_task(lambda: two(loss=[half, frozen]))
    Job.from_task(lambda: two(loss=[half, recomputed]))
    with pytest.raises(CaptureError, match=r"^the loss\[0\] depends on no parameter that is trained"):
        Job.from_task(lambda: two(loss=[half, left_frozen]))
    task = two(max_grad_norm=0.1)
    assert isinstance(task.model, nn.ModuleDict)
    task.model["of nobody"] = nn.Linear(3, 3)
    losses = [lambda m, b: m["of nobody"](m["a"](b["x"])).square().mean(), lambda m, b: m["b"](b["x"]).mean()]
    assert distance(replace(task, loss=losses), in_turn) < 1e-6


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


def test_gradients_of_another_optimizer_are_not_there() -> None:
    with pytest.raises(CaptureError, match="has no attribute 'norm'"):
        Job.from_task(lambda: two(loss=[half, reads]))


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
        torch.manual_seed(0)
        model = networks()
        one, other = model["generator"][0], nn.ConvTranspose2d(4, 4, 4, bias=False)
        other.weight = nn.Parameter(one.weight.detach())
        model["third"] = other
        losses = [lambda m, b: one.weight.sum(), lambda m, b: other.weight.sum()]
        return replace(actor_critic(), model=model, loss=losses, optimizer=[sgd(one), sgd(other)])

    with pytest.raises(CaptureError, match="are two parameters with the same memory"):
        capture(make)
