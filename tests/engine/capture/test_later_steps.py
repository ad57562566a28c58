"""Steps after the few that are traced and compared: what begins late, or happens every so often, is refused; what only
counts is followed."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, nn

STEPS = 60


class Net(nn.Module):
    """A layer, a counter, and what is done with them."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.how = forward
        self.n, self.x, self.on = 0, 1.0, True
        self.table = [1.0] * 9 + [2.0]
        self.held: list[object] = []
        self.kept: dict[object, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.how is None:
            return self.a(x)
        self.n += 1
        return self.how(self, x)


def task_of(model: Net, loss: Callable[..., Tensor] | None = None, **more: object) -> Task:
    torch.manual_seed(5)
    more = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **more}
    return Task(
        model=model,
        loss=loss or (lambda m, b: m(b["x"]).square().mean()),
        dataset={"x": torch.randn(8, 4)},
        **{"batch_size": 4, "steps": STEPS, "interval": STEPS, "seed": 3, **more},  # type: ignore[arg-type]
    )


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


def _seeds_sometimes(net: Net, x: Tensor) -> Tensor:
    torch.manual_seed(net.n // 8)
    return net.a(x) * torch.rand(4)


REFUSED: dict[str, tuple[Callable[[Net, Tensor], Tensor], str]] = {
    "a threshold": (lambda n, x: n.a(x) * (2 if n.n > 50 else 1), "at step 50 "),
    "every tenth": (lambda n, x: n.a(x) * (2 if n.n % 10 == 9 else 1), "a step changes model.n"),
    "a table": (lambda n, x: n.a(x) * n.table[min(int(n.n), 9)], "model.n"),
    "the last step": (lambda n, x: n.a(x) * (2 if n.n == STEPS else 1), f"at step {STEPS - 1} "),
    "a length": (lambda n, x: n.a(x)[:, : max(1, 4 - n.n // 9)], "model.n"),
    "a tensor made of it": (lambda n, x: n.a(x) * torch.full((4,), float(n.n // 9)), "model.n"),
    "too many ways": (lambda n, x: n.a(x) * len(str(n.n)), "the step depends on model.n, which steps change"),
    "a counter that wraps": (_wrapped, "at step 5 "),
    "a flag": (_flag, "at step 29 "),
    "a flag of the step before": (_flag_of_the_step_before, "at step 12 "),
    "a factor that decays": (_decays, "model.x"),
    "a parameter that is frozen": (_freezes, "at step 19 "),
    "a parameter that the next step finds frozen": (
        _freezes_afterwards,
        "a step changes whether model.b.weight requires",
    ),
    "a mode that changes": (_evaluates, "model."),
    "the length of a list": (_appends_and_counts, "the step reads model.held, which every step makes longer"),
    "a dictionary that grows": (_keeps_every_step, "model."),
    "a dictionary that is replaced": (_replaces_a_dictionary, "every step changes model.kept"),
    "a seed that several steps share": (_seeds_sometimes, "a seed that is set inside the step"),
}


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
    "a list that grows": _appends,
    "a list of one step": _starts_anew,
    "a first step that prepares": _prepares,
    "a threshold behind the last step": lambda n, x: n.a(x) * (2 if n.n > STEPS else 1),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_only_counts_is_followed(name: str) -> None:
    model = Net(FOLLOWED[name])
    Job.from_task(task_of(model))
    assert (model.n, model.held, model.kept) == (0, [], {})


def test_counters_in_default_arguments_and_closures_are_followed() -> None:
    count = 0

    def loss(model: Net, batch: dict[str, Tensor], seen: list[int] = [0]) -> Tensor:  # noqa: B006
        nonlocal count
        seen[0] += 1
        count += 2
        return model(batch["x"]).square().mean() * (2 if seen[0] + count > 100 else 1)

    with pytest.raises(CaptureError, match=r"at step 33 .*seen|at step 33 .*count"):
        Job.from_task(task_of(Net(), loss))
    assert count == 0 and loss.__defaults__ == ([0],)


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


UPDATES: list[Callable[[int], int]] = [
    lambda n: n + 1,
    lambda n: n - 3,
    lambda n: (n + 1) % 11,
    lambda n: n * 3 % 31,
    lambda n: n // 2,
    lambda n: -n,
    lambda n: n + 1 if n < 17 else 0,
    lambda n: divmod(n + 5, 7)[1],
    lambda n: abs(n - 20),
    lambda n: n ^ 5,
]
QUESTIONS: list[Callable[[int, int], bool]] = [
    lambda n, k: n > k,
    lambda n, k: n == k,
    lambda n, k: n % 8 == k % 8,
    lambda n, k: k <= n < k + 5,
    lambda n, k: bool(n & 8),
    lambda n, k: not n,
    lambda n, k: round(n / 7) == k,
    lambda n, k: int(n // 9) in (k, k + 1),
]


@pytest.mark.parametrize("seed", range(24))
def test_random_counters_are_followed_as_they_run(seed: int) -> None:
    """Programs of two counters, each updated and asked at random; what every step does is known by running it."""
    draw = random.Random(seed)
    updates, questions = draw.choices(UPDATES, k=2), draw.choices(QUESTIONS, k=2)
    limits, start = [draw.randrange(-5, 40) for _ in range(2)], [draw.randrange(9) for _ in range(2)]
    matters = draw.random() < 0.5

    def step(counters: list[int]) -> bool:
        first = questions[0](counters[0], limits[0])
        counters[0] = updates[0](counters[0])
        if first:
            counters[1] = updates[1](counters[1])
        return questions[1](counters[1], limits[1])

    counters = list(start)
    answers = [step(counters) for _ in range(STEPS)]
    held = list(start)

    def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["x"]).square().mean() * (2 if step(held) and matters else 1)

    if matters and len(set(answers)) > 1:
        with pytest.raises(CaptureError):
            Job.from_task(task_of(Net(), loss))
    else:
        Job.from_task(task_of(Net(), loss))
    assert held == start


def _swaps(net: Net, x: Tensor) -> Tensor:
    y = net.active(x)
    net.active = net.b if net.n > 20 else net.a
    return y


def _keeps_none(net: Net, x: Tensor) -> Tensor:
    net.kept[len(net.kept)] = None
    return net.a(x) * (2 if len(net.kept) > 20 else 1)


def _is_false(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * (2 if net.on is False else 1)
    net.on = net.n < 20
    return y


def _catches(net: Net, x: Tensor) -> Tensor:
    try:
        scale = 2 if bool(net.counted > 20) else 1
    except Exception:
        scale = 1
    net.counted.add_(1)
    return net.a(x) * scale


def _catches_a_length(net: Net, x: Tensor) -> Tensor:
    net.held.append(0)
    try:
        return net.a(x) * (2 if len(net.held) > 20 else 1)
    except Exception:
        return net.a(x)


def _divides(net: Net, x: Tensor) -> Tensor:
    try:
        return net.a(x) + 0 * (1 / (net.n - 20) > 9)
    except ZeroDivisionError:
        return net.b(x)


def _draws_late(net: Net, x: Tensor) -> Tensor:
    return net.a(x) * (2 if net.n % 5 == 4 and random.random() > 2 else 1)


class Safe:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:
        return True


def _raises_safely(net: Net, x: Tensor) -> Tensor:
    scale = 1
    with Safe():
        if net.counted > 20:
            raise ValueError
        scale = 2
    net.counted.add_(1)
    return net.a(x) * scale


def _compares_with_itself(net: Net, x: Tensor) -> Tensor:
    value = net.counted.item()
    net.counted.add_(1)
    return net.a(x) * (2 if value != value else 1)


@pytest.mark.parametrize(
    "forward",
    [
        _swaps,
        _keeps_none,
        _is_false,
        _catches,
        _catches_a_length,
        _divides,
        _draws_late,
        _raises_safely,
        _compares_with_itself,
        lambda n, x: n.a(x) * (2 if str(n.counted.add_(1).item()) == "25.0" else 1),
        lambda n, x: n.a(x) * (2 if type(n.n) is int and n.n > 20 else 1),
        lambda n, x: n.a(x) * (2 if copy.deepcopy(n.n) > 20 else 1),
    ],
)
def test_what_an_adversary_hid_in_a_later_step_is_refused(forward: Callable[[Net, Tensor], Tensor]) -> None:
    model = Net(forward)
    model.active = model.a
    model.register_buffer("counted", torch.zeros(()))
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(model))
    assert "\n" not in str(caught.value)


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
