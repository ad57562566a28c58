"""Products of matrices as Triton compiles them for A100, H100 and B200, executed instruction by instruction, by tensor
cores as docs/arithmetic.md has them: the processor's, to the bit."""

from __future__ import annotations

import itertools
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.kernels.cuda import bf16_products
from roundlog.kernels.cuda.block_sum_trial import first_wrong_block_sum
from roundlog.kernels.cuda.tensor_cores import first_difference
from roundlog.number_format import FLOAT32

from tests.devices.conftest import process_of
from tests.devices.interpreted_gpu import ARITHMETICS, SHARED, Launch, gpu
from tests.devices.ptx_program import Instruction
from tests.engine.kernels.tensor_core_cases import CASES, arithmetic_of, gaussian, product
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = needs_triton

CPU = torch.device("cpu")
FORMATS = "bf16", "f16"
LAYOUTS = "both along terms", "right transposed", "left transposed"
SHAPES = {"whole tiles": (128, 64, 128), "nothing whole": (19, 205, 35), "one": (1, 1, 1), "a column": (40, 70, 1)}
OPEN = ({}, {"exponents": "none"}, {"exponents": "normalised"})
"""Devices that docs/arithmetic.md cannot tell apart,"""
HIDDEN = "zeros", "exponents", "small", "subnormal"
"""and cases in which they differ."""


