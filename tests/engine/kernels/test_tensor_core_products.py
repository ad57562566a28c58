"""Products as tensor cores add them, by vectors: the bits of the reference, and no value where it has none."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from machines.profiles import MACHINES, WITHOUT_AVX512
from roundlog.adjudication import NoTensorCoreValueError
from roundlog.adjudication.tensor_core_groups import chain
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product

from tests.engine.kernels import tensor_core_cases as cases

NAN = 0x7FC00000


def bits(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.float().numpy()).view(np.uint32)


def reference(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """uint32[segments, M, N]; the NaN where there is no value."""
    arithmetic = ARITHMETICS[name]
    rows, columns = bits(a).tolist(), bits(b.T).tolist()
    found = []
    for start in range(0, a.shape[1], arithmetic.segment_terms):
        part = slice(start, start + arithmetic.segment_terms)
        for row in rows:
            for column in columns:
                try:
                    found.append(chain(arithmetic, format, row[part], column[part]))
                except NoTensorCoreValueError:
                    found.append(NAN)
    return np.array(found, dtype=np.uint32).reshape(-1, a.shape[0], b.shape[1])


def check(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> None:
    found, wanted = cases.product(name, format, a, b), reference(name, format, a, b)
    assert np.array_equal(found.sums.numpy().view(np.uint32), wanted)
    assert np.array_equal(found.missing, np.flatnonzero(wanted == NAN)) and found.missing.dtype == np.int64


@pytest.mark.parametrize("case", cases.CASES)
@pytest.mark.parametrize(("name", "format"), [("hopper", "bf16"), ("ampere", "tf32"), ("volta", "f16")])
def test_products_have_the_bits_of_the_reference(name: str, format: str, case: str) -> None:
    check(name, format, *cases.CASES[case](format, np.random.default_rng(len(case)), 5, 70, 19))


@pytest.mark.parametrize(("name", "format"), [one for one in cases.DEFINED if one[1] != "f16"])
def test_the_least_results(name: str, format: str) -> None:
    """Two products that cancel, and a third one that is all that is kept."""
    kept = ARITHMETICS[name].fraction_bits
    for place in (-130, -128, -127, -126, -125, -110):
        of_left = (place + kept) // 2
        of_right = place + kept - of_left
        a = np.array([[1.0, -1.0, 2.0**-kept], [1.0, 1.0, 0.0]]) * 2.0**of_left
        b = np.full((3, 1), 2.0**of_right)
        pair = cases.numbers(format, a), cases.numbers(format, b)
        check(name, format, *pair)
        found = cases.product(name, format, *pair)
        assert (0 in found.missing) == (place < -126)
        assert place < -126 or float(found.sums[0, 0, 0]) == 2.0**place


@pytest.mark.parametrize(("name", "format"), cases.DEFINED)
def test_zeros_and_subnormal_numbers_near_the_largest_exponent(name: str, format: str) -> None:
    """A product that loses bits, and one whose factor is a zero or subnormal, of an exponent a little above, the same,
    or far enough below to be truncated, or not."""
    bits_of_exponent, fraction = cases.FIELD_BITS[format]
    least, kept = 2 - (1 << (bits_of_exponent - 1)), ARITHMETICS[name].fraction_bits
    other = 10 if format == "f16" else 60
    for factor in (0.0, 2.0 ** (least - 1), (1 - 2.0**-fraction) * 2.0**least, 2.0**least):
        for above in (-2, -1, 0, 1, 2, kept - 2, kept - 1, kept, kept + 1, kept + 2):
            large = least + other + above
            c = (1 + 2.0**-fraction) * 2.0 ** (large // 2), (1 + 2.0**-fraction) * 2.0 ** (large - large // 2)
            tiny = 2.0 ** max(large - kept - 3 - least - 3, least - fraction)
            a = np.array([[c[0], factor, 2.0 ** (least + 3)]])
            b = np.array([[c[1], c[1]], [2.0**other, 1.5 * 2.0**other], [tiny, tiny]])
            if max(abs(a).max(), abs(b).max()) < 60000 or format != "f16":
                check(name, format, cases.numbers(format, a), cases.numbers(format, b))
                check(name, format, cases.numbers(format, b.T), cases.numbers(format, a.T))


@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 1, 1), (3, 15, 2), (1, 17, 17), (2, 2049, 1)])
def test_any_number_of_terms(rows: int, terms: int, columns: int) -> None:
    for name, format in (("hopper", "bf16"), ("ampere", "tf32"), ("volta", "f16")):
        check(name, format, *cases.gaussian(format, np.random.default_rng(terms), rows, terms, columns))


@pytest.mark.parametrize("format", ["bf16", "tf32"])
def test_operands_lie_in_any_strides(format: str) -> None:
    rng = np.random.default_rng(7)
    a, b = cases.gaussian(format, rng, 40, 150, 90)
    wanted = cases.product("ampere", format, a, b).sums
    transposed = a.T.contiguous().T, b.T.contiguous().T
    apart = torch.empty(80, 301, dtype=a.dtype)[::2, 1::2], torch.empty(450, 181, dtype=b.dtype)[2::3, :180:2]
    apart[0].copy_(a)
    apart[1].copy_(b)
    for left in (a, transposed[0], apart[0]):
        for right in (b, transposed[1], apart[1]):
            assert torch.equal(cases.product("ampere", format, left, right).sums, wanted)
    row = a[:1].expand(5, 150)
    assert torch.equal(cases.product("ampere", format, row, b).sums[0], wanted[0, :1].expand(5, 90))


def test_indices_of_what_has_no_value_are_those_of_the_whole_result() -> None:
    rng = np.random.default_rng(9)
    a = cases.numbers("bf16", rng.standard_normal((3, 5, 2100)))
    b = cases.numbers("bf16", rng.standard_normal((3, 2100, 70)))
    a[1, 2, 2090] = float("inf")
    b[2, 7, 65] = float("nan")
    found = cases.product("hopper", "bf16", a, b)
    places = np.zeros(found.sums.shape, dtype=bool)
    places[1, 1, 2, :] = True
    places[0, 2, :, 65] = True
    assert np.array_equal(found.missing, np.flatnonzero(places))
    assert np.array_equal(found.sums.isnan().numpy(), places)


def test_a_product_without_elements_or_terms() -> None:
    for shape in ((0, 5, 3), (4, 0, 3), (4, 5, 0)):
        a, b = torch.zeros(shape[:2], dtype=torch.bfloat16), torch.zeros(shape[1:], dtype=torch.bfloat16)
        found = cases.product("hopper", "bf16", a, b)
        assert found.sums.shape == (min(1, shape[1]), shape[0], shape[2]) and not len(found.missing)


def test_other_numbers_and_shapes_are_refused() -> None:
    x, arithmetic = torch.ones(4, 4), cases.arithmetic_of("hopper", "tf32")
    with pytest.raises(ValueError, match="last 13 bits"):
        tensor_core_product(x, x * 1.0001, arithmetic)
    with pytest.raises(ValueError, match=r"no torch\.float64"):
        tensor_core_product(x.double(), x.double(), arithmetic)
    with pytest.raises(ValueError, match=r"no torch\.float32 by torch\.bfloat16"):
        tensor_core_product(x, x.bfloat16(), arithmetic)
    with pytest.raises(ValueError, match="no matrices to multiply"):
        tensor_core_product(x, x[:3], arithmetic)
    for wrong in ((26, 16, 2048), (25, 12, 2048), (25, 16, 4096), (25, 16, 2040)):
        with pytest.raises(ValueError, match="not an arithmetic"):
            GroupArithmetic(wrong[0], wrong[1], False, wrong[2])


@pytest.mark.parametrize(("name", "format"), cases.DEFINED)
def test_subnormal_operands_are_numbers_whatever_the_thread_makes_of_them(name: str, format: str) -> None:
    pairs = [cases.CASES[case](format, np.random.default_rng(2), 9, 70, 35) for case in ("small", "subnormal")]
    wanted = [cases.product(name, format, *pair).sums.view(torch.int32) for pair in pairs]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        found = [cases.product(name, format, *pair).sums.view(torch.int32) for pair in pairs]
        assert float(torch.tensor(2.0**-140) * 1.5) == 0, "the thread is as it was"
    finally:
        torch.set_flush_denormal(False)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({}, 1),
        pytest.param(WITHOUT_AVX512, 2, marks=pytest.mark.long),
        (MACHINES["generic"].variables, 1),
    ],
    ids=["native", "without AVX-512", "generic"],
)
def test_every_machine_has_the_same_bits(settings: dict[str, str], threads: int) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "NUMBA_CPU_"))}
    run = [sys.executable, cases.__file__, str(threads)]
    found = subprocess.run(run, env=kept | dict(settings), capture_output=True, text=True, check=True)
    assert found.stdout.strip() == cases.digest([("hopper", "bf16"), ("ampere", "tf32")])
