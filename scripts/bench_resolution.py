"""The slowdown of an operator by data that has every output decided exactly.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench_resolution.py [--rounds 9] [--only WORD] [--most 20]

Every case is one operator on random numbers and, in the same round, on numbers made to be as slow as they can be: each
output is a midpoint between two FP32 numbers behind terms of all sizes that cancel in pairs, or behind 2^60 - 2^60.
Printed are medians of the ratios within a round, and of the processor times. Every hostile result is checked.
The last line is the worst of them, and the exit code 1 if it is above --most.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from roundlog.operators import Inexact, operator
from roundlog.rounding import Recorder

Inputs = list[torch.Tensor]
Attributes = Mapping[str, object]

CONVOLUTION = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


@dataclass(frozen=True)
class Case:
    """An operator to be timed, on inputs that are random and on hostile ones whose every output is 1."""

    name: str
    op: str
    attributes: Attributes
    plain: Inputs
    hostile: Inputs


def wide(*shape: int) -> torch.Tensor:
    """Numbers of all sizes, such that no product of two of them overflows or vanishes in FP64."""
    return torch.ldexp(torch.rand(shape) + 0.5, torch.randint(-120, 120, shape)) * torch.randint(0, 2, shape).mul(
        2
    ).sub(1)


def midpoints_behind_pairs(a: torch.Tensor, b: torch.Tensor) -> Inputs:
    """a[M, K] and b[K, N]: terms cancel in pairs, and 1 + 2^-24 is left."""
    a[:, 1::2], b[1::2] = a[:, ::2], -b[::2]
    a[:, -2:], b[-2], b[-1] = 1, 1, 2.0**-24
    return [a, b]


def ties_behind_2_60(rows: int, k: int, columns: int) -> Inputs:
    """Likewise, all numbers alike: 2^60 - 2^60 + ... + 1 + 2^-24."""
    return midpoints_behind_pairs(torch.full((rows, k), 2.0**30), torch.full((k, columns), 2.0**30))


def product(name: str, rows: int, k: int, columns: int) -> list[Case]:
    plain = [torch.randn(rows, k), torch.randn(k, columns)]
    return [
        Case(f"{name}, pairs", "matmul", {}, plain, midpoints_behind_pairs(wide(rows, k), wide(k, columns))),
        Case(f"{name}, 2^60", "matmul", {}, plain, ties_behind_2_60(rows, k, columns)),
    ]


def convolution(n: int, channels: int, size: int, outputs: int) -> Case:
    """Channels cancel in pairs; of the last two, one tap."""
    x, w = wide(n, channels, size, size), wide(outputs, channels, 3, 3)
    x[:, 1::2], w[:, 1::2] = x[:, ::2], -w[:, ::2]
    x[:, -2:], w[:, -2:] = 1, 0
    w[:, -2, 1, 1], w[:, -1, 1, 1] = 1, 2.0**-24
    plain = [torch.randn(x.shape), torch.randn(w.shape)]
    return Case(f"conv2d {n} x {channels} x {size}^2 by {outputs}", "conv2d", CONVOLUTION, plain, [x, w])


def row_sums(rows: int, k: int) -> Case:
    x = wide(rows, k)
    x[:, 1::2] = -x[:, ::2]
    x[:, -2], x[:, -1] = 1, 2.0**-24
    return Case(f"sum of {k:,}", "sum", {"dims": (1,)}, [torch.randn(rows, k)], [x])


def scattered(places: int, each: int) -> Case:
    """`each` numbers for each place, which cancel in pairs."""
    x = wide(places, each)
    x[:, 1::2] = -x[:, ::2]
    x[:, -2], x[:, -1] = 1, 2.0**-24
    index = torch.arange(places)[:, None].expand(places, each).reshape(-1)
    order = torch.randperm(len(index))
    plain = [torch.randn(len(index)), index[order]]
    return Case(
        f"scatter_add of {each} to {places:,}",
        "scatter_add",
        {"dim": 0, "size": places},
        plain,
        [x.reshape(-1)[order], index[order]],
    )


def cases() -> list[Case]:
    torch.manual_seed(0)
    return [
        *product("matmul 256^3", 256, 256, 256),
        *product("matmul 64 x 2048 x 64", 64, 2048, 64),
        *product("matmul 512 x 64 x 512", 512, 64, 512),
        convolution(8, 32, 16, 32),
        row_sums(256, 1024),
        row_sums(4, 1 << 18),
        scattered(1 << 14, 16),
    ]


def seconds(case: Case, inputs: Inputs, check: bool) -> float:
    op = operator(case.op)
    assert isinstance(op, Inexact)
    recorder = Recorder(4)
    start = time.process_time()
    rounded = recorder.round(0, op, inputs, case.attributes)  # type: ignore[arg-type]
    took = time.process_time() - start
    assert bool(rounded.isfinite().all()) and (not check or bool((rounded == 1).all())), case.name
    return took


def measure(case: Case, rounds: int, report: Callable[[str], None]) -> float:
    ratios, plain, hostile = [], [], []
    for number in range(rounds + 1):
        fast, slow = seconds(case, case.plain, False), seconds(case, case.hostile, True)
        if number:
            ratios.append(slow / fast)
            plain.append(fast)
            hostile.append(slow)
    ratio = statistics.median(ratios)
    times = " | ".join(f"{statistics.median(took) * 1e3:.2f} ms" for took in (plain, hostile))
    report(f"| {case.name} | {times} | {ratio:.0f} |")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--most", type=float, help="the ratio that none may exceed")
    options = parser.parse_args()
    print("| operator | random | hostile | ratio |\n|---|---|---|---|", flush=True)
    chosen = [case for case in cases() if options.only in case.name]
    worst = max(measure(case, options.rounds, lambda line: print(line, flush=True)) for case in chosen)
    print(f"\nworst: {worst:.0f}")
    if options.most is not None and worst > options.most:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
