"""Products by integers as Triton compiles them for A100 and H100, executed instruction by instruction: what they decide
is the processor's value, and they leave in doubt what NumPy's model leaves."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from compare_integer_products import FORMATS, NAMES, decide
from roundlog.kernels.cuda import integer_products
from roundlog.kernels.cuda.integer_products import DIGITS, ratio_of
from roundlog.log import Entries
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format
from roundlog.operators import operator
from roundlog.operators.contraction import MatMul
from roundlog.operators.summation import blocked_gamma
from roundlog.rounding import Follower, Recorder

from tests.devices import ptx_machine
from tests.devices.test_compiled_products import LAYOUTS, laid_out
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = needs_triton

CPU = torch.device("cpu")
MATMUL = operator("matmul")
assert isinstance(MATMUL, MatMul)
GUARD = 4
SHAPES = {"several tiles": (130, 75, 35), "one term": (3, 1, 5), "whole tiles": (128, 64, 32)}
CASES = [
    pytest.param(FLOAT32, LAYOUTS[0], 17, id="FP32"),
    pytest.param(FLOAT32, LAYOUTS[1], 26, id="FP32, more digits"),
    pytest.param(BFLOAT16, LAYOUTS[2], 8, id="BF16"),
    pytest.param(FLOAT16, LAYOUTS[0], 17, id="FP16"),
]


def hostile(rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP32 matrices whose rows, if they have so many, are of all sorts."""
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal(shape) for shape in ((rows, terms), (terms, columns)))
    if terms > 9:
        sizes = np.ldexp(1.0, rng.integers(-40, 40, (8, terms)))
        a[3:11] *= sizes
        # The first digit is all but 128; sums beside ties, and on them; subnormal numbers; products that overflow.
        a[11:14], a[14:18], a[18:20, 1:], a[20:22] = (2 - 2.0**-7) * (1 - 2.0**-13), 0, 0, a[20:22] * 2.0**-140
        a[14:18, 0], a[14:18, 1], a[15, 2], a[16, 2] = 1, 2.0**-24, 2.0**-60, -(2.0**-60)
        b[:3, :20] = 1
        a[22:24], a[24] = a[22:24] * 2.0**126, 0
        a[25, 2], a[26, 3], b[4, -1] = np.inf, np.nan, -np.inf
    return torch.from_numpy(a).float(), torch.from_numpy(b).float()


