"""Operators in every format: kernels against the golden vectors of conformance/, which the reference of adjudication
makes and the second verifier agrees with (tests/conformance); bounds of approximations, and what rounds once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations
from math import prod
from random import Random

import numpy as np
import pytest
import torch
from elementary_series import FUNCTIONS as SERIES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import round_interval, torch_dtype
from roundlog.execution import Executor
from roundlog.log import Entries
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format, narrow_float32
from roundlog.operators import (
    REGISTRY,
    Inexact,
    OperatorKind,
    Source,
    StepInputs,
    Summation,
    compute_narrow,
    elementwise,
    operator,
)
from roundlog.operators.contraction import Contraction
from roundlog.operators.elementwise import check_narrow
from roundlog.program import DType, Node, Program, ProgramError, TensorType
from roundlog.rounding import Follower, Recorder
from roundlog.rounding.ovt import ThresholdFollower, ThresholdRecorder

from tests.engine.kept_jobs import kept_job
from tests.engine.operators import operands as of
from tests.engine.operators.operator_cases import CASES, FUNCTIONS, Case, GoldenCase, golden
from tests.engine.oracle.array import from_torch, words_of
from tests.engine.oracle.by_verifier import right
from tests.engine.running import foreign_device

SHORT = (BFLOAT16, FLOAT16)


def rounded_everywhere(op: Inexact, inputs: list[torch.Tensor], attributes: dict, out: Format) -> torch.Tensor:
    """The result of the trainer, which that of every auditor equals."""
    recorder = Recorder(4)
    result = recorder.round(0, op, inputs, attributes, out)
    log = {0: recorder.take().get(0, Entries.empty())}
    for share in (0.0, 1.0):
        follower = Follower(4, share, np.random.default_rng(0))
        follower.follow(0, log)
        assert words_of(follower.round(0, op, inputs, attributes, out)) == words_of(result)
        assert follower.findings == []
    assert words_of(Follower.without_log(4).round(0, op, inputs, attributes, out)) == words_of(result)
    by_threshold, after = ThresholdRecorder(), ThresholdFollower(4)
    published = by_threshold.round(0, op, inputs, attributes, out)
    after.follow(0, by_threshold.take())
    assert words_of(after.round(0, op, inputs, attributes, out)) == words_of(published)
    assert {result.dtype, published.dtype} == {torch_dtype(out)}
    return result


def inexact(name: str) -> Inexact:
    op = REGISTRY[name]
    assert isinstance(op, Inexact)
    return op


def test_a_certain_infinity_is_not_logged() -> None:
    """FP32 holds it, and FP16 does not."""
    recorder = Recorder(4)
    x = torch.full((5,), 20.0)
    assert recorder.round(0, inexact("exp"), [x], {}, FLOAT16).tolist() == [torch.inf] * 5
    assert not recorder.take()


def encoded(x: torch.Tensor) -> tuple[int, ...]:
    """Encodings as vectors have them."""
    return tuple(item % 2**64 for item in words_of(x))


def loaded(source: Source, case: GoldenCase) -> torch.Tensor:
    """Output of a source operator."""
    given = StepInputs(
        states=[], data=[], schedule=torch.zeros(0), seed=case.seed, step=case.step, device=torch.device("cpu")
    )
    assert source.infer([], case.attributes, case.kind) == case.kind
    return source.load(case.attributes, case.kind, given)


@pytest.mark.parametrize("name", sorted({*CASES, "constant", "iota", "uniform"}))
def test_kernels_give_the_golden_vectors(name: str) -> None:
    """In every format that an operator has, from memory in order and not; by trainers and by all auditors."""
    op = REGISTRY[name]
    for case in golden(name):
        dtype = case.kind.dtype
        out = narrow_float32(case.bits) if dtype == DType.F32 else dtype.number_format()
        for inputs in zip(*(list(of.layouts(x))[:4] for x in case.inputs), strict=True) if case.inputs else [()]:
            before = [from_torch(x) for x in inputs]
            if isinstance(op, Source):
                found = loaded(op, case)
            elif isinstance(op, Inexact):
                assert out is not None
                found = rounded_everywhere(op, list(inputs), dict(case.attributes), out)
            else:
                found = compute_narrow(op, list(inputs), case.attributes, out)
            assert (tuple(found.shape), DType.of(found.dtype)) == (case.kind.shape, dtype)
            assert encoded(found) == case.words, (name, case)
            assert [from_torch(x) for x in inputs] == before, "inputs are read only"


def compute_on_a_device() -> None:
    """Hold a device that is not the CPU against the vectors; in a process of its own."""
    foreign_device.install()
    device = torch.device(foreign_device.NAME, 0)
    for name in sorted(CASES):
        op = REGISTRY[name]
        for case in (case for case in golden(name) if all(x.numel() for x in case.inputs)):
            out = narrow_float32(case.bits) if case.kind.dtype == DType.F32 else case.kind.dtype.number_format()
            with foreign_device.foreign():
                inputs = [x.to(device) for x in case.inputs]
                if isinstance(op, Inexact):
                    assert out is not None
                    found = Recorder(4).round(0, op, inputs, dict(case.attributes), out)
                else:
                    found = compute_narrow(op, inputs, case.attributes, out)
                there = found.cpu()
            assert encoded(there) == case.words, (name, case)


@pytest.mark.slow
def test_a_device_gives_the_golden_vectors() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = f"from {__name__} import compute_on_a_device; compute_on_a_device()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr


UNIT = Fraction(1, 2**53)


def in_domain(name: str, case: Case) -> Case:
    """The case, without numbers at which a logarithm has no value."""
    x = case.inputs[0]
    if name == "log":
        return Case([torch.where(x == 0, 1.0, x.abs())])
    return Case([torch.where(x > -1, x, 0.0)]) if name == "log1p" else case


def depth(name: str, case: Case, terms: int) -> int:
    """One more than the additions that a term goes through in the order of additions that errs most."""
    if name == "conv2d_grad_input":
        # Outputs in any order, and then taps in any order.
        w = case.inputs[1]
        return min(w.shape[0] // case.attributes["groups"] + w.shape[2] * w.shape[3] - 1, terms)
    if name == "sum":
        # Blocks of 256 in any order, and then the blocks' sums in any order.
        count = prod(case.inputs[0].shape[dim] for dim in case.attributes["dims"])
        return min(count, 256, terms) + max(-(-count // 256) - 1, 0)
    return terms


def reals(name: str, op: Inexact, case: Case) -> Iterator[tuple[Fraction, Fraction]]:
    """For every element the real number, and the error that some order of additions has (Higham 2002, section 4.2)."""
    if name in FUNCTIONS:
        # Beyond FP64's range only the direction matters.
        most = 760 if name in ("exp", "expm1") else 2**128
        for x in case.inputs[0].reshape(-1).tolist():
            yield SERIES[name](Fraction(max(min(x, most), -most))), Fraction(0)
        return
    assert isinstance(op, (Summation, Contraction))
    count = op.approximate(case.inputs, case.attributes).numel()
    for row in op.listed(case.inputs, case.attributes, np.arange(count)).tolist():
        terms = [Fraction(x) for x in row if x]
        magnitude = sum(map(abs, terms), Fraction(0))
        unit = min((Fraction(abs(x.numerator) & -abs(x.numerator), x.denominator) for x in terms), default=Fraction(1))
        adds_exactly = name in ("sum", "scatter_add", "matmul") and magnitude < 2**53 * unit
        n = 0 if adds_exactly else max(depth(name, case, len(terms)) - 1, 0) * UNIT
        yield sum(terms, Fraction(0)), n / (1 - n) * magnitude


@pytest.mark.slow_cases("conv2d_grad_*")
@pytest.mark.parametrize("name", sorted(name for name, op in REGISTRY.items() if isinstance(op, Inexact)))
def test_an_approximation_lies_within_a_bound_that_decides_most_elements(name: str) -> None:
    """By torch, as on a device; a bound is no smaller than what any order of additions may err by."""
    op, decided, total = inexact(name), 0, 0
    for case in CASES[name](Random(f"tiebreak {name}"), count=8):
        inputs, attributes = in_domain(name, case).inputs, case.attributes
        expected = right(name, [from_torch(x) for x in inputs], attributes).items
        y = op.approximate(inputs, attributes)
        d = op.bound(inputs, attributes, y).whole(y).expand(y.shape)
        ends = zip(*(from_torch(end).items for end in round_interval(y, d)), strict=True)
        rows = zip(
            y.reshape(-1).tolist(), d.reshape(-1).tolist(), reals(name, op, Case(inputs, attributes)), strict=True
        )
        for (value, bound, (exact, least)), (low, high), word in zip(rows, ends, expected, strict=True):
            assert not ieee.less(word, low) and not ieee.less(high, word), (value, bound, case)
            decided += low == high
            if abs(value) == torch.inf:
                # exp and expm1 alone pass the range of FP64, where every FP32 has long overflowed.
                assert abs(exact) >= 2**1023 and bound == torch.inf
            else:
                assert abs(Fraction(value) - exact) <= Fraction(bound) and least <= Fraction(bound), (
                    value,
                    bound,
                    case,
                )
        total += len(expected)
        for some in (torch.arange(y.numel()), torch.arange(y.numel())[1::3]):
            found = from_torch(op.exact(inputs, attributes, some)).items
            assert found == tuple(expected[i] for i in some.tolist())
    assert decided > total // 2, f"{decided} of {total}"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_vendors_functions_use_less_than_half_of_their_bound(name: str) -> None:
    """More would be too near for machines that are not here."""
    rng = Random(name)
    x = torch.tensor([of.any_finite(rng) for _ in range(200)] + [rng.uniform(-15, 15) for _ in range(200)])
    x = x[((x.abs() < 700) | (name in ("sin", "cos"))) & (x.abs() > 2.0**-140)]
    x = x.abs() if name == "log" else x[x > -1] if name == "log1p" else x
    for value, y in zip(x.tolist(), inexact(name).approximate([x], {}).tolist(), strict=True):
        real = SERIES[name](Fraction(value))
        assert abs(Fraction(y) - real) <= abs(real) / 2**50 + Fraction(1, 2**1000), (value, y)


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["avx2", "default"])
def test_so_they_do_in_other_vectors(vectors: str) -> None:
    """The functions of torch are other code there."""
    chosen = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "vendors_functions"]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": vectors, "MKL_CBWR": "COMPATIBLE"}
    done = subprocess.run(chosen, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]


def test_numbers_of_two_formats_meet_in_no_operator() -> None:
    kinds = [TensorType((2, 2), dtype) for dtype in (DType.BF16, DType.F16, DType.F32)]
    for name in ("add", "matmul", "where", "lt"):
        for a, b in permutations(kinds, 2):
            given = [TensorType((2, 2), DType.BOOL), a, b] if name == "where" else [a, b]
            with pytest.raises(ProgramError, match=rf"input {len(given) - 1} is {b.dtype}\[2, 2\], expected {a.dtype}"):
                REGISTRY[name].infer(given, {}, a)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_exact_operator_is_known_to_round_to_every_format(name: str) -> None:
    """Else it is refused, in a sentence that says what to do."""
    for each in REGISTRY[name].definition.formats:
        if each.output is not None and REGISTRY[name].kind == "exact":
            kind = TensorType((), each.output)
            program = Program(
                nodes=(Node(name, (), {}, kind),), state_names=(), data_names=(), schedule_names=(), batch_size=1
            )
            check_narrow(program, [REGISTRY[name]], narrow_float32(24))


def test_an_exact_operator_that_is_not_known_to_round_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that somebody adds would round twice, in other formats than FP32, and in FP32 of fewer bits."""
    known = {*elementwise._WIDE, *(name for name, op in REGISTRY.items() if op.definition.selects)}
    assert known <= {name for name, op in REGISTRY.items() if op.kind == OperatorKind.EXACT}
    monkeypatch.delitem(elementwise._WIDE, "mul")
    for dtype, remedy in (
        (DType.BF16, "compute it in f32, and convert the result"),
        (DType.F32, "use rounding_bits 32"),
    ):
        nodes = (Node("mul", (), {}, TensorType((), dtype), "net.py:7"),)
        program = Program(nodes=nodes, state_names=(), data_names=(), schedule_names=(), batch_size=1)
        with pytest.raises(ProgramError, match=rf"operator 0 \(mul, net.py:7\) cannot be rounded to .*: {remedy}"):
            check_narrow(program, [REGISTRY["mul"]], narrow_float32(24))
        if dtype is DType.F32:
            check_narrow(program, [REGISTRY["mul"]], FLOAT32)
    with pytest.raises(ProgramError, match=r"operator \d+ \(mul, .*\) cannot be rounded to 31 bits yet"):
        Executor(kept_job("logistic_sgd").program, narrow_float32(31))


