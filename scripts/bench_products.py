"""Speed of certified products and convolutions on one thread, by tiles and by numpy's BLAS, beside bare ones.

    .venv/bin/python scripts/bench_products.py [--rounds 6] [--without-avx512]

GFLOP/s by processor time, the best of several interleaved rounds: certified products of FP32 matrices as the small GPT
has them, and convolutions and their two gradients as ResNet-50 has them (batch 4), rounded and marked; bare products
by numpy in FP64 and by torch in FP64 and FP32; and torch's convolution in FP64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from machines.profiles import without_avx512
from roundlog.kernels import gemm_microkernel
from roundlog.operators import operator
from roundlog.operators.contraction import Contraction
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
            started = time.process_time()
            work()
            if counted:
                least[number] = min(least[number], time.process_time() - started)
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
    arguments = parser.parse_args()
    lanes = gemm_microkernel.tile_lanes()
    if not lanes:
        raise SystemExit("this processor has no vectors that tiles are made for: there is nothing to compare")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        print(f"tiles of {lanes} lanes; GFLOP/s")
        products(lanes, arguments.rounds)
        convolutions(lanes, arguments.rounds)


if __name__ == "__main__":
    main()
