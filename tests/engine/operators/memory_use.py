"""Print, for operators on inputs that leave every element ambiguous, the memory that they declare and the memory that
they take, recorded or followed, and how many sums superaccumulators decide: one JSON list of [label, declared, taken,
decided], bytes beside the inputs.

Taken is the process's peak of resident memory (Linux: /proc/self/status, reset by /proc/self/clear_refs)."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from roundlog.kernels import exact_products, superaccumulator
from roundlog.kernels.exact_products import F32, I64, Runs
from roundlog.number_format import Format
from roundlog.operators import REGISTRY, Inexact
from roundlog.program import DType, TensorType
from roundlog.rounding import Follower, Recorder

Case = tuple[str, str, list[torch.Tensor], dict[str, object]]

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


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
    plane = (1, 1, 1 << 11, len(x) >> 11)
    yield "a kernel's gradient", "conv2d_grad_weight", [y.reshape(plane), x.reshape(plane)], {**PLAIN, "size": (1, 1)}
    row = torch.cat([x[:4096] * y[:4096], x[-4096:] * y[-4096:]])
    # The last two keep FP64, and two FP64 numbers, from holding the sum: it is a tie all the same.
    tie = torch.tensor([1.0, 2.0**-24, 2.0**-149, -(2.0**-149)])
    yield "ties", "sum", [tie.expand((1 << 21) // scale, -1).contiguous()], {"dims": (1,)}
    rows, columns = torch.rand(1024, 8) + 1, torch.randn(8, (1 << 11) // scale)
    rows[:, 4:], columns[4:] = rows[:, :4], -columns[:4]
    yield "products that cancel", "matmul", [rows, columns], {}
    yield "BF16 products that cancel", "matmul", [rows.bfloat16(), columns.bfloat16()], {}
    rows, columns = torch.randn(64, (1 << 18) // scale).bfloat16(), torch.randn((1 << 18) // scale, 64).bfloat16()
    yield "long BF16 products", "matmul", [rows, columns], {}
    tie = torch.tensor([1.0, 2.0**-8, 2.0**-133, -(2.0**-133)], dtype=torch.bfloat16)
    yield "BF16 ties", "sum", [tie.expand((1 << 21) // scale, -1).contiguous()], {"dims": (1,)}
    yield "a BF16 sum", "sum", [(x * y).bfloat16()], {"dims": (0,)}
    yield "FP16 functions", "tanh", [(x * 0.0009765625).half()], {}
    yield "many sums", "sum", [row.expand(512 // scale, -1).contiguous()], {"dims": (1,)}


def _status(name: str) -> int:
    (line,) = [text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(name + ":")]
    return int(line.split()[1]) << 10


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
    taken = 0
    counted.clear()
    for rounding in (recorder, follower):
        gc.collect()
        # Memory that has been given back does not count as there.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        rounding.round(0, operator, inputs, attributes, output.dtype.number_format())  # type: ignore[arg-type]
        taken = max(taken, _status("VmHWM") - before)
        if rounding is recorder:
            follower.follow(0, recorder.take())
    declared = operator.workspace(kinds, attributes, output) + output.nbytes  # type: ignore[arg-type]
    return label, declared, taken, sum(counted)


def main() -> None:
    torch.set_num_threads(1)
    counted = _count_exact_sums()
    for case in cases(64):
        measure(case, counted)  # loads and compiles what is needed
    print(json.dumps([measure(case, counted) for case in cases()]))


if __name__ == "__main__":
    main()
