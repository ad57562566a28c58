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
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format
from roundlog.operators import operator
from roundlog.operators.contraction import MatMul
from roundlog.operators.summation import blocked_gamma
from roundlog.rounding import Recorder

from tests.devices import ptx_machine
from tests.devices.test_compiled_products import LAYOUTS, laid_out
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = needs_triton

CPU = torch.device("cpu")
MATMUL = operator("matmul")
assert isinstance(MATMUL, MatMul)
GUARD = 4


def hostile(rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP32 matrices with rows of all sorts, if there are so many terms."""
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal(shape) for shape in ((rows, terms), (terms, columns)))
    if terms > 9:
        a[3:11] *= np.ldexp(1.0, rng.integers(-40, 40, (8, terms)))
        # The first digit is all but 128; sums on ties and beside them; subnormal numbers; products that overflow.
        a[11:14], a[14:18] = (2 - 2.0**-7) * (1 - 2.0**-13), 0
        a[14:18, 0], a[14:18, 1], a[15, 2], a[16, 2] = 1, 2.0**-24, 2.0**-60, -(2.0**-60)
        a[20:22], a[22:24], a[24], b[:3, :20] = a[20:22] * 2.0**-140, a[22:24] * 2.0**126, 0, 1
        a[25, 2], a[26, 3], b[4, -1] = np.inf, np.nan, -np.inf
    return torch.from_numpy(a).float(), torch.from_numpy(b).float()


def recorded(a: torch.Tensor, b: torch.Tensor, format: Format) -> tuple[torch.Tensor, list[np.ndarray]]:
    """A product in FP32, and the indices, decisions and values of its log."""
    recorder = Recorder(GUARD)
    rounded = recorder.round(0, MATMUL, [a, b], {}, format).float()
    log = recorder.take().get(0)
    return rounded, [] if log is None else [log.indices, log.decisions, log.values]


def decided(a: torch.Tensor, b: torch.Tensor, digits: int, format: Format, layout: str, chunk: int = 1 << 14) -> Any:
    from roundlog.kernels.cuda import integer_product_kernels as kernels

    ratio = blocked_gamma(a.shape[1]) * (GUARD + 2)
    with patch.object(kernels, "CHUNK", chunk):
        found = kernels.decide(*(x[None] for x in laid_out(a, b, layout)), ratio, digits, format)
    return found[0][0], found[1][0]


@pytest.mark.parametrize(
    ("format", "layout", "digits"),
    [(FLOAT32, LAYOUTS[0], 5), (FLOAT32, LAYOUTS[1], 6), (BFLOAT16, LAYOUTS[2], 3), (FLOAT16, LAYOUTS[0], 5)],
)
def test_what_is_decided_is_the_processors_value(
    gpu_process: ProcessPoolExecutor, format: Format, layout: str, digits: int
) -> None:
    for sizes in ((130, 75, 35), (3, 1, 5)):
        a, b = (x.to(FORMATS[format]) for x in hostile(*sizes))
        arguments = a.float(), b.float(), digits, format
        rounded, doubts = gpu_process.submit(decided, *arguments, layout).result()
        assert torch.equal(rounded[~doubts], recorded(a, b, format)[0][~doubts])
        ratio = blocked_gamma(sizes[1]) * (GUARD + 2)
        (model, least), (_, most) = (decide(*arguments[:2], ratio, digits, format, slack) for slack in (1.0, 1.02))
        assert torch.equal(rounded[~doubts], model[~doubts])
        assert not (least & ~doubts).any() and not (doubts & ~most).any()
        assert sizes[1] == 1 or 0.05 < doubts.double().mean() < 0.6


@pytest.mark.parametrize(("terms", "chunk"), [(200, 64), pytest.param(2**14 + 50, 2**14, marks=pytest.mark.slow)])
def test_long_sums_are_added_in_chunks(gpu_process: ProcessPoolExecutor, terms: int, chunk: int) -> None:
    a, b = hostile(40, terms, 9)
    # As much as can be in one sum.
    a[0], b[:, 0] = 127 / 64 - 2.0**-20, 2.0**-23 - 127 / 64
    rounded, doubts = gpu_process.submit(decided, a, b, 6, FLOAT32, LAYOUTS[0], chunk).result()
    assert torch.equal(rounded[~doubts], recorded(a, b, FLOAT32)[0][~doubts])
    assert doubts.double().mean() < 0.5 and not doubts[0, 0]


def recorded_by_integers(a: torch.Tensor, b: torch.Tensor, format: Format, levels: Any) -> Any:
    def staged(self: MatMul, inputs: Any, attributes: Any, scale: float, format: Format = FLOAT32) -> Any:
        return self._certified_in_stages(*inputs, scale, format)

    with (
        patch.multiple(integer_products, by_integers=lambda *of: True, _LAST_LEVELS={}),
        patch.object(integer_products, "LEVELS", dict.fromkeys(integer_products.LEVELS, levels)),
        patch.multiple(MatMul, certify=staged, certify_short=staged),
    ):
        return recorded(a, b, format)


@pytest.mark.parametrize("format", FORMATS, ids=NAMES.get)
def test_values_and_logs_are_the_processors(gpu_process: ProcessPoolExecutor, format: Format) -> None:
    """Also where the first level leaves too much in doubt."""
    a, b = (x.to(FORMATS[format]) for x in hostile(40, 300, 35))
    expected, log = recorded(a, b, format)
    for levels in (((3, 10**9), (6, 1)), ((3, 1),)):
        found, entries = gpu_process.submit(recorded_by_integers, a, b, format, levels).result()
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
        assert all(map(np.array_equal, entries, log)) and len(entries) == len(log)


def tried(some: int, lie: int) -> str | None:
    """What a device's trial finds in its tests, or one of them, if its sums of integers lack these bits."""
    right, tests = ptx_machine._dot, list(integer_products.vectors(FLOAT32))
    with (
        patch.object(ptx_machine, "_dot", lambda *of: right(*of) & ~lie),
        patch.object(integer_products, "vectors", lambda format: tests[some:][:1] if some else tests),
    ):
        return integer_products.first_wrong(CPU)


@pytest.mark.parametrize("some", [5, pytest.param(0, marks=pytest.mark.slow)])
def test_a_device_passes_its_trial_unless_its_integers_are_wrong(gpu_process: ProcessPoolExecutor, some: int) -> None:
    assert gpu_process.submit(tried, some, 0).result() is None
    assert "digits" in gpu_process.submit(tried, some, 1).result()


@pytest.mark.parametrize(
    ("wrong", "seconds", "expected"),
    [(None, [1.0, 2.0], True), (None, [2.0, 1.0], False), ("element 3", [], False), (MemoryError("room"), [], False)],
)
def test_integers_multiply_where_they_are_right_and_quicker(wrong: Any, seconds: list[float], expected: bool) -> None:
    with (
        patch.object(integer_products, "first_wrong", side_effect=[wrong]),
        patch.object(integer_products, "_seconds", side_effect=seconds),
        pytest.warns(UserWarning, match="element 3|room") if wrong else nullcontext(),
    ):
        assert integer_products.by_integers.__wrapped__(CPU, torch.float32) == expected
