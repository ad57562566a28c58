"""Jobs whose products are those of tensor cores: one root, however they run, and another one for every arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.operators.job_arithmetic import EXACT, arithmetic_of, with_arithmetic
from roundlog.program import DType, ProgramError
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer, TrainingResult
from torch import nn

from tests.engine.tasks import SIX_STEPS, classify, small_task


class Layers(nn.Module):
    """Layers with products of several groups. f32[B, 40] -> f32[B, 3]."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(40, 36, dtype=dtype), nn.Linear(36, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x.to(self.first.weight.dtype)))).float()


def task(dtype: torch.dtype = torch.bfloat16) -> Task:
    model, generator = Layers(dtype), torch.Generator().manual_seed(1)
    data = {"x": torch.randn(20, 40, generator=generator), "y": torch.randint(0, 3, (20,), generator=generator)}
    return small_task(model, classify, data, **SIX_STEPS)


Trained = tuple[Job, TrainingResult]


@pytest.fixture(scope="module", params=["hopper", pytest.param("ampere", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp(request.param)
    made = Job.from_task(task, arithmetic=request.param, compare=False)
    made.write(directory / "job")
    job = Job.read(directory / "job")
    assert job.arithmetic == request.param
    return job, Trainer(job, directory / "run").run()


def test_every_product_of_matrices_is_that_of_the_arithmetic(trained: Trained) -> None:
    job, _ = trained
    exact = Job.from_task(task, compare=False).program
    products = [node for node in job.program.nodes if node.op == "tensor_core_matmul"]
    assert len(products) == sum(node.op == "matmul" for node in exact.nodes) >= 5
    assert not any(node.op == "matmul" for node in job.program.nodes)
    assert [node.type.shape for node in job.program.nodes] == [node.type.shape for node in exact.nodes]
    assert {node.type.dtype for node in products} == {DType.BF16}
    assert arithmetic_of(exact) == EXACT and with_arithmetic(exact, EXACT) is exact


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_audit_comes_to_the_same_roots(trained: Trained, tmp_path: Path, micro_batches: int) -> None:
    job, result = trained
    options = RunOptions(micro_batches=micro_batches)
    for number, log in enumerate((None, result.log_dir)):
        found = Auditor(job, tmp_path / f"{number}", options, log_dir=log).run()
        assert found.state_roots == result.state_roots and found.findings == []


@pytest.mark.slow
def test_another_arithmetic_comes_to_other_roots(tmp_path: Path) -> None:
    """Two large terms of every sum cancel, so that what is left of the others shows."""
    cancelling, roots = task(), set()
    cancelling.dataset["x"][:, 0], cancelling.dataset["x"][:, 1] = 2.0**20, -(2.0**20)
    weights = cancelling.model.state_dict()["first.weight"]
    weights[:, 1] = weights[:, 0]
    for name in (EXACT, "hopper", "ampere"):
        job = Job.from_task(lambda: cancelling, arithmetic=name, compare=False)
        roots.add(Trainer(job, tmp_path / name).run().checkpoint_root)
    assert len(roots) == 3


@pytest.mark.slow
def test_fewer_bits_are_those_of_fp32_values_alone(tmp_path: Path) -> None:
    job = Job.from_task(task, arithmetic="hopper", bits=24, compare=False)
    result = Trainer(job, tmp_path / "run").run()
    assert Auditor(job, tmp_path / "audit", log_dir=result.log_dir).run().state_roots == result.state_roots


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "said"),
    [
        (torch.bfloat16, "turing", "there is no arithmetic 'turing': choose exact, hopper, ampere, volta"),
        (torch.bfloat16, "volta", "the program multiplies no matrices of f16: leave the arithmetic volta away"),
        (
            torch.float32,
            "hopper",
            "the program multiplies no matrices of bf16 or f16: leave the arithmetic hopper away",
        ),
    ],
)
def test_arithmetics_that_there_are_not_or_that_change_nothing_are_refused(
    dtype: torch.dtype, arithmetic: str, said: str
) -> None:
    with pytest.raises(ProgramError) as refused:
        Job.from_task(lambda: task(dtype), arithmetic=arithmetic, compare=False)
    assert str(refused.value) == said


def test_volumes_of_short_numbers_are_refused_with_the_rewrite() -> None:
    model = nn.Sequential(nn.Conv3d(2, 3, 2), nn.Conv3d(3, 2, 2)).to(torch.bfloat16)
    volumes = replace(
        task(),
        model=model,
        loss=lambda m, batch: m(batch["x"].bfloat16()).float().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(20, 2, 4, 5, 4)},
    )
    with pytest.raises(CaptureError, match=r"volumes of short numbers, .*: use \.float\(\) before"):
        Job.from_task(lambda: volumes, arithmetic="hopper", compare=False)
