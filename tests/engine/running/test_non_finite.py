"""A loss or a next state that is infinite or NaN ends the run, by the same sentence for trainer and auditor. It names
the operator where that began, and with nothing recorded of that interval. Inside of a step such numbers flow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.capture import Task
from roundlog.commitments import state_root
from roundlog.data import as_field, data_tree
from roundlog.execution import IndexRangeError, NonFiniteError
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job, JobError
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.tasks import small_task

HUGE = 3e38


class Scale(nn.Module):
    """One parameter, 1, that everything is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


Function = Callable[[torch.Tensor], torch.Tensor]

CASES: list[tuple[str, list[float], Function, str, str, int]] = [
    ("exp", [1, 2, 100, 200], torch.exp, "exp", "inf", 2),
    ("sum that FP64 could hold", [HUGE, HUGE, -1, 1], lambda x: x.sum(0) / 2, "sum", "inf", 0),
    ("matmul", [1, 2, HUGE, 3], lambda x: (x.reshape(2, 2) @ x.reshape(2, 2).T).sum(), "matmul", "inf", 3),
    ("in the middle of a chain", [1, 2, 3, 5e18], lambda x: ((x + 1) * x * x).neg().abs() - 1, "mul", "inf", 3),
]


def task_of(values: list[float], function: Function, lr: float = 0.0) -> Task:
    model = Scale()
    data, optimizer = {"x": torch.tensor([values]).float()}, torch.optim.SGD(model.parameters(), lr=lr)
    loss = lambda model, batch: function(model(batch["x"]).reshape(-1)).sum()  # noqa: E731
    return small_task(model, loss, data, optimizer=optimizer, steps=2)


def job_of(values: list[float], function: Function, lr: float = 0.0) -> Job:
    return Job.from_task(lambda: task_of(values, function, lr), compare=False)


@pytest.mark.slow_but("matmul")
@pytest.mark.parametrize(("what", "values", "function", "name", "value", "element"), CASES, ids=[c[0] for c in CASES])
def test_a_value_that_is_not_finite_is_named(
    what: str, values: list[float], function: Function, name: str, value: str, element: int, tmp_path: Path
) -> None:
    job = job_of(values, function)
    with pytest.raises(NonFiniteError) as caught:
        Trainer(job, tmp_path / "train").run()
    message = str(caught.value)
    assert re.match(r"step 0: operator \d+ \(loss\) gets (nan|inf|-inf) at element 0: operator \d+ ", message), message
    assert re.search(rf" \({name}, [^)]*\) gives {value} at element {element}: lower the learning rate", message), (
        message
    )
    assert (tmp_path / "train" / "roots").read_bytes() == b""
    assert [path for path in (tmp_path / "train" / "log").iterdir() if path.suffix == ".rlog"] == []
    with pytest.raises(NonFiniteError) as again:
        Auditor(job, tmp_path / "audit").run()
    assert str(again.value) == message


def test_a_sum_that_only_passes_through_the_infinite_is_finite(tmp_path: Path) -> None:
    """One right answer, the correctly rounded one: adding from the left in FP32 would have stopped at infinity."""
    Trainer(job_of([HUGE, HUGE, -HUGE, 1], lambda x: x.sum(0)), tmp_path / "train").run()


def test_an_update_that_leaves_the_range_is_named_after_the_step_in_which_it_does(tmp_path: Path) -> None:
    job = job_of([1, 2, 3, 4], lambda x: x * x, lr=1e36)
    with pytest.raises(NonFiniteError, match=r"^step 1: operator \d+ \("):
        Trainer(job, tmp_path / "train").run()
    assert len((tmp_path / "train" / "roots").read_bytes()) == 32


def test_an_infinity_passes_wherever_the_step_discards_it(tmp_path: Path) -> None:
    def task(*values: float) -> Job:
        squares = replace(
            task_of(list(values), lambda x: x),
            loss=lambda model, batch: model((batch["x"] * batch["x"]).clamp(max=1.0)).sum(),
        )
        return Job.from_task(lambda: squares, compare=False)

    Trainer(task(1, 2, 3, float("inf")), tmp_path / "comes in").run()
    Trainer(task(1, HUGE, 3, float("inf")), tmp_path / "overflows").run()


def test_data_that_reach_the_loss_are_named_where_nothing_else_is_to_blame(tmp_path: Path) -> None:
    job = job_of([1, 2, float("inf"), 4], lambda x: x)
    sentence = r"gets inf at element 0: operator \d+ \(data\) has inf at element 2: leave such numbers out of the data"
    with pytest.raises(NonFiniteError, match=sentence):
        Trainer(job, tmp_path).run()


