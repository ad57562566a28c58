"""Operators on BF16 and FP16 round the mathematical value once: kernels against references on encodings."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication import fixed_point
from roundlog.adjudication.partial import ExactSum
from roundlog.arithmetic import as_dtype, as_float32, format_of, round_signed, torch_dtype
from roundlog.log import Entries
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format, narrow_float32
from roundlog.operators import REGISTRY, Inexact, compute_narrow, elementwise
from roundlog.operators.elementwise import FUNCTION_KERNELS, check_narrow, convert
from roundlog.program import DType, Node, Program, ProgramError, TensorType
from roundlog.rounding import Follower, Recorder
from roundlog.rounding.ovt import ThresholdFollower, ThresholdRecorder

SHORT = (BFLOAT16, FLOAT16)
FORMATS = (*SHORT, FLOAT32)
ARITHMETIC: dict[str, Callable[[int, int, Format], int]] = {
    "add": ieee.add,
    "sub": ieee.subtract,
    "mul": ieee.multiply,
    "div": ieee.divide,
}


def of_words(kind: Format, words: np.ndarray) -> torch.Tensor:
    """Numbers of a format from their encodings."""
    signed = words.astype(np.uint16).view(np.int16) if kind.itemsize == 2 else words.astype(np.uint32).view(np.int32)
    return torch.from_numpy(signed).view(torch_dtype(kind))


def words_of(x: torch.Tensor) -> list[int]:
    """Encodings of numbers, with the format's one NaN."""
    kind = format_of(x.dtype)
    signed, unsigned = (torch.int16, np.uint16) if kind.itemsize == 2 else (torch.int32, np.uint32)
    found = x.contiguous().reshape(-1).view(signed).numpy().view(unsigned).tolist()
    return [kind.nan if isnan else word for word, isnan in zip(found, x.reshape(-1).isnan().tolist(), strict=True)]


def in_float32(x: torch.Tensor) -> list[int]:
    """FP32 encodings of numbers of any format, by the reference."""
    kind = format_of(x.dtype)
    return [kind.in_float32(word) for word in words_of(x)]


