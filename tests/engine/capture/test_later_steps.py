"""Steps after the few that are traced and compared: what begins late, or happens every so often, is followed, or
refused where it cannot be."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import STEPS, Net, followed, task_of
from tests.engine.capture.random_branches import trained_both_ways


def _wrapped(net: Net, x: Tensor) -> Tensor:
    net.n %= 7
    return net.a(x) * (2 if net.n == 6 else 1)


def _flag(net: Net, x: Tensor) -> Tensor:
    net.on = net.n < 30
    return net.a(x) if net.on else net.b(x)


def _flag_of_the_step_before(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) if net.on else net.b(x)
    net.on = net.n % 13 != 12
    return y


def _decays(net: Net, x: Tensor) -> Tensor:
    net.x *= 0.9
    return net.a(x) * (2 if net.x < 0.01 else 1)


def _freezes(net: Net, x: Tensor) -> Tensor:
    if net.n == 20:
        net.a.weight.requires_grad_(False)
    return net.a(x)


def _freezes_afterwards(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.n == 20:
        net.b.weight.requires_grad_(False)
    return y


def _evaluates(net: Net, x: Tensor) -> Tensor:
    if net.n == 20:
        net.eval()
    return net.drop(net.a(x))


def _appends_and_counts(net: Net, x: Tensor) -> Tensor:
    net.held.append(0)
    return net.a(x) * (2 if len(net.held) > 9 else 1)


def _keeps_every_step(net: Net, x: Tensor) -> Tensor:
    net.kept[int(net.n)] = 0
    return net.a(x)


def _replaces_a_dictionary(net: Net, x: Tensor) -> Tensor:
    net.kept = {"n": net.kept.get("n", 0) + 1}  # type: ignore[operator]
    return net.a(x) * (2 if net.kept["n"] > 9 else 1)  # type: ignore[operator]


def _looks_a_text_up(net: Net, x: Tensor) -> Tensor:
    print({"17": net.held.append(0)}.get(f"{net.n}"))
    return net.a(x)


def _decides_by_a_text(net: Net, x: Tensor) -> Tensor:
    text = f"step {net.n}"
    return net.a(x) * (2 if text == "step 33" else 1)


def _decides_in_one_line(net: Net, x: Tensor) -> Tensor:
    if f"{net.n}" == "33": print("now")  # noqa: E701  # fmt: skip
    return net.a(x)


def _prints_by_its_own(net: Net, x: Tensor) -> Tensor:
    def print(text: str) -> None:
        net.on = text != "33"

    print(f"{net.n}")
    return net.a(x)


def _seeds_sometimes(net: Net, x: Tensor) -> Tensor:
    torch.manual_seed(net.n // 8)
    return net.a(x) * torch.rand(4)


REFUSED: dict[str, tuple[Callable[[Net, Tensor], Tensor], str]] = {
    "a table": (lambda n, x: n.a(x) * n.table[min(int(n.n), 9)], "model.n"),
    "a text that is looked up": (_looks_a_text_up, "in more than 16 ways"),
    "a text that decides": (_decides_by_a_text, "in more than 16 ways"),
    "a text that decides in one line": (_decides_in_one_line, "in more than 16 ways"),
    "a print of the user's": (_prints_by_its_own, "in more than 16 ways"),
    "too many ways": (lambda n, x: n.a(x) * len(str(n.n)), "the step depends on model.n, which steps change"),
    "a flag": (_flag, "a.bias has a gradient at some steps and none at others"),
    "a flag of the step before": (_flag_of_the_step_before, "a.bias has a gradient at some steps"),
    "a parameter that is frozen": (_freezes, "a.weight has a gradient at some steps and none at others"),
    "a parameter that the next step finds frozen": (
        _freezes_afterwards,
        "a step changes whether model.b.weight requires",
    ),
    "the length of a list": (_appends_and_counts, "the step reads model.held, which every step makes longer"),
    "a dictionary that grows": (_keeps_every_step, "model."),
    "a dictionary that is replaced": (_replaces_a_dictionary, "every step changes model.kept"),
    "a seed that several steps share": (_seeds_sometimes, "a seed that is set inside the step"),
}


def test_a_mode_that_changes_at_a_late_step() -> None:
    assert trained_both_ways(lambda: task_of(Net(_evaluates)), 60).apart < 1e-5


@pytest.mark.slow_but("a table")
@pytest.mark.parametrize("name", REFUSED)
def test_what_begins_late_is_refused(name: str) -> None:
    forward, sentence = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(Net(forward)))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def _prints(net: Net, x: Tensor) -> Tensor:
    if net.n % 10 == 0:
        print("ten more")
    return net.a(x)


def _prints_every_step(net: Net, x: Tensor) -> Tensor:
    print(f"step {net.n}: {net.n / 10:.2f}")
    print("step", net.n)
    logging.info(f"step {net.n}")
    return net.a(x)


def _appends(net: Net, x: Tensor) -> Tensor:
    net.held.append(x.mean())
    return net.a(x)


def _starts_anew(net: Net, x: Tensor) -> Tensor:
    net.held.clear()
    net.held.append(net.a(x))
    return net.held[-1]  # type: ignore[return-value]


def _prepares(net: Net, x: Tensor) -> Tensor:
    if net.n == 1:
        net.kept["mask"] = torch.ones(4)
    return net.a(x) * net.kept["mask"]


FOLLOWED = {
    "a counter": lambda n, x: n.a(x),
    "a message every ten steps": _prints,
    "a message every step": _prints_every_step,
    "a list that grows": _appends,
    "a list of one step": _starts_anew,
    "a first step that prepares": _prepares,
    "a threshold behind the last step": lambda n, x: n.a(x) * (2 if n.n > STEPS else 1),
    "a threshold": lambda n, x: n.a(x) * (2 if n.n > 50 else 1),
    "every tenth": lambda n, x: n.a(x) * (2 if n.n % 10 == 9 else 1),
    "the last step": lambda n, x: n.a(x) * (2 if n.n == STEPS else 1),
    "a length": lambda n, x: n.a(x)[:, : max(1, 4 - n.n // 9)],
    "a tensor made of it": lambda n, x: n.a(x) * torch.full((4,), float(n.n // 9)),
    "a counter that wraps": _wrapped,
    "a factor that decays": _decays,
}


@pytest.mark.slow_but("a counter", "a list that grows", "every tenth", "a length")
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_followed_is_trained_as_by_pytorch(name: str) -> None:
    models: list[Net] = []

    def make() -> Task:
        models.append(Net(FOLLOWED[name]))
        return task_of(models[-1])

    followed(make)
    assert (models[0].n, models[0].held, models[0].kept) == (0, [], {})


def test_counters_in_default_arguments_and_closures_are_followed() -> None:
    def make() -> Task:
        count = 0

        def loss(model: Net, batch: dict[str, Tensor], seen: list[int] = [0]) -> Tensor:  # noqa: B006
            nonlocal count
            seen[0] += 1
            count += 2
            return model(batch["x"]).square().mean() * (2 if seen[0] + count > 100 else 1)

        return task_of(Net(), loss)

    job = followed(make)
    assert job.schedule[:, job.program.schedule_names.index("number/0")].tolist() == [1.0] * 33 + [2.0] * (STEPS - 33)


def test_the_rate_and_the_schedule_may_not_be_read_if_they_change() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
        group = optimizer.param_groups[0]
        return model(batch["x"]).square().mean() * (2 if group["lr"] < 0.05 else 1)

    Job.from_task(task_of(model, loss, optimizer=optimizer))
    with pytest.raises(CaptureError, match=r"the step reads optimizer.param_groups\[0\].lr, which is another"):
        Job.from_task(task_of(model, loss, optimizer=optimizer, schedule=lambda step: 0.1 if step > 40 else 1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)

    def late(model: Net, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"]).square().mean() * (2 if scheduler.last_epoch > 40 else 1)

    with pytest.raises(CaptureError, match=r"the step reads schedule.last_epoch, which is another"):
        Job.from_task(task_of(model, late, optimizer=optimizer, schedule=scheduler))
    assert scheduler.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 0.1


def test_a_step_that_changes_the_optimizer_is_refused() -> None:
    model = Net()
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), [0]

    def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
        count[0] += 1
        if count[0] == 30:
            optimizer.param_groups[0]["lr"] = 0.01
        return model(batch["x"]).square().mean()

    with pytest.raises(CaptureError, match=r"a step changes optimizer.param_groups\[0\].lr"):
        Job.from_task(task_of(model, loss, optimizer=optimizer))


def test_a_schedule_that_depends_on_more_than_the_step_is_refused() -> None:
    asked = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 1.0 if len(asked) < 100 else 0.5

    with pytest.raises(CaptureError, match="the schedule gives other rates the second time"):
        Job.from_task(task_of(Net(), schedule=schedule))
    assert asked == []


def test_a_schedule_and_a_step_that_tell_each_other_things_are_refused() -> None:
    model = Net(lambda n, x: n.a(x))
    with pytest.raises(CaptureError, match="the schedule depends on what steps change"):
        Job.from_task(task_of(model, schedule=lambda step: 0.1 if model.n > 20 else 1.0))
    told = {"step": 0}

    def schedule(step: int) -> float:
        told["step"] = step
        return 1.0

    with pytest.raises(CaptureError, match="the schedule changes told"):
        Job.from_task(
            task_of(Net(), lambda m, b: m(b["x"]).sum() * (2 if told["step"] == 20 else 1), schedule=schedule)
        )


def test_an_optimizer_whose_step_is_replaced_or_whose_state_is_read_is_refused() -> None:
    model = Net()
    task = task_of(model)
    own = task.optimizer.step
    task.optimizer.step = lambda: own()  # type: ignore[method-assign]
    with pytest.raises(CaptureError, match="step has been replaced"):
        Job.from_task(task)
    optimizer = torch.optim.Adam(model.parameters())

    def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
        state = optimizer.state.get(m.a.weight, {})
        return m(batch["x"]).square().mean() * (2 if state and state["step"] > 20 else 1)

    with pytest.raises(CaptureError, match=r"the step reads optimizer.state"):
        Job.from_task(task_of(model, loss, optimizer=optimizer))


def test_long_and_growing_counts_take_no_time() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        for _ in range(1500):
            net.n += 1
        k = net.n
        for _ in range(6):
            k ^= (k << 13) & 0xFFFF
            k ^= k >> 7
        net.n = k % 1000
        return net.a(x)

    Job.from_task(task_of(Net(forward)))


def test_iterators_that_several_steps_share_are_refused() -> None:
    cycle = itertools.cycle([1.0, 1.0, 1.0, 1.0, 1.0, 2.0])

    def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"]).square().mean() * next(cycle)

    with pytest.raises(CaptureError):
        Job.from_task(task_of(Net(), loss))