def test_an_index_that_leaves_its_axis_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(4, 3)
    task = Task(
        model=table,
        loss=lambda model, batch: model(batch["x"]).sum(),
        optimizer=torch.optim.SGD(table.parameters(), lr=0.1),
        dataset={"x": torch.tensor([[0, 3, 3]])},
        batch_size=1,
        steps=1,
        interval=1,
        seed=0,
    )
    sentence = r"^step 0: operator \d+ \(take, .*\) has no value at element 6: an index from 0 to 4 is not in \[0, 4\)$"
    job, wrong = Job.from_task(lambda: task, compare=False), {"x": as_field(torch.tensor([[0, 3, 4]]))}
    job = replace(job, dataset=wrong, spec=replace(job.spec, data_root=data_tree(wrong.values()).root))
    with pytest.raises(IndexRangeError, match=sentence):
        Trainer(job, tmp_path / "train").run()


def test_a_job_that_starts_with_an_infinity_is_refused(tmp_path: Path) -> None:
    job = job_of([1, 2, 3, 4], lambda x: x)
    initial = {name: torch.full_like(tensor, torch.inf) for name, tensor in job.initial.items()}
    spec = replace(job.spec, initial_state_root=state_root(initial.values()))
    replace(job, initial=initial, spec=spec).write(tmp_path / "job")
    with pytest.raises(JobError, match=r"^parameter/w starts with a number that is not finite, and is updated: "):
        Job.read(tmp_path / "job")
    task = task_of([1, 2, 3, 4], lambda x: x)
    assert isinstance(task.model, Scale)
    task.model.w.data[0] = torch.inf
    with pytest.raises(JobError, match=r"^parameter/w starts with"):
        Job.from_task(lambda: task)


class Masked(Scale):
    """With a buffer of infinities that no step writes to, as a causal mask is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.w + self.mask, -1)


def masked() -> Task:
    model = Masked()
    return replace(
        task_of([1, 2, 3, 4], lambda x: x * torch.arange(4), lr=0.1),
        model=model,
        loss=lambda model, batch: (model(batch["x"]) * torch.arange(4.0)).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


def test_a_buffer_of_infinities_that_no_step_writes_to_is_kept(tmp_path: Path) -> None:
    job = Job.from_task(masked, compare=False)
    Trainer(job, tmp_path / "train").run()
    job.write(tmp_path / "job")
    again = Job.read(tmp_path / "job")
    assert Auditor(again, tmp_path / "audit").run().state_roots == Auditor(job, tmp_path / "other").run().state_roots
    initial = {name: x.masked_fill(x.isinf(), torch.nan) for name, x in job.initial.items()}
    with pytest.raises(JobError, match=r"^buffer/mask starts with NaN: no run can follow such a job"):
        replace(job, initial=initial).write(tmp_path / "nan")
        Job.read(tmp_path / "nan")


def test_data_with_nan_are_refused_by_the_fields_name(tmp_path: Path) -> None:
    with pytest.raises(
        JobError, match=r"^the data field x has a NaN: leave such rows out, or put a number in its place$"
    ):
        job_of([1, 2, torch.nan, 4], lambda x: x)
    job = job_of([1, 2, 3, 4], lambda x: x)
    replace(job, dataset={"x": as_field(torch.full((1, 4), torch.nan))}).write(tmp_path)
    with pytest.raises(JobError, match=r"^the data field x has a NaN: "):
        Job.read(tmp_path)


DISCARDED: list[tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    ("log where positive", lambda x, w: (torch.where(x > 0, torch.log(x), 0.0) * w).sum()),
    ("a row that a mask hides", lambda x, w: (torch.full((4, 4), -torch.inf).triu(1) + x * w).softmax(-1)[:, 0].sum()),
    ("sorted with NaN", lambda x, w: (torch.sqrt(x).sort()[0].nan_to_num(3.0) * w).sum()),
    ("xlogy at zero", lambda x, w: (torch.xlogy(x.clamp(min=0), x.clamp(min=0)) * w).sum()),
]


@pytest.mark.slow_but("a row*")
@pytest.mark.parametrize(("what", "function"), DISCARDED, ids=[case[0] for case in DISCARDED])
def test_what_pytorch_discards_is_discarded(
    what: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    values = torch.tensor([[1.5, 0.0, -3.0, 4.0]])
    model = Scale()
    task = replace(
        task_of([], lambda x: x, lr=0.125),
        model=model,
        loss=lambda model, batch: function(batch["x"][0], model.w),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.125),
        dataset={"x": values},
    )
    job = Job.from_task(lambda: task, compare=False)
    Trainer(job, tmp_path).run()
    for _ in range(2):
        model.zero_grad()
        loss = function(values[0], model.w)
        loss.backward()
        assert model.w.grad is not None and loss.isfinite() and model.w.grad.isfinite().all()
        model.w.data -= 0.125 * model.w.grad
    torch.testing.assert_close(Run(job, tmp_path).newest(2)[1][0], model.w.data)
