"""A device is tried before it computes: one that lies is found out, in Triton's interpreter, and refused for what it
does not do, with a sentence that says what to do."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
import torch
from roundlog.arithmetic import MachineError, as_dtype, check_machine, device_check, machine
from roundlog.definitions.tensor_core import OPERAND_FORMATS
from roundlog.kernels import cuda, tensor_core_products
from roundlog.kernels.cuda import bf16_products, tensor_cores
from roundlog.kernels.cuda.tensor_cores import DeviceVerdict, Difference, ProductKernels, vectors

from tests.engine.kernels.tensor_core_devices import MISPLACED, misplaced
from tests.engine.kernels.triton_processes import needs_triton

CPU = torch.device("cpu")
NAME = "a card"


@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_vectors_are_the_same_everywhere_and_say_something(format: str) -> None:
    tests = list(vectors(OPERAND_FORMATS[format]))
    assert sum(a.size // a.shape[-1] * b.shape[-1] for _, a, b in tests) == 4096 + 2 * 144 * 160
    for (_, a, b), (_, again, other) in zip(tests, vectors(OPERAND_FORMATS[format]), strict=True):
        assert (a == again).all() and (b == other).all()
    arithmetic = tensor_core_products.GroupArithmetic(25, 16, format == "f16")
    sums = {}
    for test, a, b in tests:
        operands = (tensor_cores.tensor_of(x, format) for x in (a, b))
        sums[test] = tensor_core_products.tensor_core_product(*operands, arithmetic).sums
    assert len(sums["long sums"]) == 2
    assert [test for test, found in sums.items() if bool(found.isnan().any())] == ["all exponents"]
    assert not sums["all exponents"].isnan().all()


def tried_with_misplaced(what: str) -> Difference | None:
    """The outcome on a device that multiplies as the CPU does, other operands than those that it is given."""
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    def segment_sums(
        a: torch.Tensor, b: torch.Tensor, arithmetic: tensor_core_products.GroupArithmetic, native: bool
    ) -> torch.Tensor:
        return tensor_core_products.tensor_core_product(*misplaced(what, a, b), arithmetic).sums

    with patch.object(kernels, "segment_sums", segment_sums):
        return tensor_cores.first_difference(CPU, "hopper", "bf16", True)


@needs_triton
def test_kernels_that_are_wrong_about_all_but_one_tile_are_found_out(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(tried_with_misplaced, "nothing").result() is None
    for what in MISPLACED:
        found = interpreter.submit(tried_with_misplaced, what).result()
        assert found is not None and found.test == "several tiles", what


def fault(monkeypatch: pytest.MonkeyPatch, verdict: DeviceVerdict) -> str | None:
    monkeypatch.setattr(device_check, "has_kernels", lambda device: True)
    monkeypatch.setattr(tensor_cores, "verdict", lambda *of: verdict)
    return device_check.fault_of.__wrapped__(CPU, NAME, frozenset([("hopper", "bf16")]))


WRONG = Difference("long sums", 17, 0xC2040F07, 0x40000001)


def test_a_verdict_says_what_a_device_is_used_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what its tensor cores, and its integers, are found to compute: a difference, nothing, or an error."""
    fails = RuntimeError("no compiler")
    for native, cores, integers, way in (
        (True, None, None, ProductKernels.NATIVE),
        (False, None, None, ProductKernels.EMULATED),
        (True, WRONG, None, ProductKernels.EMULATED),
        (True, fails, None, ProductKernels.EMULATED),
        (True, None, WRONG, ProductKernels.NONE),
        (True, None, fails, ProductKernels.NONE),
    ):
        kept = {True: cores, False: integers}

        def found(*of: object, kept: dict[bool, object] = kept) -> object:
            if isinstance(kept[bool(of[-1])], Exception):
                raise fails
            return kept[bool(of[-1])]

        monkeypatch.setattr(tensor_cores, "first_difference", found)
        judged = tensor_cores.judge(CPU, "hopper", "bf16", native)
        assert judged.way is way
        for said, right in (
            (judged.native, cores if integers is None and native else None),
            (judged.emulated, integers),
        ):
            assert said is right or (right is fails and "no compiler" in str(said))


