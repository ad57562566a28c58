"""Speed of certified products and convolutions on one thread, by tiles and by numpy's BLAS, beside bare ones.

    .venv/bin/python scripts/bench_products.py [--rounds 6] [--without-avx512] [--precision bf16]

GFLOP/s by processor time, the best of several interleaved rounds: certified products of FP32 matrices as the small GPT
has them, and convolutions and their two gradients as ResNet-50 has them (batch 4), rounded and marked; bare products
by numpy in FP64 and by torch in FP64 and FP32; and torch's convolution in FP64.

With --precision bf16: certified products of BF16 matrices, in FP32 first and by FP64 tiles alone, beside certified ones
of FP32 matrices, and bare ones by torch in FP32; and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from machines.profiles import without_avx512
from roundlog.kernels import gemm_microkernel
from roundlog.number_format import BFLOAT16
from roundlog.operators import operator
from roundlog.operators.contraction import Contraction
from roundlog.operators.cpu import gemm
from threadpoolctl import threadpool_limits

Work = Callable[[], object]

PRODUCTS = [(512, 384, 1536), (512, 1536, 384), (512, 384, 5000), (1536, 512, 384)]
"""Rows, terms, columns; the last one is a weight's gradient, whose left operand lies transposed."""

CONVOLUTIONS = [
    (64, 64, 56, 3, 1),
    (256, 64, 56, 1, 1),
    (128, 128, 28, 3, 1),
    (256, 256, 28, 3, 2),
    (1024, 256, 14, 1, 1),
    (512, 512, 7, 3, 1),
]
"""Channels, outputs, height and width, those of the kernel, stride."""

BATCH = 4


def certified(lanes: int, name: str, inputs: list[torch.Tensor], attributes: dict[str, Any]) -> Work:
    """A product by tiles of so many lanes; 0: by BLAS."""
    op = operator(name)
    assert isinstance(op, Contraction)

    def work() -> None:
        with patch.object(gemm_microkernel, "tile_lanes", lambda: lanes):
            op.certify(inputs, attributes, 4.0)

    return work


def speeds(works: Sequence[Work], operations: float, rounds: int) -> list[str]:
    least = [float("inf")] * len(works)
    for counted in range(rounds + 1):
        for number, work in enumerate(works):
            spent = seconds(work)
            if counted:
                least[number] = min(least[number], spent)
    return [f"{operations / seconds / 1e9:7.1f}" for seconds in least]


def products(lanes: int, rounds: int) -> None:
    print(f"{'product':>22}   tiles    BLAS  numpy64 torch64 torch32")
    for rows, terms, columns in PRODUCTS:
        a = torch.randn(terms, rows).T if rows == 1536 else torch.randn(rows, terms)
        b = torch.randn(terms, columns)
        wide_a, wide_b = a.double(), b.double()
        array_a, array_b = wide_a.numpy(), wide_b.numpy()
        works: list[Work] = [
            certified(lanes, "matmul", [a, b], {}),
            certified(0, "matmul", [a, b], {}),
            lambda x=array_a, y=array_b: x @ y,  # type: ignore[misc]
            lambda x=wide_a, y=wide_b: x @ y,  # type: ignore[misc]
            lambda x=a, y=b: x @ y,  # type: ignore[misc]
        ]
        print(f"{f'{rows} x {terms} x {columns}':>22}", *speeds(works, 2.0 * rows * terms * columns, rounds))


SHORT = [*PRODUCTS, (2048, 768, 768), (512, 3072, 768), (512, 5000, 384)]
"""Rows, terms and columns of products of the small GPT, and of GPT-2."""
BATCHES = (48, 64, 64, 64)
"""Batches, rows, terms and columns of products of attention."""


def short(fast: bool, inputs: list[torch.Tensor]) -> Work:
    """A product of BF16 matrices, in FP32 first or by FP64 tiles."""
    op = operator("matmul")
    assert isinstance(op, Contraction)

    def work() -> None:
        with patch.object(gemm, "fast_short_products", lambda: fast):
            op.certify_short(inputs, {}, 4.0, BFLOAT16)

    return work


def short_products(lanes: int, rounds: int) -> None:
    print(f"{'product':>22}   BF16   FP64 tiles  FP32 torch32   BF16 / FP32   FP64 tiles / FP32")
    sizes = [(1, *size) for size in SHORT] + [BATCHES]
    for batches, rows, terms, columns in sizes:
        # Weights lie column by column, and the left operand of a weight's gradient transposed.
        a = torch.randn(batches, terms, rows).mT if rows == 1536 else torch.randn(batches, rows, terms)
        b = torch.randn(batches, columns, terms).mT if rows != 1536 else torch.randn(batches, terms, columns)
        narrow = [a.to(torch.bfloat16), b.to(torch.bfloat16)]
        wide = [a, b]
        works = [
            short(True, narrow),
            short(False, narrow),
            certified(lanes, "matmul", wide, {}),
            lambda x=wide: x[0] @ x[1],  # type: ignore[misc]
        ]
        times: list[list[float]] = []
        for _ in range(rounds + 1):
            times.append([seconds(work) for work in works])
        del times[0]
        operations = 2.0 * batches * rows * terms * columns
        speed = [f"{operations / min(column) / 1e9:7.1f}" for column in zip(*times, strict=True)]
        ratios = [statistics.median(row[of] / row[2] for row in times) for of in (0, 1)]
        label = f"{rows} x {terms} x {columns}" + (f", {batches} times" if batches > 1 else "")
        print(f"{label:>22}", *speed, *(f"{ratio:12.2f}" for ratio in ratios))


def seconds(work: Work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def convolutions(lanes: int, rounds: int) -> None:
    names = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
    print(f"{'convolution':>22}", *(f"{name[6:] or 'forward':>12}, BLAS" for name in names), "torch64, forward")
    for channels, outputs, size, kernel, stride in CONVOLUTIONS:
        padding = kernel // 2
        x, w = torch.randn(BATCH, channels, size, size), torch.randn(outputs, channels, kernel, kernel)
        options = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (1, 1), "groups": 1}
        g = torch.nn.functional.conv2d(x, w, None, stride, padding)
        cases: list[tuple[list[torch.Tensor], dict[str, Any]]] = [
            ([x, w], {}),
            ([g, w], {"size": (size, size)}),
            ([g, x], {"size": (kernel, kernel)}),
        ]
        works: list[Work] = [
            certified(by, name, inputs, {**options, **more})
            for name, (inputs, more) in zip(names, cases, strict=True)
            for by in (lanes, 0)
        ]
        wide_x, wide_w = x.double(), w.double()
        works.append(lambda a=wide_x, b=wide_w, s=stride, p=padding: torch.conv2d(a, b, None, s, p))  # type: ignore[misc]
        label = f"{channels} to {outputs}, {size}, {kernel} / {stride}"
        print(f"{label:>22}", *speeds(works, 2.0 * g.numel() * channels * kernel**2, rounds))


def main() -> None:
    without_avx512()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    arguments = parser.parse_args()
    lanes = gemm_microkernel.tile_lanes()
    if not lanes:
        raise SystemExit("this processor has no vectors that tiles are made for: there is nothing to compare")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        print(f"tiles of {lanes} lanes; GFLOP/s")
        if arguments.precision == "bf16":
            short_products(lanes, arguments.rounds)
            return
        products(lanes, arguments.rounds)
        convolutions(lanes, arguments.rounds)


if __name__ == "__main__":
    main()
