"""Speed of certified products and convolutions on one thread, beside bare ones.

    .venv/bin/python scripts/bench_products.py [--rounds 6] [--without-avx512]
                                               [--precision bf16 | --arithmetic hopper | --worst]

GFLOP/s by processor time, the best of several interleaved rounds: certified products of FP32 matrices as the small GPT
has them, and convolutions and their two gradients as ResNet-50 has them (batch 4), rounded and marked; bare products
by numpy in FP64 and by torch in FP64 and FP32; and torch's convolution in FP64.

With --precision bf16: certified products of BF16 matrices, in FP32 first and by FP64 tiles alone, beside certified ones
of FP32 matrices, and bare ones by torch in FP32; and the median of the rounds' ratios.

With --arithmetic, square products as those tensor cores add them, in every format of operands, beside numpy's in FP64,
on --threads threads for both; --sizes says how wide. Also the share of elements that are not left to vectors.

With --worst, products whose every output is decided exactly, beside those of random numbers: each is a midpoint of two
FP32 numbers behind terms of all sizes that cancel in pairs.
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
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product
from roundlog.number_format import BFLOAT16
from roundlog.operators import Inexact, operator
from roundlog.operators.contraction import Contraction
from roundlog.operators.cpu import gemm
from roundlog.rounding import Recorder
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


def certified(name: str, inputs: list[torch.Tensor], attributes: dict[str, Any]) -> Work:
    op = operator(name)
    assert isinstance(op, Contraction)

    return lambda: op.certify(inputs, attributes, 4.0)


def speeds(works: Sequence[Work], operations: float, rounds: int) -> list[str]:
    least = [float("inf")] * len(works)
    for counted in range(rounds + 1):
        for number, work in enumerate(works):
            spent = seconds(work)
            if counted:
                least[number] = min(least[number], spent)
    return [f"{operations / seconds / 1e9:7.1f}" for seconds in least]


def products(rounds: int) -> None:
    print(f"{'product':>22}   tiles  numpy64 torch64 torch32")
    for rows, terms, columns in PRODUCTS:
        a = torch.randn(terms, rows).T if rows == 1536 else torch.randn(rows, terms)
        b = torch.randn(terms, columns)
        wide_a, wide_b = a.double(), b.double()
        array_a, array_b = wide_a.numpy(), wide_b.numpy()
        works: list[Work] = [
            certified("matmul", [a, b], {}),
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


def short_products(rounds: int) -> None:
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
            certified("matmul", wide, {}),
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


def convolutions(rounds: int) -> None:
    names = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
    print(f"{'convolution':>22}", *(f"{name[6:] or 'forward':>12}" for name in names), "torch64, forward")
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
            certified(name, inputs, {**options, **more}) for name, (inputs, more) in zip(names, cases, strict=True)
        ]
        wide_x, wide_w = x.double(), w.double()
        works.append(lambda a=wide_x, b=wide_w, s=stride, p=padding: torch.conv2d(a, b, None, s, p))  # type: ignore[misc]
        label = f"{channels} to {outputs}, {size}, {kernel} / {stride}"
        print(f"{label:>22}", *speeds(works, 2.0 * g.numel() * channels * kernel**2, rounds))


SQUARES = (256, 512, 1024, 2048, 4096)
_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
_LEAST_OPERATIONS = 1e9
"""Operations of what is measured at once: the clock of processor time has ticks."""


def tensor_core_products(name: str, rounds: int, sizes: Sequence[int]) -> None:
    arithmetic = ARITHMETICS[name]
    print(f"{'width':>7} {'format':>7} {name:>8}  numpy64    ratio   one by one")
    for size in sizes:
        wide = [torch.randn(size, size), torch.randn(size, size)]
        for format in arithmetic.terms:
            groups = GroupArithmetic.of(arithmetic, format)
            # What FP32 has and TF32 has not is left out.
            cut = [(x.view(torch.int32) & -0x2000).view(torch.float32) if format == "tf32" else x for x in wide]
            a, b = (x.to(_DTYPES[format]) for x in cut)
            arrays = [x.double().numpy() for x in (a, b)]
            times = max(1, round(_LEAST_OPERATIONS / (2.0 * size**3)))
            works: list[Work] = [
                lambda a=a, b=b, groups=groups, times=times: [tensor_core_product(a, b, groups) for _ in range(times)],  # type: ignore[misc]
                lambda x=arrays, times=times: [x[0] @ x[1] for _ in range(times)],  # type: ignore[misc]
            ]
            spent = [[seconds(work) for work in works] for _ in range(rounds + 1)][1:]
            operations = 2.0 * size**3 * times
            speed = [f"{operations / min(column) / 1e9:8.1f}" for column in zip(*spent, strict=True)]
            ratio = statistics.median(theirs / ours for ours, theirs in spent)
            found = tensor_core_product(a, b, groups)
            share = found.one_by_one / found.sums.numel()
            print(f"{size:>7} {format:>7}", *speed, f"{ratio:8.2f} {share:12.2%}", flush=True)


WORST = [(256, 256, 256), (64, 2048, 64), (512, 64, 512)]


def behind_pairs(rows: int, terms: int, columns: int) -> list[torch.Tensor]:
    """Operands whose every product is 1 + 2^-24, behind pairs of terms of all sizes that FP64 neither overflows nor
    loses."""
    a, b = (
        torch.ldexp(torch.rand(shape) + 0.5, torch.randint(-120, 120, shape))
        for shape in ((rows, terms), (terms, columns))
    )
    a[:, 1::2], b[1::2] = a[:, ::2], -b[::2]
    a[:, -2:], b[-2], b[-1] = 1, 1, 2.0**-24
    return [a, b]


def worst_products(rounds: int) -> None:
    op = operator("matmul")
    assert isinstance(op, Inexact)

    def rounded(inputs: list[torch.Tensor]) -> torch.Tensor:
        return Recorder(4).round(0, op, inputs, {})

    print(f"{'product':>22}  random, ms   worst, ms   ratio")
    for rows, terms, columns in WORST:
        pair = [torch.randn(rows, terms), torch.randn(terms, columns)], behind_pairs(rows, terms, columns)
        if not bool((rounded(pair[1]) == 1).all()):
            raise SystemExit("1 + 2^-24 is rounded to another number than 1: tell the authors")
        spent = [[seconds(lambda x=x: rounded(x)) for x in pair] for _ in range(rounds + 1)][1:]  # type: ignore[misc]
        times = [f"{1e3 * statistics.median(column):11.2f}" for column in zip(*spent, strict=True)]
        ratio = statistics.median(slow / fast for fast, slow in spent)
        print(f"{f'{rows} x {terms} x {columns}':>22}", *times, f"{ratio:7.1f}")


def main() -> None:
    without_avx512()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--arithmetic", choices=tuple(ARITHMETICS))
    parser.add_argument("--worst", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=SQUARES)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    threads = arguments.threads if arguments.arithmetic else 1
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        if arguments.worst:
            worst_products(arguments.rounds)
            return
        print(f"tiles of {gemm_microkernel.tile_lanes()} lanes; GFLOP/s")
        if arguments.arithmetic:
            tensor_core_products(arguments.arithmetic, arguments.rounds, arguments.sizes)
            return
        if arguments.precision == "bf16":
            short_products(arguments.rounds)
            return
        products(arguments.rounds)
        convolutions(arguments.rounds)


if __name__ == "__main__":
    main()