WIDTHS = st.sampled_from(range(23, 32))
PATTERNS = st.integers(0, 2**32 - 1).filter(ieee.is_finite)


def f32(*patterns: int) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


def rounded(name: str, width: int, *inputs: torch.Tensor) -> int:
    (bits,) = from_torch(compute_narrow(operator(name), list(inputs), {}, narrow_float32(width))).items
    return bits


def expected(name: str, a: int, b: int, width: int) -> int:
    """Straight from the mathematical value; a zero has the sign that IEEE 754 gives it."""
    if name in ("add", "sub"):
        b = b if name == "add" else b ^ ieee.SIGN
        zero, exact = ieee.SIGN if a == b == ieee.SIGN else 0, ieee.value(a) + ieee.value(b)
    else:
        zero = (a ^ b) & ieee.SIGN
        exact = ieee.value(a) * ieee.value(b) if name == "mul" else ieee.value(a) / ieee.value(b)
    return ieee.nearest(exact, zero=zero, format=narrow_float32(width))


@given(st.sampled_from(["add", "sub", "mul", "div"]), PATTERNS, PATTERNS, WIDTHS, st.booleans())
@example("add", 0x3F800001, 0x80000001, 31, False)  # a midpoint, and the smallest number below it
@example("add", 0x3F800001, 0x00000001, 31, False)
@example("add", 0x3F800100, 0x33000000, 23, False)
@example("sub", 0xBF800100, 0x00000001, 23, False)
@settings(max_examples=300)
def test_arithmetic_rounds_once(name: str, a: int, b: int, width: int, half: bool) -> None:
    """half: whether the first operand is half-way between two numbers of the format: beside something tiny, FP64 alone
    would call that a tie."""
    a = a >> 32 - width << 32 - width | 1 << 31 - width if half else a
    if name != "div" or ieee.value(b) != 0:
        assert rounded(name, width, f32(a), f32(b)) == expected(name, a, b, width)
