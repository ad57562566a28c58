"""Ifs and loops that values decide: captured on every path and chosen by the condition, as plain PyTorch trains."""

from __future__ import annotations

import contextlib
import math
import operator
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.builder import Builder
from roundlog.capture.rules.numbers import OF_NUMBERS
from roundlog.execution import Executor, StoppedError
from roundlog.execution.microbatch import MicrobatchExecutor, samples_of
from roundlog.operators import StepInputs
from roundlog.program import DType, TensorType
from roundlog.rounding import Follower, Recorder
from roundlog.training.job import Job
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.engine.capture import checked_steps
from tests.engine.capture.random_branches import STEPS, Net, asserted, random_source, task_of, trained_both_ways

NEAR = 2e-5
"""Largest relative difference from PyTorch after ten steps of FP32."""


def _with_loss(loss: Callable[[Net, Tensor], Tensor], **more: Any) -> Task:
    return task_of(lambda net, x: net.a(x), lambda m, b: loss(m, b["x"]), **more)


def _in_the_loss(m: Net, x: Tensor) -> Tensor:
    found = m(x).square().mean()
    if x.mean() > 0:
        return found * 2
    elif x.std().item() < 1.3:
        return found.sqrt() + m.b(x).mean()
    return found


def _in_both(m: Net, x: Tensor) -> Tensor:
    y = m(x) if torch.rand(()) < 0.5 else m.b(x)
    return y.abs().mean() if x.mean() > 0 else y.square().mean()


def _writes_on_one(net: Net, x: Tensor) -> Tensor:
    if x.mean() > 0:
        net.kept.add_(x.mean(0).abs())
    return net.a(x) * net.kept


def _norms_on_one(net: Net, x: Tensor) -> Tensor:
    return net.norm(x) + net.a(x) if x.mean() > 0 else net.a(x)


def _loops(net: Net, x: Tensor) -> Tensor:
    h, rounds = net.a(x) + 3 * x.mean(), 0
    while h.mean() > 0.5 and rounds < 4:
        h, rounds = h - net.b(x).abs().mean() - 1, rounds + 1
    return h


def _breaks(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    for _ in range(4):
        if h.square().mean() < 0.3:
            break
        h = h * 0.5
    return h


def _asks_again(net: Net, x: Tensor) -> Tensor:
    positive, h = x.mean() > 0, net.a(x)
    h = h * 2 if positive else h
    h = h + 1 if torch.rand(()) < 0.5 else h
    return h - net.b(x) if positive else h


def _takes_numbers(net: Net, x: Tensor) -> Tensor:
    mean = x.mean().item()
    h = net.a(x) * (0.5 * mean + 1) - min(mean, 0.1)
    return h * 2 if abs(mean) > 0.2 or math.isnan(mean) or np.isinf(mean) else h


def _by_python(net: Net, x: Tensor) -> Tensor:
    h = net.a(x * random.uniform(0.5, 1.5)) if random.random() < 0.5 else net.a(x)
    count = random.randint(0, 2)
    return h * count + np.random.normal(0.0, 0.1) if count != 1 else h[torch.from_numpy(np.random.permutation(8))]


def _at_places(net: Net, x: Tensor) -> Tensor:
    top, left = torch.randint(0, 3, (2,)).tolist()
    y = net.a(x).clone()
    y[:, top : top + 4] = x[torch.randperm(8), left : left + 4]
    y[left] += 1.0
    y[..., top, None] = net.b(x)[:, random.randint(0, 5), None]
    return y + x[top]


def _in_a_checkpoint(net: Net, x: Tensor) -> Tensor:
    def inner(h: Tensor) -> Tensor:
        return net.a(h) if torch.rand(()) < 0.5 else F.dropout(net.b(h), 0.4)

    return checkpoint(inner, net.a(x), use_reentrant=False)  # type: ignore[no-any-return]


def _in_a_hook(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h.register_hook(lambda g: g * 3 if x.mean() > 0 else g)
    return h


def _catches(net: Net, x: Tensor) -> Tensor:
    try:
        asserted((x.mean() < 0).all())
    except AssertionError:
        return net.b(x)
    return net.a(x)


def _suppresses(net: Net, x: Tensor) -> Tensor:
    h = net.b(x)
    with contextlib.suppress(ValueError):
        if x.mean() > 0:
            raise ValueError
        h = net.a(x)
    return h


def _replaces_an_attribute(net: Net, x: Tensor) -> Tensor:
    if x.mean() > 0:
        HELD.last = x.mean(0)
    return net.a(x) * HELD.last


HELD = SimpleNamespace(last=torch.ones(6))

TASKS: dict[str, Callable[[], Task]] = {
    "in the loss": lambda: _with_loss(_in_the_loss),
    "in model and loss": lambda: _with_loss(_in_both),
    "a buffer": lambda: task_of(_writes_on_one),
    "running statistics": lambda: task_of(_norms_on_one),
    "a loop": lambda: task_of(_loops),
    "a break": lambda: task_of(_breaks),
    "asked again": lambda: task_of(_asks_again),
    "numbers": lambda: task_of(_takes_numbers),
    "numbers of Python": lambda: task_of(_by_python),
    "places": lambda: task_of(_at_places),
    "a checkpoint": lambda: task_of(_in_a_checkpoint),
    "a hook": lambda: task_of(_in_a_hook),
    "an error that is caught": lambda: task_of(_catches),
    "an error that is suppressed": lambda: task_of(_suppresses),
    "an attribute": lambda: task_of(_replaces_an_attribute),
    "micro-batches": lambda: task_of(_writes_on_one, micro_batches=2),
    "clipped": lambda: _with_loss(_in_both, max_grad_norm=0.1),
    "Adam": lambda: task_of(_writes_on_one, optimizer=lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3)),
    "RMSprop, without some gradients": lambda: _with_loss(
        _in_both, optimizer=lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-2)
    ),
}