def decided(
    a: torch.Tensor, b: torch.Tensor, ratio: float, products: int, format: Format, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    from roundlog.kernels.cuda import integer_product_kernels as kernels

    found = kernels.decide(*(x[None] for x in laid_out(a, b, layout)), ratio, DIGITS[products], format)
    return found[0][0], found[1][0]


def values(a: torch.Tensor, b: torch.Tensor, format: Format) -> torch.Tensor:
    """The processor's, in FP32."""
    return Follower.without_log(GUARD).round(0, MATMUL, [a, b], {}, format).float()


@pytest.mark.parametrize(("format", "layout", "products"), CASES)
def test_what_is_decided_is_the_processors_value(
    gpu_process: ProcessPoolExecutor, format: Format, layout: str, products: int
) -> None:
    for shape, sizes in SHAPES.items():
        a, b = (x.to(FORMATS[format]) for x in hostile(*sizes))
        arguments = a.float(), b.float(), ratio_of(blocked_gamma(sizes[1]), GUARD), products, format
        rounded, doubts = gpu_process.submit(decided, *arguments, layout).result()
        assert torch.equal(rounded[~doubts], values(a, b, format)[~doubts]), shape
        kept = DIGITS[products]
        (least, in_doubt), (_, most) = (decide(*arguments[:3], kept, format, slack) for slack in (1.0, 1.02))
        assert not (in_doubt & ~doubts).any() and not (doubts & ~most).any(), shape
        assert torch.equal(rounded[~doubts], least[~doubts]), shape
        assert shape != "several tiles" or 0.05 < doubts.double().mean() < 0.6


def in_chunks(a: torch.Tensor, b: torch.Tensor, chunk: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    from roundlog.kernels.cuda import integer_product_kernels as kernels

    with patch.object(kernels, "CHUNK", chunk), patch.object(kernels, "place_of", lambda terms: place):
        return decided(a, b, 2.0**-45, 26, FLOAT32, LAYOUTS[0])


@pytest.mark.parametrize(
    ("terms", "chunk", "place"), [(200, 64, 5), pytest.param(2**17 + 50, 2**14, 5, marks=pytest.mark.slow)]
)
def test_long_sums_are_added_in_chunks(gpu_process: ProcessPoolExecutor, terms: int, chunk: int, place: int) -> None:
    a, b = hostile(40, terms, 9)
    # As much as can be in one sum.
    a[0], b[:, 0] = 1.98, -1.98
    rounded, doubts = gpu_process.submit(in_chunks, a, b, chunk, place).result()
    assert torch.equal(rounded[~doubts], values(a, b, FLOAT32)[~doubts])
    assert doubts.double().mean() < 0.5 and not doubts[0, 0]


def recorded(a: torch.Tensor, b: torch.Tensor, format: Format) -> tuple[torch.Tensor, Entries]:
    """A product and its log."""
    recorder = Recorder(GUARD)
    return recorder.round(0, MATMUL, [a, b], {}, format), recorder.take().get(0, Entries.empty())


def recorded_by_integers(a: torch.Tensor, b: torch.Tensor, format: Format, levels: Any) -> Any:
    def staged(self: MatMul, inputs: Any, attributes: Any, scale: float, format: Format = FLOAT32) -> Any:
        found = self._certified_in_stages(*inputs, scale, format)
        assert found is not None
        return found

    with (
        patch.object(integer_products, "by_integers", lambda *of: True),
        patch.object(integer_products, "_LAST_LEVELS", {}),
        patch.object(integer_products, "LEVELS", dict.fromkeys(integer_products.LEVELS, levels)),
        patch.multiple(MatMul, certify=staged, certify_short=staged),
    ):
        return recorded(a, b, format)


@pytest.mark.parametrize("format", FORMATS, ids=NAMES.get)
def test_values_and_logs_are_the_processors(gpu_process: ProcessPoolExecutor, format: Format) -> None:
    """Also where the first level leaves too much in doubt."""
    a, b = (x.to(FORMATS[format]) for x in hostile(40, 300, 35))
    expected, log = recorded(a, b, format)
    for levels in (((8, 10**9), (26, 1)), ((8, 1),)):
        found, entries = gpu_process.submit(recorded_by_integers, a, b, format, levels).result()
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
        for name in ("indices", "decisions", "values"):
            assert (getattr(entries, name) == getattr(log, name)).all()
    assert len(log) > 20 or format != FLOAT32


def tried(tests: list[str], wrong: str | None) -> str | None:
    """What the trial of a device finds, by some of its tests, with a mistake in its products of integers."""
    right, all_vectors = ptx_machine._dot, integer_products.vectors
    lies: dict[str | None, Any] = {
        "sums from zero": lambda threads, format, c, a, b: right(threads, format, 0 * c, a, b),
        "a bit less": lambda *of: right(*of) & ~1,
    }
    with (
        patch.object(ptx_machine, "_dot", lies.get(wrong, right)),
        patch.object(integer_products, "vectors", lambda f: (one for one in all_vectors(f) if one[0] in tests)),
    ):
        return integer_products.first_wrong(CPU)


def test_a_device_passes_its_trial_unless_its_integers_are_wrong(gpu_process: ProcessPoolExecutor) -> None:
    assert gpu_process.submit(tried, ["all exponents"], None).result() is None
    for wrong in ("sums from zero", "a bit less"):
        found = gpu_process.submit(tried, ["all exponents"], wrong).result()
        assert found is not None and "of the test 'all exponents', by" in found


@pytest.mark.slow
def test_a_device_passes_its_whole_trial(gpu_process: ProcessPoolExecutor) -> None:
    names = [name for name, *_ in integer_products.vectors(FLOAT32)]
    assert gpu_process.submit(tried, names, None).result() is None


@pytest.mark.parametrize(
    ("wrong", "seconds", "expected"),
    [(None, [1.0, 2.0], True), (None, [2.0, 1.0], False), ("element 3", [], False), (MemoryError("room"), [], False)],
)
def test_integers_multiply_where_they_are_right_and_quicker(wrong: Any, seconds: list[float], expected: bool) -> None:
    times = iter(seconds)
    with (
        patch.object(integer_products, "first_wrong", side_effect=[wrong]),
        patch.object(integer_products, "_seconds", lambda *of: next(times)),
        pytest.warns(UserWarning, match="element 3|room") if wrong else nullcontext(),
    ):
        assert integer_products.by_integers.__wrapped__(CPU, torch.float32) == expected
