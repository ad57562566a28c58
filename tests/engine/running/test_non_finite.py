"""A value that becomes infinite or NaN ends the run, wherever it arises: at the first operator and element of it, by
the same sentence for trainer and auditor, and with nothing recorded of that interval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from roundlog.auditor import Auditor
from roundlog.capture import Task
from roundlog.executor import NonFiniteError
from roundlog.job import Job
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
    ("log of zero", [1, 0, 3, 0], torch.log, "log", "nan", 1),
    ("log of a negative number", [1, 2, -3, -1], torch.log, "log", "nan", 2),
    ("log1p at its pole", [1, -1, 3, 4], torch.log1p, "log1p", "nan", 1),
    ("division by zero", [1, 2, 3, 0], lambda x: 1 / x, "div", "inf", 3),
    ("root of a negative number", [4, -4, 4, 4], torch.sqrt, "sqrt", "nan", 1),
    ("product", [1, 2, 3, HUGE], lambda x: x * x, "mul", "inf", 3),
    ("sum", [HUGE, HUGE, 1, 1], lambda x: x.sum(0), "sum", "inf", 0),
    ("sum that FP64 could hold", [HUGE, HUGE, -1, 1], lambda x: x.sum(0) / 2, "sum", "inf", 0),
    ("matmul", [1, 2, HUGE, 3], lambda x: (x.reshape(2, 2) @ x.reshape(2, 2).T).sum(), "matmul", "inf", 3),
    ("in the middle of a chain", [1, 2, 3, 5e18], lambda x: ((x + 1) * x * x).neg().abs() - 1, "mul", "inf", 3),
]


def job_of(values: list[float], function: Function, lr: float = 0.0) -> Job:
    model = Scale()
    task = Task(
        model=model,
        loss=lambda model, batch: function(model(batch["x"]).reshape(-1)).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        dataset={"x": torch.tensor([values], dtype=torch.float32)},
        batch_size=1,
        steps=2,
        interval=1,
        seed=0,
    )
    return Job.from_task(task)


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
