"""Products of BF16 matrices with a bias: one product of a program, rounded once, where the bias is the same for every
row, and what PyTorch's kernel gives; else widened to FP32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from roundlog.execution.microbatch.analysis import analyse
from roundlog.program import DType, Node
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import Tensor
from torch.nn import functional as F

from tests.engine.capture.elementwise import Computing, after_a_step
from tests.engine.tasks import in_bf16, short_layers_task

ROWS, TERMS, COLUMNS = 6, 40, 9


Case = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def evaluated(cases: Sequence[Case]) -> tuple[list[Tensor], Sequence[Node]]:
    """Values of functions of BF16 tensors, by one step of a program, and the program's operators."""
    states, program = after_a_step(Computing([(function, tuple(x.bfloat16() for x in xs)) for function, xs in cases]))
    return [states[f"buffer/y{place}"] for place in range(len(cases))], program.nodes


def operands(bias: tuple[int, ...], outer: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(len(bias))
    shapes = (bias, (*outer, ROWS, TERMS), (*outer, TERMS, COLUMNS))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def of_products(nodes: Sequence[Node], dtype: DType) -> list[Node]:
    return [node for node in nodes if node.op == "matmul" and node.type.dtype is dtype]


def nearest(y: Tensor) -> Tensor:
    """FP64 -> BF16, rounded once."""
    single = y.float()
    bits = torch.where(single.double().abs() > y.abs(), single.view(torch.int32) - 1, single.view(torch.int32))
    # Rounded to odd, FP32 has more places than a second rounding can mistake.
    return torch.where(single.double() != y, bits | 1, bits).view(torch.float32).bfloat16()


ONE_PRODUCT: dict[str, Case] = {
    "a row": (torch.addmm, operands((COLUMNS,))),
    "a row of two axes": (torch.addmm, operands((1, COLUMNS))),
    "one number": (torch.addmm, operands((1,))),
    "a number without axes": (torch.addmm, operands(())),
    "a factor that BF16 has": (lambda *xs: torch.addmm(*xs, beta=-1.5), operands((COLUMNS,))),
    "a layer": (lambda b, x, w: F.linear(x, w.T, b), operands((COLUMNS,))),
    "batches": (torch.baddbmm, operands((3, 1, COLUMNS), (3,))),
    "batches with one row": (torch.baddbmm, operands((1, 1, COLUMNS), (3,))),
    "batches with a row of one axis": (torch.baddbmm, operands((COLUMNS,), (3,))),
    "a vector": (lambda b, x, w: torch.mv(x, w[:, 0]), operands((COLUMNS,))),
    "a bias that does not count": (lambda b, x, w: torch.addmm(b + torch.nan, x, w, beta=0), operands((COLUMNS,))),
    "two vectors": (lambda b, x, w: torch.dot(x[0], w[:, 0]), operands((COLUMNS,))),
}


def test_a_bias_of_rows_is_one_more_term_of_a_sum_that_is_rounded_once() -> None:
    ours, nodes = evaluated(list(ONE_PRODUCT.values()))
    assert not of_products(nodes, DType.F32)
    terms = [nodes[node.inputs[0]].type.shape[-1] for node in of_products(nodes, DType.BF16)]
    assert terms == [TERMS + 1] * 9 + [TERMS] * 3
    for (name, (function, xs)), y in zip(ONE_PRODUCT.items(), ours, strict=True):
        assert torch.equal(y, nearest(function(*(x.bfloat16().double() for x in xs)))), name
        assert torch.equal(y, function(*(x.bfloat16() for x in xs))), f"PyTorch rounds {name} once, too"


WIDENED: dict[str, Case] = {
    "every element": (torch.addmm, operands((ROWS, COLUMNS))),
    "a column": (torch.addmm, operands((ROWS, 1))),
    "a factor of the product": (lambda *xs: torch.addmm(*xs, alpha=2), operands((COLUMNS,))),
    "a factor that BF16 has not": (lambda *xs: torch.addmm(*xs, beta=0.1), operands((COLUMNS,))),
    "batches": (torch.baddbmm, operands((3, ROWS, COLUMNS), (3,))),
}


@pytest.mark.slow
def test_any_other_bias_is_added_in_fp32() -> None:
    ours, nodes = evaluated(list(WIDENED.values()))
    assert len(of_products(nodes, DType.F32)) == len(WIDENED) and not of_products(nodes, DType.BF16)
    for (name, (function, xs)), y in zip(WIDENED.items(), ours, strict=True):
        assert torch.equal(y, function(*(x.bfloat16() for x in xs))), name


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_task(short_layers_task)


@pytest.mark.slow
def test_no_layer_multiplies_bf16_numbers_in_fp32(job: Job) -> None:
    for one in (job, Job.from_task(lambda: short_layers_task(in_bf16))):
        assert not of_products(one.program.nodes, DType.F32)
        # Three layers, the gradients of their weights, and of what two of them were given.
        assert len(of_products(one.program.nodes, DType.BF16)) == 8


@pytest.mark.slow
def test_micro_batches_slice_the_column_with_the_samples(job: Job) -> None:
    nodes, layouts = job.program.nodes, analyse(job.program, 3).layouts
    joined = [node for node in nodes if node.op == "cat" and nodes[node.inputs[1]].op == "constant"]
    assert len(joined) == 3
    assert all(layouts[value] is not None for node in joined for value in node.inputs)


@pytest.mark.slow_but("2")
@pytest.mark.parametrize("parts", [2, 6])
def test_audits_come_to_the_root_and_find_the_log_right(job: Job, parts: int, tmp_path: Path) -> None:
    result = Trainer(job, tmp_path / "run").run()
    again = Trainer(job, tmp_path / "again", RunOptions(micro_batches=parts)).run()
    assert again.state_roots == result.state_roots
    for number, log in enumerate((result.log_dir, again.log_dir, None)):
        options = RunOptions(micro_batches=parts if number else 1)
        found = Auditor(job, tmp_path / f"{number}", options, log_dir=log).run()
        assert found.state_roots == result.state_roots and found.findings == []
