"""Steps in BF16 whose own run PyTorch shortens: a weight cast once for several uses, one kernel for a whole LSTM, and
data that are BF16 already."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.training.job import Job
from torch import Tensor, nn

from tests.engine.tasks import small_task


class Step(nn.Module):
    """Layers, used by a function under autocast."""

    def __init__(self, used: Callable[[Step, Tensor], Tensor], middle: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.middle = middle
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.used(self, x).float().square().mean()


def job_of(model: nn.Module, x: Tensor | None = None) -> Job:
    torch.manual_seed(5)
    data = {"x": torch.randn(12, 8) if x is None else x}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    task = small_task(model, lambda m, b: m(b["x"]), data, optimizer=optimizer, batch_size=4, steps=3, seed=3)
    return Job.from_task(lambda: task)


def casts_of_weights(job: Job) -> int:
    """Number of weights, 64 elements each, that a step converts to BF16."""
    nodes = job.program.nodes
    return sum(node.op == "to_bf16" and nodes[node.inputs[0]].op == "state" and node.type.numel == 64 for node in nodes)


def test_a_weight_that_is_used_twice_in_a_region_is_captured() -> None:
    job = job_of(Step(lambda m, x: m.last(torch.relu(m.first(x)) - m.first(-x))))
    assert casts_of_weights(job) == 2


def test_a_field_in_bf16_is_captured() -> None:
    job = job_of(Step(lambda m, x: m.last(m.first(x))), torch.randn(12, 8).bfloat16())
    assert job.dataset["x"].dtype == torch.bfloat16


@pytest.mark.slow
def test_an_lstm_under_autocast_is_refused_and_what_is_said_to_be_written_is_captured() -> None:
    lstm = nn.LSTM(8, 8, batch_first=True)
    with pytest.raises(CaptureError, match=r"an LSTM computes in bfloat16.*nn\.LSTMCell.*\.float\(\).*mkldnn\.flags"):
        job_of(Step(lambda m, x: m.last(m.middle(x[None])[0][0]), lstm))

    def written(m: Step, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False), torch.backends.mkldnn.flags(enabled=False):
            y = m.middle(m.first(x).float()[None])[0][0]
        return m.last(y)

    job_of(Step(written, lstm))