@pytest.mark.slow_but("in the loss", "a buffer")
@pytest.mark.parametrize("name", TASKS)
def test_it_trains_as_by_pytorch_on_both_paths(name: str) -> None:
    HELD.last = torch.ones(6)
    found = trained_both_ways(TASKS[name])
    assert found.apart < NEAR
    assert found.decided_both_ways or name == "places"
    Job.from_task(TASKS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 8])
def test_random_ifs_train_as_by_pytorch(first: int) -> None:
    both_ways = 0
    for seed in range(first, first + 8):
        space: dict[str, Any] = {"torch": torch, "random": random, "np": np}
        exec(random_source(seed), space)
        found = trained_both_ways(lambda space=space: task_of(space["forward"]))
        assert found.apart < 10 * NEAR, random_source(seed)
        both_ways += found.decided_both_ways
    assert both_ways > 4


def _not_finite(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if x.abs().max() > 1e3:
        h = torch.log(-h.abs()) / 0 + net.b(x).sum() * float("inf")
        net.kept.add_(float("nan"))
        net.a.weight.data.mul_(1.0)
    return h * net.kept


def test_what_is_not_finite_on_a_path_that_is_not_taken_reaches_nothing() -> None:
    found = trained_both_ways(lambda: task_of(_not_finite))
    assert found.apart < NEAR


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_index_outside_of_its_axis_stops_the_run_on_the_path_that_is_taken_alone(is_taken: bool) -> None:
    rows = task_of(lambda net, x: x).dataset["x"]
    assert isinstance(rows, Tensor) and rows.abs().max() > rows[:8].abs().max()
    limit = float(rows[:8].abs().max()) if is_taken else 1e6

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.a(x)
        if x.abs().max() > limit:
            place = (x.abs().max() * 100).long()
            h = h + net.b.weight[torch.stack([place, place])].sum() + F.embedding(place[None], net.b.weight).sum()
        return h

    if not is_taken:
        assert trained_both_ways(lambda: task_of(forward)).apart < NEAR
    else:
        with pytest.raises(StoppedError, match=r"is not in \[0, 6\)"):
            trained_both_ways(lambda: task_of(forward))


def test_a_decision_that_was_taken_is_not_taken_again() -> None:
    def twice(net: Net, x: Tensor) -> Tensor:
        h = net.a(x) * 2 if x.sum() > 0 else net.a(x)
        return h + 1 if x.sum() > 0 else h - 1

    def once(net: Net, x: Tensor) -> Tensor:
        return net.a(x) * 2 + 1 if x.sum() > 0 else net.a(x) - 1

    assert capture(task_of(twice)).program == capture(task_of(once)).program


def test_a_value_that_changes_between_is_asked_again() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        sign = x.mean().reshape(1).clone()
        seen = sign[0]
        h = net.a(x) if seen > 0 else net.b(x)
        sign.neg_()
        return h * 2 if seen > 0 else h

    found = trained_both_ways(lambda: task_of(forward))
    assert found.apart < NEAR and found.decided_both_ways


def test_what_paths_share_is_computed_once() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = torch.tanh(net.b(F.dropout(net.a(x), 0.3)))
        return h if h.sum() > 0 else h.flip(0)

    program = capture(task_of(forward)).program
    assert sum(node.op == "uniform" for node in program.nodes) == 1
    assert sum(node.op == "tanh" for node in program.nodes) == 1


def test_an_if_that_only_prints_takes_nothing() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        if x.sum() > 0:
            print(f"{x.sum().item():.3f}")
        return net.a(x)

    assert capture(task_of(forward)).program == capture(task_of(lambda net, x: net.a(x))).program


def test_a_check_takes_no_path() -> None:
    plain = capture(task_of(lambda net, x: torch.tanh(net.a(x)))).program
    assert capture(task_of(lambda net, x: checked_steps.asserts(net.a(x)))).program == plain


NUMBERS = [0.1, 0.1 + 1e-12, float(np.float32(0.1)), 3, 2**24 + 1, -1e300, 1e-60, float("inf"), True]


@pytest.mark.parametrize("named", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_number_is_compared_as_python_compares_it(named: str) -> None:
    """0.1 as FP32 is above 0.1."""
    compare = getattr(operator, named)
    with np.errstate(over="ignore"):
        near = [np.nextafter(np.float32(n), np.float32(to)) for n in NUMBERS for to in (n, -np.inf, np.inf)]
    for limit in NUMBERS:
        builder = Builder()
        context: Any = SimpleNamespace(
            builder=builder, dtype=builder.dtype, op=builder.op, f32=lambda n, b=builder: b.constant(n, DType.F32)
        )
        x = builder.source_op("state", TensorType((), DType.F32), slot=0)
        results = [OF_NUMBERS[compare](context, x, limit), OF_NUMBERS[compare](context, limit, x)]
        for number in (*near, np.float32("nan")):
            values = [_computed(builder, result, number) for result in results]
            assert values == [compare(float(number), limit), compare(limit, float(number))], (number, limit)


def _computed(builder: Builder, value: int, number: np.float32) -> Any:
    node = builder.nodes[value]
    if node.op == "state":
        return number
    if node.op == "constant":
        (bits,) = node.attributes["bits"]  # type: ignore[misc]
        return np.uint32(bits).view(np.float32) if node.type.dtype == DType.F32 else bool(bits)
    inputs = [_computed(builder, one, number) for one in node.inputs]
    return {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "logical_not": operator.not_}[node.op](*inputs)


def _counted(net: Net, x: Tensor) -> Tensor:
    HELD.seen += 1
    if x.mean() > 0:
        HELD.flips += 1
        return net.a(x.flip(-1))
    return net.a(x)


def test_a_count_of_one_path_may_be_printed_and_no_more() -> None:
    HELD.seen = HELD.flips = 0
    capture(task_of(_counted))
    with pytest.raises(CaptureError, match=r"uses HELD\.flips, a number of Python that steps compute"):
        capture(task_of(lambda net, x: _counted(net, x) * (2 if HELD.flips > 3 else 1)))
    assert HELD.seen == HELD.flips == 0


def _left_by_the_first_step(left: Any) -> Task:
    """A step whose first run leaves one of two things in `net.left` for good, and in which the other one counts later
    than capture compares. Of the first 8 rows the mean is -0.44; of the first batch -0.21."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h, late = net.a(x), x[:, 0].mean() > -0.1
        if late:
            h = net.b(h) * 1.5
        if net.left in (7, "other", [7]) and late:
            h = net.norm(h)
        is_first, is_low = net.left in (0, "first", []), bool(x.mean() < -0.3)
        if isinstance(net.left, list):
            net.left.extend([5 if is_low else 7] if is_first else [])
        elif is_low:
            net.left = 5 if isinstance(net.left, int) else "one"
        elif is_first:
            net.left = 7 if isinstance(net.left, int) else "other"
        return h

    task = task_of(forward)
    task.model.left = left
    return task


def _a_text_in_a_list() -> Task:
    """The same with texts in a list, which is read at every step."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h, late = net.a(x), x[:, 0].mean() > -0.1
        if net.left == ["other"] and late:
            h = net.norm(h)
        is_low = bool(x.mean() < -0.3)
        if not net.left:
            net.left.append("one" if is_low else "other")
        return h

    task = task_of(forward)
    task.model.left = []
    return task


def _kept_apart(net: Net, x: Tensor) -> Tensor:
    net.mode = "up" if x.mean() > 0 else "down"
    return net.a(x) * (2 if net.mode == "up" else 1)


def _without_end(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    while h.norm() > 1e-3:
        h = h * 0.5
    return h


def _too_many(net: Net, x: Tensor) -> Tensor:
    for row in x[:5]:
        x = x + 1 if row.sum() > 0 else x
    return net.a(x)


def _fails(net: Net, x: Tensor) -> Tensor:
    return net.a(x).reshape(7) if x.mean() > 3 else net.a(x)


def _writes_through_a_copy(net: Net, x: Tensor) -> Tensor:
    y, top = net.a(x).clone(), random.randint(0, 2)
    y[:, top : top + 2].zero_()
    return y


def _writes_after_a_part(net: Net, x: Tensor) -> Tensor:
    y = net.a(x).clone()
    row = y[random.randint(0, 2)]
    y.mul_(2)
    return y + row


def _assigns_elsewhere(net: Net, x: Tensor) -> Tensor:
    y, top = net.a(x).clone(), random.randint(0, 2)
    row = y[top]
    row.add_(1)
    y[top + 1] = row
    return y


def _of_unknown_size(net: Net, x: Tensor) -> Tensor:
    return net.a(x)[:, : random.randint(1, 3)]


def _draws_an_array(net: Net, x: Tensor) -> Tensor:
    return net.a(x * torch.from_numpy(np.random.rand(8, 1)).float())


REFUSED: dict[str, tuple[Callable[[], Task], str]] = {
    "text": (lambda: task_of(_kept_apart), r"changes model\.mode"),
    "a number of the first step": (
        lambda: _left_by_the_first_step(0),
        r"uses model\.left, a number of Python that steps",
    ),
    "a text of the first step": (lambda: _left_by_the_first_step("first"), r"changes model\.left by values"),
    "a list of the first step": (lambda: _left_by_the_first_step([]), r"reads model\.left, which"),
    "a list of texts of the first step": (_a_text_in_a_list, r"reads model\.left, which"),
    "without end": (lambda: task_of(_without_end), r"\(at test_branches\.py:\d+\).* may have 16 paths at most"),
    "32 paths": (lambda: task_of(_too_many), r"\(at test_branches\.py:\d+\).* may have 16 paths at most"),
    "a path that fails": (lambda: task_of(_fails), r"shape '\[7\]' is invalid .*\(at test_branches\.py:\d+\)"),
    "a gradient that Adam counts": (
        lambda: _with_loss(_in_both, optimizer=torch.optim.Adam),
        "gets a gradient on some of the step's paths only, and Adam counts",
    ),
    "a view": (lambda: task_of(_writes_through_a_copy), r"\(at test_branches\.py:\d+\): assign to the part"),
    "a view that changes": (lambda: task_of(_writes_after_a_part), r"\(at test_branches\.py:\d+\): take the part of a"),
    "a view assigned elsewhere": (lambda: task_of(_assigns_elsewhere), r"\(at test_branches\.py:\d+\): assign to the"),
    "a remainder": (lambda: task_of(lambda net, x: net.a(x) * (random.randint(0, 9) % 3)), "computes mod of a number"),
    "a size": (lambda: task_of(_of_unknown_size), "depends on values"),
    "an array": (lambda: task_of(_draws_an_array), "draws from numpy.random"),
    "a quotient": (
        lambda: task_of(lambda net, x: net.a(x) * (1 / x.mean().item())),
        "divides by a number|combines a number",
    ),
}


@pytest.mark.slow_cases("32 paths")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_in_a_sentence(name: str) -> None:
    make, sentence = REFUSED[name]
    with pytest.raises(CaptureError, match=sentence) as caught:
        Job.from_task(make())
    assert "\n" not in str(caught.value)


def test_running_statistics_are_kept_though_nothing_uses_the_layer() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.norm(x)
        return net.a(x)

    assert trained_both_ways(lambda: task_of(forward)).apart < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in model and loss", "running statistics", "micro-batches", "places"])
def test_programs_with_paths_give_the_same_bits_in_every_number_of_micro_batches(name: str, tmp_path: Path) -> None:
    task = TASKS[name]()
    captured = capture(task)
    for step in range(STEPS):
        inputs = StepInputs(
            states=list(captured.states.values()),
            data=list(task.batch(torch.arange(step, step + 8)).values()),
            schedule=captured.schedule[step],
            seed=0,
            step=step,
            device=torch.device("cpu"),
        )
        whole = Executor(captured.program).run(inputs, Recorder(4))
        for count in range(2, samples_of(captured.program) + 1, 3):
            cut = MicrobatchExecutor(captured.program, count, tmp_path).run(inputs, Follower.without_log(4))
            assert cut.loss == whole.loss
            assert all(map(torch.equal, cut.states, whole.states))
