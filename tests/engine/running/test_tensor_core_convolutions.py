"""Jobs whose convolutions are products of tensor cores: over one and two axes, with biases and without, transposed
ones, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.program import DType
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import Tensor, nn
from torch.nn import functional as F

CONVOLUTIONS = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
DIMENSIONS = {"lines": (9,), "images": (6, 7)}
"""Sizes of the input of a case."""


class Convolutions(nn.Module):
    """Convolutions over as many axes as there are sizes: with a bias, grouped, transposed, and depthwise ones."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(3)
        plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(sizes) - 1]
        turned = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(sizes) - 1]
        self.layers = nn.Sequential(
            plain(2, 4, 3, padding=2, dilation=2),
            nn.ReLU(),
            plain(4, 6, 2, stride=2, padding=1, groups=2, bias=False),
            nn.Tanh(),
            turned(6, 4, 3, stride=2, padding=1, groups=2, bias=False),
            nn.ReLU(),
            plain(4, 4, 1, groups=4),
        )
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layers(x).flatten(2).mean(2))
        return y


def classify(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def task(sizes: tuple[int, ...]) -> Task:
    model, generator = Convolutions(sizes), torch.Generator().manual_seed(1)
    return Task(
        model=model,
        loss=classify,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={
            "x": torch.randn(20, 2, *sizes, generator=generator),
            "y": torch.randint(0, 3, (20,), generator=generator),
        },
        batch_size=6,
        steps=4,
        interval=2,
        seed=1,
    )


@pytest.mark.slow_but("images")
@pytest.mark.parametrize("case", DIMENSIONS)
def test_all_convolutions_of_a_step_are_products_and_audits_agree(case: str, tmp_path: Path) -> None:
    exact, job = (
        Job.from_task(lambda: task(DIMENSIONS[case])),
        Job.from_task(lambda: task(DIMENSIONS[case]), arithmetic="hopper"),
    )
    convolved = [node for node in exact.program.nodes if node.op in CONVOLUTIONS]
    multiplied = [node for node in exact.program.nodes if node.op == "matmul"]
    products = [node for node in job.program.nodes if node.op == "tensor_core_matmul"]
    assert len(convolved) >= 11 and not any(node.op in CONVOLUTIONS for node in job.program.nodes)
    assert len(products) == len(convolved) + len(multiplied) and {node.type.dtype for node in products} == {DType.BF16}
    job.write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    result = Trainer(job, tmp_path / "run").run()
    for micro_batches in (1, 2):
        options = RunOptions(micro_batches=micro_batches)
        found = Auditor(job, tmp_path / f"{micro_batches}", options, log_dir=result.log_dir).run()
        assert found.state_roots == result.state_roots and found.findings == []


def test_volumes_of_short_numbers_are_refused_with_the_rewrite() -> None:
    with pytest.raises(CaptureError, match=r"volumes of short numbers, .*: use \.float\(\) before"):
        Job.from_task(lambda: task((4, 5, 4)), arithmetic="hopper")