@pytest.mark.slow
def test_a_device_is_refused_in_one_sentence_or_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fault(monkeypatch, DeviceVerdict(ProductKernels.NATIVE)) is None
        assert fault(monkeypatch, DeviceVerdict(ProductKernels.EMULATED)) is None
        found = fault(monkeypatch, DeviceVerdict(ProductKernels.NONE, None, WRONG))
    assert found == (
        "a card (cpu) does not compute products of bf16 as hopper has them, not even by integers: element 17 of the "
        "test 'long sums' is 0xc2040f07, not 0x40000001; use another device, or the CPU"
    )
    with pytest.warns(UserWarning, match=r"^the tensor cores of a card \(cpu\) are refused .* 0xc2040f07, not 0x40000"):
        assert fault(monkeypatch, DeviceVerdict(ProductKernels.EMULATED, WRONG)) is None
    with pytest.warns(UserWarning, match=r"the CPU computes them: no compiler"):
        assert fault(monkeypatch, DeviceVerdict(ProductKernels.NONE, None, "no compiler")) is None


def test_a_cuda_device_is_asked_with_the_arithmetics_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def found(device: torch.device, name: str, products: frozenset[tuple[str, str]]) -> str:
        asked.append((name, products))
        return "it lies"

    monkeypatch.setattr(machine, "fault_of", found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: NAME)
    full, ones = torch.full, torch.ones
    monkeypatch.setattr(torch, "full", lambda *a, device, **other: full(*a, **other))
    monkeypatch.setattr(torch, "ones", lambda *a, device, **other: ones(*a, **other))
    check_machine(CPU, [("hopper", "bf16")])
    assert not asked
    with pytest.raises(MachineError, match=r"^it lies$"):
        check_machine(torch.device("cuda", 0), [("hopper", "bf16")])
    assert asked == [(NAME, frozenset([("hopper", "bf16")]))]


