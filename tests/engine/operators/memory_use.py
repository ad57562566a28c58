"""Print, for operators on inputs that leave every element ambiguous, the memory that they declare and the memory that
they take, recorded or followed, and how many sums superaccumulators decide: one JSON list of [label, declared, taken,
decided], bytes beside the inputs.

Taken is the process's peak of resident memory (Linux: /proc/self/status, reset by /proc/self/clear_refs)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import torch
from roundlog.kernels import exact_products, superaccumulator
from roundlog.kernels.exact_products import F32, I64, Runs
from roundlog.number_format import Format
from roundlog.operators import REGISTRY, Inexact
from roundlog.program import DType, TensorType
from roundlog.rounding import Follower, Recorder

from tests.engine.microbatch.memory_taken import taken

Case = tuple[str, str, list[torch.Tensor], dict[str, object]]


def _halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers whose products cancel, but for a sum of 1 + 2^-24: half-way between two FP32 numbers, which only integers
    can decide."""
    a, b = torch.rand(count // 2) + 1, torch.rand(count // 2) + 1
    x, y = torch.cat([a, a.flip(0)]), torch.cat([b, -b.flip(0)])
    x[0], x[-1], y[0], y[-1] = 1.0, 2.0**-24, 1.0, 1.0
    return x, y


def cases(scale: int = 1) -> Iterator[Case]:
    """(label, operator, inputs, attributes); `scale` divides the sizes."""
    x, y = _halves((1 << 22) // scale)
    yield "one long dot product", "matmul", [x[None], y[:, None]], {}
    yield "one long sum", "sum", [x * y], {"dims": (0,)}
    yield "one long scatter", "scatter_add", [x * y, torch.zeros(len(x), dtype=torch.int64)], {"dim": 0, "size": 2}
    tie = torch.tensor([1.0, 2.0**-24, 2.0**-149, -(2.0**-149)])
    yield "ties", "sum", [tie.expand((1 << 21) // scale, -1).contiguous()], {"dims": (1,)}
    rows, columns = torch.rand(1024, 8) + 1, torch.randn(8, (1 << 11) // scale)
    rows[:, 4:], columns[4:] = rows[:, :4], -columns[:4]
    yield "products that cancel", "matmul", [rows, columns], {}
    yield "BF16 products that cancel", "matmul", [rows.bfloat16(), columns.bfloat16()], {}
    tie = torch.tensor([1.0, 2.0**-8, 2.0**-133, -(2.0**-133)], dtype=torch.bfloat16)
    yield "BF16 ties", "sum", [tie.expand((1 << 21) // scale, -1).contiguous()], {"dims": (1,)}


def _count_exact_sums() -> list[int]:
    """Has superaccumulators note how many sums they round, in the list that is returned, and do all else as ever."""
    counted: list[int] = []
    rounded, round_products = superaccumulator.rounded, exact_products.round_products

    def counting_sums(sums: I64, format: Format) -> F32:
        counted.append(len(sums))
        return rounded(sums, format)

    def counting_products(a: Runs, b: Runs, of_a: I64, of_b: I64, format: Format) -> F32:
        counted.append(len(of_a))
        return round_products(a, b, of_a, of_b, format)

    superaccumulator.rounded, exact_products.round_products = counting_sums, counting_products
    return counted


def measure(case: Case, counted: list[int]) -> tuple[str, int, int, int]:
    label, name, inputs, attributes = case
    operator = REGISTRY[name]
    assert isinstance(operator, Inexact)
    kinds = [TensorType(tuple(x.shape), DType.of(x.dtype)) for x in inputs]
    output = operator.infer(kinds, attributes, kinds[0])  # type: ignore[arg-type]
    recorder, follower = Recorder(4), Follower(4, 0.05, np.random.default_rng(1))
    most = 0
    counted.clear()
    format = output.dtype.number_format()
    for rounding in (recorder, follower):
        most = max(most, taken(lambda rounding=rounding: rounding.round(0, operator, inputs, attributes, format)))  # type: ignore[misc]
        if rounding is recorder:
            follower.follow(0, recorder.take())
    declared = operator.workspace(kinds, attributes, output) + output.nbytes  # type: ignore[arg-type]
    return label, declared, most, sum(counted)


def main() -> None:
    torch.set_num_threads(1)
    counted = _count_exact_sums()
    for case in cases(64):
        measure(case, counted)  # loads and compiles what is needed
    print(json.dumps([measure(case, counted) for case in cases()]))


if __name__ == "__main__":
    main()
