"""A value that becomes infinite or NaN ends the run, wherever it arises: at the first operator and element of it, by
the same sentence for trainer and auditor, and with nothing recorded of that interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.auditor import Auditor
from roundlog.capture import Task
from roundlog.commitments import state_root
from roundlog.executor import IndexRangeError, NonFiniteError
from roundlog.job import Job, JobError
from roundlog.trainer import Trainer
from torch import nn

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
    ("expm1", [1, 2, 3, 100], torch.expm1, "expm1", "inf", 3),
    ("log of zero", [1, 0, 3, 0], torch.log, "log", "-inf", 1),
    ("log of a negative number", [1, 2, -3, -1], torch.log, "log", "nan", 2),
    ("log1p at its pole", [1, -1, 3, 4], torch.log1p, "log1p", "-inf", 1),
    ("division by zero", [1, 2, 3, 0], lambda x: 1 / x, "div", "inf", 3),
    ("root of a negative number", [4, -4, 4, 4], torch.sqrt, "sqrt", "nan", 1),
    ("product", [1, 2, 3, HUGE], lambda x: x * x, "mul", "inf", 3),
    ("sum", [HUGE, HUGE, 1, 1], lambda x: x.sum(0), "sum", "inf", 0),
    ("sum that FP64 could hold", [HUGE, HUGE, -1, 1], lambda x: x.sum(0) / 2, "sum", "inf", 0),
    ("matmul", [1, 2, HUGE, 3], lambda x: (x.reshape(2, 2) @ x.reshape(2, 2).T).sum(), "matmul", "inf", 3),
    ("in the middle of a chain", [1, 2, 3, 5e18], lambda x: ((x + 1) * x * x).neg().abs() - 1, "mul", "inf", 3),
]


def task_of(values: list[float], function: Function, lr: float = 0.0) -> Task:
    model = Scale()
    return Task(
        model=model,
        loss=lambda model, batch: function(model(batch["x"]).reshape(-1)).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        dataset={"x": torch.tensor([values], dtype=torch.float32)},
        batch_size=1,
        steps=2,
        interval=1,
        seed=0,
    )


def job_of(values: list[float], function: Function, lr: float = 0.0) -> Job:
    return Job.from_task(task_of(values, function, lr))


@pytest.mark.parametrize(("what", "values", "function", "name", "value", "element"), CASES, ids=[c[0] for c in CASES])
def test_a_value_that_is_not_finite_is_named(
    what: str, values: list[float], function: Function, name: str, value: str, element: int, tmp_path: Path
) -> None:
    job = job_of(values, function)
    with pytest.raises(NonFiniteError) as caught:
        Trainer(job, tmp_path / "train").run()
    message = str(caught.value)
    assert message.startswith("step 0: operator ") and f" ({name}, " in message, message
    assert f" gives {value} at element {element}: " in message, message
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


def test_an_infinity_may_pass_where_one_comes_in_and_nowhere_else(tmp_path: Path) -> None:
    def task(*values: float) -> Job:
        squares = replace(
            task_of(list(values), lambda x: x),
            loss=lambda model, batch: model((batch["x"] * batch["x"]).clamp(max=1.0)).sum(),
        )
        return Job.from_task(squares)

    Trainer(task(1, 2, 3, float("inf")), tmp_path / "passes").run()
    with pytest.raises(NonFiniteError, match=r"\(mul, .*\) gives inf at element 1: "):
        Trainer(task(1, HUGE, 3, float("inf")), tmp_path / "stops").run()


def test_an_index_that_leaves_its_axis_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(4, 3)
    task = Task(
        model=table,
        loss=lambda model, batch: model(batch["x"]).sum(),
        optimizer=torch.optim.SGD(table.parameters(), lr=0.1),
        dataset={"x": torch.tensor([[0, 3, 4]])},
        batch_size=1,
        steps=1,
        interval=1,
        seed=0,
    )
    sentence = r"^step 0: operator \d+ \(take, .*\) has no value at element 6: an index from 0 to 4 is not in \[0, 4\)$"
    with pytest.raises(IndexRangeError, match=sentence):
        Trainer(Job.from_task(task), tmp_path / "train").run()


def test_a_job_that_starts_with_an_infinity_is_refused(tmp_path: Path) -> None:
    job = job_of([1, 2, 3, 4], lambda x: x)
    initial = {name: torch.full_like(tensor, torch.inf) for name, tensor in job.initial.items()}
    spec = replace(job.spec, initial_state_root=state_root(initial.values()))
    replace(job, initial=initial, spec=spec).write(tmp_path / "job")
    with pytest.raises(JobError, match=r"^parameter/w starts with a number that is not finite: "):
        Job.read(tmp_path / "job")
    task = task_of([1, 2, 3, 4], lambda x: x)
    assert isinstance(task.model, Scale)
    task.model.w.data[0] = torch.inf
    with pytest.raises(JobError, match=r"^parameter/w starts with"):
        Job.from_task(task)