def fixed_point(bits: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """FP64 products as the Ozaki scheme emulates them: numbers of a line have so many bits below its largest exponent,
    and their products are added exactly."""

    def scaled(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
        top = np.frexp(np.abs(x).max(axis=axis, keepdims=True))[1]
        return np.trunc(np.ldexp(x, bits - top)).astype(object), top

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (x, of_rows), (y, of_columns) = scaled(a.numpy(), -1), scaled(b.numpy(), -2)
        # Integers of Python, without their fractions.
        sums = np.vectorize(int, otypes=[object])(x) @ np.vectorize(int, otypes=[object])(y)
        return torch.from_numpy(np.ldexp(sums.astype(np.float64), of_rows + of_columns - 2 * bits))

    return multiply


LOST = {
    "products in FP32": lambda a, b: (a.float() @ b.float()).double(),
    "products in TF32": lambda a, b: (
        (a.float().view(torch.int32) & ~0x1FFF).view(torch.float32).double() @ b.float().double()
    ),
    "a term that is left out": lambda a, b: a[..., 1:] @ b[:, 1:],
    "emulation with 55 bits": fixed_point(55),
    "emulation with 79 bits": fixed_point(79),
}


@pytest.mark.slow_but("a term that is left out")
@pytest.mark.parametrize("lie", LOST)
def test_products_in_fp64_that_err_too_much_are_found_out(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_check._wrong_sum(CPU) is None
    assert sum(a.shape[0] * a.shape[1] * b.shape[2] for _, a, b in device_check._operands()) == 5120
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.Tensor.__matmul__
    wrong = LOST[lie]

    def lying(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with monkeypatch.context() as inner:
            inner.setattr(torch.Tensor, "__matmul__", right)
            return wrong(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", lying)
    found = device_check.fault_of.__wrapped__(CPU, NAME, frozenset())
    assert found is not None
    assert re.fullmatch(
        r"a card \(cpu\) adds products otherwise than FP64 does: element \d+ of the test '[\w ]+' is 0x[0-9a-f]{16} in "
        r"FP64, and the sum rounds to 0x[0-9a-f]{16}; use another device, or the CPU",
        found,
    )
    # As many bits as cuBLAS takes at most before it has FP64 compute.
    assert ("'large factors of small ones'" in found) == (lie == "emulation with 79 bits")


@pytest.mark.parametrize(("value", "refused"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_an_environment_that_has_fp64_emulated_is_refused(
    value: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_EMULATE_DOUBLE_PRECISION", raising=False)
    # Neither does anything without it.
    monkeypatch.setenv("CUBLAS_EMULATION_STRATEGY", "eager")
    monkeypatch.setenv("CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT", "40")
    if value is not None:
        monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", value)
    found = device_check.fault_of.__wrapped__(CPU, NAME, frozenset())
    assert found == (
        f"CUBLAS_EMULATE_DOUBLE_PRECISION is {value!r} here, with which cuBLAS may multiply FP64 matrices by integers "
        "on a card (cpu), whose errors are not bounded element by element: unset the variable, or set it to "
        "0, and start again"
        if refused
        else None
    )


def test_families_are_those_whose_results_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((9, 0), "hopper"), ((8, 0), "ampere"), ((8, 6), None), ((7, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert tensor_cores.family(CPU) == expected
        asked: list[bool] = []
        monkeypatch.setattr(tensor_cores, "judge", lambda *of, asked=asked: asked.append(of[-1]))
        tensor_cores.verdict.__wrapped__(CPU, "hopper", "bf16")
        tensor_cores.verdict.__wrapped__(CPU, "ampere", "f16")
        assert asked == [expected == "hopper", expected == "ampere"]


def test_amds_devices_are_none_of_hoppers_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert tensor_cores.family(CPU) is None and not cuda.has_kernels.__wrapped__(CPU)
    assert bf16_products.proven.__wrapped__(CPU) is None
    found = tensor_cores.verdict.__wrapped__(CPU, "hopper", "bf16")
    with pytest.warns(UserWarning, match=r"no kernel for products of bf16 as hopper has .* the CPU computes .* AMD's"):
        assert fault(monkeypatch, found) is None


@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_segments_are_added_exactly_on_a_device(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from roundlog.operators import tensor_core_matmul as operator

    rng, its = np.random.default_rng(1), OPERAND_FORMATS[format]
    asked: list[int] = []
    exactly = operator.round_sums
    monkeypatch.setattr(
        operator, "round_sums", lambda terms, format: asked.append(len(terms)) or exactly(terms, format)
    )
    monkeypatch.setattr(operator, "_BLOCK", 1000)
    for segments, spread in ((1, 20), (2, 2), (2, 60), (3, 40), (5, 30)):
        sums = rng.standard_normal((segments, 20, 30)) * 2.0 ** rng.integers(-spread, spread, (segments, 20, 30))
        numbers = torch.from_numpy(sums).float()
        # Half-way between two numbers, but for the last term; nothing; and nothing that is known.
        numbers[:, 0], numbers[0, 0], numbers[-1, 0] = 0, 1 + 2.0 ** -(its.fraction_bits + 1), 2.0**-60
        numbers[:, 1], numbers[0, 2], numbers[:, 3] = -0.0, torch.nan, 2.0**-30
        asked.clear()
        there = operator._joined(numbers, its)
        doubtful = sum(asked)
        one_by_one = exactly(numbers.view(segments, -1).T.double().contiguous().numpy(), its)
        here = as_dtype(torch.from_numpy(one_by_one).view(20, 30), its)
        assert torch.equal(there.isnan(), here.isnan()) and here.isnan().any()
        assert torch.equal(there.nan_to_num().view(torch.int16), here.nan_to_num().view(torch.int16))
        assert (doubtful > 100) == (spread > 20) and doubtful < numbers[0].numel()