def drawn(kind: Format, rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Numbers of a format: any encoding, numbers near each other, and the ends of the range."""
    count = prod(shape)
    anything = rng.integers(0, 1 << kind.width, count)
    one = (kind.largest_exponent << kind.fraction_bits) + rng.integers(
        -3 << kind.fraction_bits, 3 << kind.fraction_bits, count
    )
    ends = np.array(
        [0, 1, 2, (1 << kind.fraction_bits) - 1, 1 << kind.fraction_bits, kind.infinity - 1, kind.infinity, kind.nan]
    )
    edge = rng.choice(ends, count)
    signs = rng.integers(0, 2, count) << (kind.width - 1)
    which = rng.random(count)
    words = np.where(which < 0.3, anything, np.where(which < 0.8, one, edge) | signs)
    return of_words(kind, words).reshape(shape)


def tame(x: torch.Tensor, rng: np.random.Generator, share: float) -> torch.Tensor:
    """With zeros for all but a share of what is not finite, which would take over every sum."""
    return torch.where(x.isfinite() | torch.from_numpy(rng.random(x.shape) < share), x, torch.zeros_like(x))


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("out", FORMATS, ids=str)
def test_arithmetic_of_any_formats_rounds_once(name: str, out: Format) -> None:
    rng = np.random.default_rng([len(name), out.width, ord(name[0])])
    for left, right in product(FORMATS, FORMATS):
        a, b = drawn(left, rng, 600), drawn(right, rng, 600)
        found = compute_narrow(REGISTRY[name], [a, b], {}, out)
        assert found.dtype == torch_dtype(out)
        expected = [
            out.of_float32(ARITHMETIC[name](x, y, out)) for x, y in zip(in_float32(a), in_float32(b), strict=True)
        ]
        assert words_of(found) == expected, (name, left, right, out)


def test_a_sum_beside_a_midpoint_is_not_rounded_to_fp32_first() -> None:
    """1 + 2^-8 is a midpoint of BF16; a number that FP32 loses beside it decides."""
    for kind in SHORT:
        half = 2.0 ** (-kind.fraction_bits - 1)
        a, b = torch.tensor([1.0 + half] * 3), torch.tensor([2.0**-40, 0.0, -(2.0**-40)])
        assert compute_narrow(REGISTRY["add"], [a, b], {}, kind).tolist() == [1.0 + 2 * half, 1.0, 1.0]
        assert (a + b).to(torch_dtype(kind)).tolist() == [1.0] * 3, "what rounding twice gives"


@pytest.mark.parametrize("kind", SHORT, ids=str)
def test_conversions_are_exact_to_fp32_and_round_once_from_it(kind: Format) -> None:
    every = of_words(kind, np.arange(1 << 16))
    wide = convert(every, FLOAT32)
    assert wide.dtype == torch.float32 and words_of(wide) == in_float32(every)
    assert words_of(convert(wide, kind)) == words_of(every)
    # Every midpoint, and the FP32 numbers beside it.
    finite = wide[wide.isfinite()].double().sort().values
    middles = ((finite[1:] + finite[:-1]) / 2).float()
    up, down = (torch.nextafter(middles, torch.tensor(end)) for end in (torch.inf, -torch.inf))
    rng = np.random.default_rng(kind.width)
    for x in (middles[::31], up[::31], down[::31], drawn(FLOAT32, rng, 3000)):
        found = convert(x, kind)
        assert words_of(found) == [kind.of_float32(word) for word in words_of(x)]
        assert words_of(found) == words_of(x.to(torch_dtype(kind)))


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_fp32_becomes_bf16_as_by_way_of_fp64(low: int) -> None:
    """Every upper half of a word, with lower halves around the middle."""
    words = (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16) | low
    x = words.view(torch.float32)
    found, right = convert(x, BFLOAT16), as_dtype(round_signed(x.double(), BFLOAT16), BFLOAT16)
    missing = x.isnan()
    assert torch.equal(found.view(torch.int16)[~missing], right.view(torch.int16)[~missing])
    assert bool(found[missing].isnan().all())
    assert torch.equal(convert(x.view(256, 256).T[3:], BFLOAT16).nan_to_num(), found.view(256, 256).T[3:].nan_to_num())


@pytest.mark.parametrize("kind", SHORT, ids=str)
def test_formats_convert_into_each_other_and_from_integers(kind: Format) -> None:
    (other,) = set(SHORT) - {kind}
    every = of_words(other, np.arange(0, 1 << 16, 7))
    assert words_of(convert(every, kind)) == [kind.of_float32(word) for word in in_float32(every)]
    integers = torch.tensor([0, 1, -1, 257, 2049, 65519, 65520, -65520, 2**24 + 1, 2**62 + 1, 2**63 - 1, -(2**63)])
    assert words_of(convert(integers, kind)) == [kind.nearest(Fraction(x)) for x in integers.tolist()]
    assert convert(torch.tensor([True, False]), kind).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["neg", "abs", "floor", "maximum", "minimum", "eq", "lt", "le"])
def test_what_selects_and_compares_takes_any_formats(name: str) -> None:
    rng = np.random.default_rng(len(name))
    scalar = ieee.SCALARS[f"FLOAT_{name.upper()}"]
    for left, right in product(FORMATS, FORMATS):
        inputs = [drawn(left, rng, 400), drawn(right, rng, 400)][: REGISTRY[name].definition.arity]
        right_values = [scalar(*words) for words in zip(*map(in_float32, inputs), strict=True)]
        if name in ("eq", "lt", "le"):
            assert compute_narrow(REGISTRY[name], inputs, {}, None).tolist() == right_values
            continue
        for out in FORMATS:
            found = compute_narrow(REGISTRY[name], inputs, {}, out)
            assert words_of(found) == [out.of_float32(word) for word in right_values], (name, left, right, out)


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


@pytest.mark.parametrize("out", FORMATS, ids=str)
@pytest.mark.parametrize("given", SHORT, ids=str)
@pytest.mark.parametrize("terms", [1, 2, 3, 40])
def test_products_of_matrices_are_exact_sums_rounded_once(given: Format, out: Format, terms: int) -> None:
    rng = np.random.default_rng([given.width, given.fraction_bits, out.fraction_bits, terms])
    for other in FORMATS:
        a, b = tame(drawn(given, rng, 12, terms), rng, 0.1), tame(drawn(other, rng, terms, 9), rng, 0.1)
        # Columns that cancel leave what lies far below, and often a tie.
        if terms > 2:
            a[:6, 1], b[0, ::2], b[1, ::2] = a[:6, 0], 1.0, -1.0
        found = words_of(rounded_everywhere(inexact("matmul"), [a, b], {}, out))
        rows, columns = np.array(in_float32(a)).reshape(a.shape), np.array(in_float32(b)).reshape(b.shape)
        for i, j in product(range(12), range(9)):
            total = ExactSum()
            for x, y in zip(rows[i].tolist(), columns[:, j].tolist(), strict=True):
                total = total.absorb((x, y), 0)
            right = total.finish(out)
            assert right is not None and found[9 * i + j] == out.of_float32(right), (given, other, out, i, j)


@pytest.mark.parametrize("out", SHORT, ids=str)
def test_ties_of_long_sums_go_to_even_and_what_lies_beside_them_decides(out: Format) -> None:
    half = 2.0 ** (-out.fraction_bits - 1)
    for least in (0.0, 2.0**-60, -(2.0**-60)):
        x = torch.tensor([[1.0, half, least, 2.0**30, -(2.0**30)], [1.0 + 2 * half, half, least, 2.0**30, -(2.0**30)]])
        found = rounded_everywhere(inexact("sum"), [x], {"dims": (1,)}, out).reshape(-1).double().tolist()
        odd = 1.0 + 2 * half
        assert found == [odd if least > 0 else 1.0, odd if least < 0 else odd + 2 * half]
    # Subnormal ties, and the beginning of infinity.
    place = 2.0**out.least_place
    x = torch.tensor([[place, place / 2], [place * 2, place / 2], [out.largest, 0.0], [-out.largest, 0.0]])
    x[2:, 1] = torch.tensor([1.0, -1.0]) * (out.limit - out.largest) / 2
    found = rounded_everywhere(inexact("sum"), [x], {"dims": (1,)}, out).reshape(-1).double().tolist()
    assert found == [2 * place, 2 * place, torch.inf, -torch.inf]
    x[2:, 1] *= 1 - 2.0**-20
    found = rounded_everywhere(inexact("sum"), [x], {"dims": (1,)}, out).reshape(-1).double().tolist()
    assert found[2:] == [out.largest, -out.largest]


@pytest.mark.parametrize("out", SHORT, ids=str)
@pytest.mark.parametrize("name", FUNCTION_KERNELS)
def test_functions_round_once(name: str, out: Format) -> None:
    rng = np.random.default_rng([len(name), out.width, ord(name[0])])
    for given in SHORT:
        x = drawn(given, rng, 300)
        found = words_of(rounded_everywhere(inexact(name), [x], {}, out))
        for word, got in zip(in_float32(x), found, strict=True):
            right = fixed_point.evaluate(name, word, out)
            assert right is None or got == out.of_float32(right), (name, hex(word))


def test_what_is_infinite_for_certain_is_not_logged() -> None:
    """FP32 holds it, and FP16 does not."""
    recorder = Recorder(4)
    x = torch.full((5,), 20.0)
    assert recorder.round(0, inexact("exp"), [x], {}, FLOAT16).tolist() == [torch.inf] * 5
    assert not recorder.take()


@pytest.mark.parametrize("kind", SHORT, ids=str)
def test_movement_keeps_bits(kind: Format) -> None:
    x = of_words(kind, np.arange(1 << 16)).reshape(256, 256)
    assert torch.equal(as_float32(x).isnan(), x.isnan())
    for name, attributes in (("permute", {"dims": (1, 0)}), ("flip", {"dim": 0}), ("reshape", {"shape": (16, 4096)})):
        found = compute_narrow(REGISTRY[name], [x], attributes, kind)
        again = compute_narrow(REGISTRY[name], [x.view(torch.int16)], attributes, None)
        assert found.dtype == x.dtype and torch.equal(found.view(torch.int16), again)


@pytest.mark.parametrize("out", [*SHORT, narrow_float32(26)], ids=str)
def test_a_transposed_input_has_the_values_of_its_copy(out: Format) -> None:
    """Infinities and NaN among them, which are put in afterwards."""
    x = torch.tensor([[0.5, torch.inf, torch.nan], [-torch.inf, 300.0, -300.0]]).T
    for name in ("exp", "tanh", "log"):
        found = rounded_everywhere(inexact(name), [x], {}, out)
        assert found.shape == x.shape
        assert words_of(found) == words_of(rounded_everywhere(inexact(name), [x.contiguous()], {}, out))


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


def test_an_exact_operator_that_rounds_in_fp32_alone_is_refused_in_other_formats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