def laid_out(a: torch.Tensor, b: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    if layout == "right transposed":
        return a, b.mT.contiguous().mT
    return (a.mT.contiguous().mT, b) if layout == "left transposed" else (a, b)


def segments(format: str, a: torch.Tensor, b: torch.Tensor, native: bool) -> torch.Tensor:
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    return kernels.segment_sums(a, b, arithmetic_of(ARITHMETICS[gpu().capability], format), native)


def wrong(format: str, a: torch.Tensor, b: torch.Tensor, layout: str, native: bool) -> int:
    """Sums that are not the processor's."""
    expected = product(ARITHMETICS[gpu().capability], format, a, b).sums
    found = segments(format, *laid_out(a, b, layout), native)
    assert found.shape == expected.shape
    return int((found.view(torch.int32) != expected.view(torch.int32)).sum())


def wrong_shape(format: str, layout: str, shape: str) -> tuple[int, int]:
    """Wrong sums by tensor cores, and by integers."""
    rows, terms, columns = SHAPES[shape]
    a, b = gaussian(format, np.random.default_rng(rows), rows, terms, columns)
    return wrong(format, a, b, layout, True), wrong(format, a[:48].clone(), b[:, :48].clone(), layout, False)


SOME = {*(("bf16", layout, "nothing whole") for layout in LAYOUTS), ("f16", LAYOUTS[0], "nothing whole")}
VARIANTS = [
    pytest.param(*one, marks=() if one in SOME | {("bf16", LAYOUTS[0], "whole tiles")} else pytest.mark.slow)
    for one in itertools.product(FORMATS, LAYOUTS, SHAPES)
]


@pytest.mark.parametrize(("format", "layout", "shape"), VARIANTS)
def test_products_of_every_layout_and_shape_are_the_processors(
    gpu_process: ProcessPoolExecutor, format: str, layout: str, shape: str
) -> None:
    assert gpu_process.submit(wrong_shape, format, layout, shape).result() == (0, 0)


def wrong_segments(format: str) -> int:
    """Two products of two segments, whose last groups are not full, and whose matrices have strides of their own."""
    pairs = [gaussian(format, np.random.default_rng(seed), 17, 2101, 3) for seed in (1, 2)]
    a, b = torch.stack([a for a, _ in pairs])[:, ::2], torch.stack([b for _, b in pairs])
    # A number that is not finite: that square is left to integers, and the other products are not.
    a[1, 3, 2090] = float("inf")
    assert len(product(ARITHMETICS[gpu().capability], format, a, b).missing) == 3
    return wrong(format, a, b, LAYOUTS[0], True)


@pytest.mark.parametrize("format", FORMATS)
def test_batches_of_several_segments_are_the_processors(gpu_process: ProcessPoolExecutor, format: str) -> None:
    assert gpu_process.submit(wrong_segments, format).result() == 0


def wrong_cases(format: str, native: bool) -> tuple[dict[str, int], int]:
    """Cases with wrong sums, and how many sums had no value."""
    found, missing = {}, 0
    for number, (name, case) in enumerate(CASES.items()):
        a, b = case(format, np.random.default_rng(number), 19, 75, 17)
        missing += len(product(ARITHMETICS[gpu().capability], format, a, b).missing)
        for device in OPEN if native and name in HIDDEN else OPEN[:1]:
            gpu().open = device
            found[f"{name} {device}"] = wrong(format, a, b, LAYOUTS[number % 3 if format == "bf16" else 0], native)
    gpu().open = {}
    return {name: many for name, many in found.items() if many}, missing


@pytest.mark.parametrize("native", [True, False], ids=["tensor cores", "integers"])
@pytest.mark.parametrize("format", FORMATS)
def test_hostile_operands_are_the_processors(gpu_process: ProcessPoolExecutor, format: str, native: bool) -> None:
    """Zeros, subnormal numbers, infinities and NaN; whatever is not known of a device."""
    found, missing = gpu_process.submit(wrong_cases, format, native).result()
    assert found == {} and missing


def first_wrong_block(deep: int, layout: int, **lie: Any) -> str | None:
    gpu().open = lie
    found = first_wrong_block_sum(CPU, arithmetic_of(ARITHMETICS[gpu().capability], "bf16"), deep, layout)
    gpu().open = {}
    return found


@pytest.mark.parametrize(("layout", "deep"), [*enumerate(bf16_products.DEPTHS)])
def test_blocks_of_products_in_two_stages_are_right_to_the_last_bit(
    gpu_process: ProcessPoolExecutor, layout: int, deep: int
) -> None:
    assert gpu_process.submit(first_wrong_block, deep, layout).result() is None
    found = gpu_process.submit(first_wrong_block, deep, layout, smallest=2.0**-48).result()
    assert found is not None and f"of the test of block sums of {deep} terms" in found


def staged(deep: int, layout: str) -> tuple[int, int, float]:
    """(Elements that are decided; decided wrongly; the largest error of a sum of the others in FP64, as a share of the
    norms) of two products whose sizes are no multiples of anything."""
    from roundlog.kernels.cuda import bf16_product_kernels as kernels

    pairs = [CASES[name]("bf16", np.random.default_rng(deep), 21, 333, 37) for name in ("gaussian", "cancelling")]
    a, b = (torch.stack([pair[side] for pair in pairs]) for side in (0, 1))
    # A line of zeros, a number with no neighbours, one that is not finite.
    a[0, 3], b[0, :, 5], a[1, 2, 7], b[1, 9, 4] = 0, 0, 2.0**-130, float("nan")
    wide, other = a.double(), b.double()
    rows, columns = (torch.linalg.vector_norm(x, dim=dim) for x, dim in ((wide, 2), (other, 1)))
    exact, norms = wide @ other, rows[..., None] * columns[:, None]
    arithmetic = arithmetic_of(ARITHMETICS[gpu().capability], "bf16")
    x, y = laid_out(a, b, layout)
    ratio = bf16_products.ratio_of(arithmetic, deep, 333, 2.0**-40, 1.0) * 2.0**-40
    rounded, doubts = kernels.decide(x, y, rows, columns, ratio, arithmetic, deep)
    false = ~doubts & (rounded != exact.bfloat16().float())
    elements = doubts.view(-1).nonzero().squeeze(1)
    sums = kernels.sum_elements(x, y, elements, 100)
    errors = ((sums - exact.view(-1)[elements]).abs() / norms.view(-1)[elements]).nan_to_num()
    missing = exact.view(-1)[elements].isnan().sum() - sums.isnan().sum()
    return int((~doubts).sum()), int(false.sum()) + abs(int(missing)), float(errors.max())


@pytest.mark.parametrize(("deep", "layout"), [*zip(bf16_products.DEPTHS, LAYOUTS, strict=True)])
def test_what_is_decided_is_the_exact_sum_and_what_is_not_is_summed_in_fp64(
    gpu_process: ProcessPoolExecutor, deep: int, layout: str
) -> None:
    decided, false, error = gpu_process.submit(staged, deep, layout).result()
    assert decided > 600 and false == 0 and error < 2.0**-50


def programs(native: bool) -> list[tuple[str, tuple[Instruction, ...], int]]:
    """Names, instructions and bytes of shared memory of what products in BF16, and by integers, run."""
    from roundlog.kernels.cuda import integer_product_kernels

    found: list[tuple[str, tuple[Instruction, ...], int]] = []
    gpu().play = lambda launch: found.append((launch.program.name, launch.program.instructions, launch.shared))
    a, b = gaussian("bf16", np.random.default_rng(0), 19, 205, 35)
    segments("bf16", a, b, native)
    integer_product_kernels.decide(a.float()[None], b.float()[None], 1.0, 5, FLOAT32)
    gpu().play = Launch.run
    return found


def test_what_runs_on_ada_is_what_runs_on_an_a100() -> None:
    """And an L40S has enough shared memory for it."""
    with process_of(80) as a100, process_of(89) as ada:
        found = [one.submit(programs, True).result() for one in (a100, ada)]
    assert found[0] == found[1] and len(found[0]) == 7
    assert max(shared for _, _, shared in found[0]) <= SHARED[89]


def trial(format: str, native: bool, **lie: Any) -> str:
    gpu().open = lie
    found = first_difference(CPU, ARITHMETICS[gpu().capability], format, native)
    gpu().open = {}
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False], ids=["tensor cores", "integers"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_device_passes_its_own_trial(gpu_process: ProcessPoolExecutor, format: str, native: bool) -> None:
    assert gpu_process.submit(trial, format, native).result() == "None"
    if native:
        for lie in ({"nearest": True}, {"terms": 4}, {"fraction_bits": 22}):
            assert "long sums" in gpu_process.submit(trial, format, native, **lie).result()
