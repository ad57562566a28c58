"""Schedules that a step keeps in numbers of Python, trained beside PyTorch through all their turns."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from math import cos

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.training.job import Job
from torch import Tensor, nn
from torch.nn import functional as F

from tests.engine.capture.later_steps import STEPS, Net, followed, task_of
from tests.engine.capture.random_branches import trained_both_ways


def _warms_up(net: Net, x: Tensor) -> Tensor:
    return net.a(x) * min(1.0, net.n / 40)


def _warms_up_by_if(net: Net, x: Tensor) -> Tensor:
    scale = net.n / 40 if net.n < 40 else 1.0
    return scale * net.a(x) + net.b(x)


def _decays(net: Net, x: Tensor) -> Tensor:
    net.x = max(0.5, net.x * 0.98)
    return F.softmax(net.a(x) / net.x, dim=1)


def _by_cosine(net: Net, x: Tensor) -> Tensor:
    m = 1 - (1 - 0.9) * (math.cos(math.pi * net.n / STEPS) + 1) / 2
    return net.a(x) * m + net.b(x) * (cos(net.n / 7) - m)


def _counts_epochs(net: Net, x: Tensor) -> Tensor:
    epoch, place = divmod(net.n, 7)
    return net.a(x) * (1 + 0.1 * epoch) - place / 10


def _wrapped(net: Net, x: Tensor) -> Tensor:
    net.n %= 7
    return net.a(x) * (2 if net.n == 6 else 1)


def _curriculum(net: Net, x: Tensor) -> Tensor:
    net.on = net.n < 20
    y = net.a(x)
    return y if net.on else F.relu(y) + 0.1 * y * y


def _flag_of_the_step_before(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) if net.on else net.a(x) + net.b(x).detach()
    net.on = net.n % 13 != 12
    return y


def _looks_up(net: Net, x: Tensor) -> Tensor:
    return net.a(x) * net.table[min(net.n // 7, 9)]


def _cuts(net: Net, x: Tensor) -> Tensor:
    return net.a(x)[:, : max(1, 4 - net.n // 15)]


def _fills(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * torch.full((4,), net.n / 10) + torch.full_like(x, net.n) * torch.tensor(net.n / 60)
    return y + torch.tensor([net.n / 50, 1.0, 0.5, 2.0])


def _in_many_ways(net: Net, x: Tensor) -> Tensor:
    share, y = net.n / 61, torch.tanh(net.a(x))
    y = 0.1 * torch.add(y, x, alpha=share) - torch.sub(x, y, alpha=1 - share) + torch.lerp(x, y, share)
    y = y.clamp(-1 - share, 1 + share) + torch.clamp(y, max=share) + y.addcmul(x, x, value=share)
    y = torch.where(y > share, y, share) + y.masked_fill(y < 0.1, share) + (y.abs() + 0.5) ** (1 + share)
    z = y.detach().clone()
    z.mul_(share).add_(x, alpha=share).sub_(share).div_(1 + share)
    z[0] = share
    return (
        y / (1 + share)
        + share / (y.abs() + 1)
        + (share - y)
        + z
        + (x > share) * share
        + (x.abs() + 1).addcdiv(x, x.abs() + 1, value=share)
    )


def _of_integers(net: Net, x: Tensor) -> Tensor:
    places = (torch.arange(4) + net.n // 20) % 4
    return net.a(x)[:, places] * (net.n // 20) + x[:, : net.n // 30 + 1].sum()


def _divides_by_nought(net: Net, x: Tensor) -> Tensor:
    try:
        return net.a(x) + 0 * (1 / (net.n - 20) > 9)
    except ZeroDivisionError:
        return net.a(x) - 1


def _evaluates(net: Net, x: Tensor) -> Tensor:
    if net.n == 20:
        net.norm.eval()
    return net.norm(net.a(x))


def _not_there_at_first(net: Net, x: Tensor) -> Tensor:
    if not hasattr(net, "epoch"):
        net.epoch = 0
    net.epoch += 0.5
    return net.a(x) * min(1.0, net.epoch / 20)


def _two_levels(net: Net, x: Tensor) -> Tensor:
    if net.n % 5 == 0:
        net.x *= 0.8
        if net.x < 0.3:
            net.x = 1.0
    return net.a(x) * net.x


FORWARD = {
    function.__name__: function
    for function in (
        *(_warms_up, _warms_up_by_if, _decays, _by_cosine, _counts_epochs, _wrapped, _curriculum),
        *(_flag_of_the_step_before, _looks_up, _cuts, _fills, _in_many_ways, _of_integers, _divides_by_nought),
        *(_evaluates, _not_there_at_first, _two_levels),
    )
}


@pytest.mark.slow_but("_warms_up", "_counts_epochs", "_two_levels")
@pytest.mark.parametrize("name", FORWARD)
def test_a_schedule_of_numbers_is_what_pytorch_trains(name: str) -> None:
    def make() -> object:
        net = Net(FORWARD[name])
        net.norm = nn.BatchNorm1d(4)
        net.table = [1.0 + place / 3 for place in range(10)]
        return task_of(net, lambda m, b: (m(b["x"]) - 1).square().mean() + 0.01 * (m.a.weight + m.b.weight).sum())

    followed(make)


def test_a_table_is_one_column_and_nothing_is_computed_twice() -> None:
    program = Job.from_task(task_of(Net(_warms_up_by_if))).program
    plain = Job.from_task(task_of(Net(lambda n, x: 0.5 * n.a(x) + n.b(x)))).program
    assert program.schedule_names == ("0/lr", "number/0")
    assert len(program.nodes) == len(plain.nodes)


def test_a_class_attribute_counts() -> None:
    def make() -> object:
        class Counting(Net):
            step = 0

            def forward(self, x: Tensor) -> Tensor:
                self.step += 1
                return self.a(x) * min(1.0, self.step / 10)

        return task_of(Counting())

    followed(make)


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("every", [2, 7])
def test_a_target_that_is_copied_every_so_often(every: int) -> None:
    def make() -> object:
        net, step = Net(), 0
        target = copy.deepcopy(net)

        def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
            nonlocal step
            if step % every == 1:
                target.load_state_dict(m.state_dict())
            step += 1
            return (m(batch["x"]) - target(batch["x"]).detach() - 1).square().mean()

        return task_of(net, loss)

    followed(make)


@pytest.mark.slow_cases("4")
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_a_step_that_counts_its_micro_batches(micro_batches: int) -> None:
    def make() -> object:
        net = Net(lambda n, x: n.a(x) * min(1.0, n.n / 70))
        return task_of(net, micro_batches=micro_batches, max_grad_norm=0.5)

    followed(make)


def test_a_parameter_with_a_gradient_at_some_steps_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"b.bias has a gradient at some steps and none at others"):
        Job.from_task(task_of(Net(lambda n, x: n.a(x) if n.n < 20 else n.b(x) + n.a(x))))


def test_numbers_that_are_drawn_at_some_steps_only() -> None:
    found = trained_both_ways(
        lambda: task_of(Net(lambda n, x: n.a(x) if n.n < 20 else n.a(x) + torch.rand(4) * n.n)), 40
    )
    assert found.apart < 1e-5 and found.decided_both_ways


def test_a_tensor_that_a_late_step_replaces_is_state() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.a(x)
        if net.n == 10:
            net.x = h.detach().mean(0) + 5.0
        return h + net.x if net.n > 20 else h

    def make() -> object:
        net = Net(forward)
        net.x = torch.zeros(4)
        return task_of(net)

    followed(make)


def test_a_tensor_that_begins_at_a_late_step_is_refused() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.a(x)
        if net.n == 10:
            net.x = h.detach().mean(0) + 5.0
        return h if net.x is None else h + net.x

    net = Net(forward)
    net.x = None
    with pytest.raises(CaptureError, match=r"model.x, where there are none before it, but the first step does not"):
        Job.from_task(task_of(net))


def test_two_captures_are_one_program() -> None:
    one, two = (Job.from_task(task_of(Net(_two_levels))) for _ in range(2))
    assert one.program == two.program and torch.equal(one.schedule, two.schedule) and one.spec == two.spec


def test_a_number_that_is_not_finite_at_a_late_step_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"at step 38 the step computes with a number of Python that is 1e\+39"):
        Job.from_task(task_of(Net(lambda n, x: (n.a(x) * 1e-30).clamp(max=10.0**n.n))))


def test_too_many_different_steps_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"the step depends on model.n, which steps change, in more than 16 ways"):
        Job.from_task(task_of(Net(lambda n, x: n.a(x) * float(str(n.n + 0.5).count("1") + int(n.n)))))


Number = float
TERMS: list[Callable[[random.Random], Callable[[Number, Number], Number]]] = [
    lambda draw: (lambda k: lambda n, v: min(1.0, n / k))(draw.randint(2, 30)),
    lambda draw: (lambda k: lambda n, v: (n // k) / 10)(draw.randint(2, 9)),
    lambda draw: (lambda k: lambda n, v: (n % k) / k)(draw.randint(2, 9)),
    lambda draw: (lambda k: lambda n, v: math.exp(-k * n))(draw.uniform(0.05, 0.5)),
    lambda draw: (lambda k: lambda n, v: (1 + math.cos(math.pi * min(n, k) / k)) / 2)(draw.randint(3, 40)),
    lambda draw: (lambda k: lambda n, v: 0.3 if n < k else 0.7)(draw.randint(3, 40)),
    lambda draw: (lambda k: lambda n, v: 1.0 if n % k == 0 else n / 100)(draw.randint(2, 9)),
    lambda draw: (lambda k: lambda n, v: max(k, v))(draw.uniform(0.1, 0.9)),
    lambda draw: (lambda k: lambda n, v: abs(k - v) ** 0.5)(draw.uniform(0.5, 1.5)),
    lambda draw: (lambda k: lambda n, v: round(v * 10**k) / 10**k)(draw.randint(1, 3)),
]
UPDATES: list[Callable[[random.Random], Callable[[Number, Number], Number]]] = [
    lambda draw: (lambda k: lambda n, v: v * k)(draw.uniform(0.8, 1.0)),
    lambda draw: (lambda k: lambda n, v: v * 0.7 if n % k == 0 else v)(draw.randint(2, 9)),
    lambda draw: (lambda k: lambda n, v: max(0.1, v - k))(draw.uniform(0.02, 0.2)),
    lambda draw: (lambda k: lambda n, v: k * v + (1 - k) * n / 60)(draw.uniform(0.1, 0.9)),
    lambda draw: (lambda k: lambda n, v: 1.0 if n == k else v * 0.99)(draw.randint(5, 50)),
]
USES: list[Callable[[Net, Tensor, Number], Tensor]] = [
    lambda net, y, s: y * s,
    lambda net, y, s: s * y + (1 - s) * net.b(y),
    lambda net, y, s: y / (1 + s),
    lambda net, y, s: torch.add(y, net.b(y), alpha=s),
    lambda net, y, s: y + s,
    lambda net, y, s: torch.lerp(y, net.b(y), s),
    lambda net, y, s: y.clamp(-1.0 - s, 1.0 + s),
    lambda net, y, s: net.b(y) if s > 0.5 else y,
    lambda net, y, s: F.softmax(y / (s + 0.1), dim=1),
]


@pytest.mark.slow_but("1")
@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_are_what_pytorch_trains(seed: int) -> None:
    """Two numbers by random formulas, used in random places: the generator knows nothing of how they are followed."""

    def make() -> object:
        draw = random.Random(seed)
        update, terms, uses = (
            draw.choice(UPDATES)(draw),
            [t(draw) for t in draw.choices(TERMS, k=2)],
            draw.choices(USES, k=3),
        )

        def forward(net: Net, x: Tensor) -> Tensor:
            net.x = update(net.n, net.x)
            numbers = [term(net.n, net.x) for term in terms]
            y = net.a(x)
            for number, use in zip([*numbers, numbers[0] * numbers[1]], uses, strict=True):
                y = use(net, y, number)
            return y

        return task_of(Net(forward), lambda m, b: (m(b["x"]) - 1).square().mean() + 0.01 * m.b.weight.sum())

    followed(make)
