"""Chains on BF16 give the bits that their operators give one by one, and those of the reference in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from roundlog.adjudication.binary32 import ROUNDED, SCALARS
from roundlog.capture.builder import Builder
from roundlog.execution import Executor, NonFiniteError, fusion
from roundlog.execution.executor import CheckedProgram, RunningStep
from roundlog.execution.fusion import Group, SameNumbers, plan
from roundlog.number_format import BFLOAT16, FLOAT32
from roundlog.operators import StepInputs
from roundlog.program import DType, Program, TensorType
from roundlog.rounding import Recorder

from tests.engine.oracle.array import words_of

Words = npt.NDArray[np.uint16]

UNARY = ("sqrt", "neg", "abs", "floor")
ARITHMETIC = ("add", "sub", "mul", "div")
BINARY = (*ARITHMETIC, "maximum", "minimum", "eq", "lt", "le")


pytestmark = pytest.mark.usefixtures("compiled")


def of_words(words: Words) -> torch.Tensor:
    return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)


def inputs_of(states: list[torch.Tensor]) -> StepInputs:
    return StepInputs(states=states, data=[], schedule=torch.zeros(0), seed=0, step=0, device=torch.device("cpu"))


def program_of(build: Callable[[Builder, list[int]], list[int]], states: list[torch.Tensor]) -> Program:
    """A program that stores the values that `build(builder, states)` gives; the first ones have the states' types."""
    kinds = {torch.float32: DType.F32, torch.bfloat16: DType.BF16}
    builder = Builder()
    types = [TensorType(tuple(x.shape), kinds[x.dtype]) for x in states]
    values = [builder.source_op("state", kind, slot=slot) for slot, kind in enumerate(types)]
    stored = build(builder, values)
    names = [f"s{slot}" for slot in range(len(stored))]
    return builder.finish(builder.constant(0.0, DType.F32), stored, states=names, data=[], schedule=[], batch_size=1)


def both_ways(program: Program, states: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Everything that is stored, finite or not: in groups, and operator by operator."""
    checked = CheckedProgram(program, FLOAT32)
    results = []
    for run in (RunningStep.run_in_groups, RunningStep.run_in_order):
        running = RunningStep(checked, inputs_of(states), Recorder(4))
        running.stops = False
        run(running)
        results.append(running.states)
    return zip(*results, strict=True)


def carried(states: list[torch.Tensor], stored: Callable[[Builder, list[int]], list[int]]) -> list[torch.Tensor]:
    """What is stored beside the states, after it has been held to be the same both ways, and to come from tapes."""
    program = program_of(lambda builder, values: [*values, *stored(builder, values)], states)
    alone = {program.nodes[unit].op for unit in plan(program) if isinstance(unit, int)}
    assert alone == {"state", "constant", "store", "loss"}
    found = []
    for fused, single in list(both_ways(program, states))[len(states) :]:
        assert fused.dtype == single.dtype
        assert words_of(fused) == words_of(single)
        found.append(fused)
    return found


def reference(name: str, *operands: int) -> int:
    """The encoding of the result for encodings of operands, in BF16; 0 or 1 of a comparison."""
    scalar, wide = f"FLOAT_{name.upper()}", [BFLOAT16.in_float32(word) for word in operands]
    found = SCALARS[scalar](*wide, *([BFLOAT16] if scalar in ROUNDED else []))
    return found if name in ("eq", "lt", "le") else BFLOAT16.of_float32(found)


def as_number(builder: Builder, value: int) -> int:
    return builder.op("to_bf16", value) if builder.dtype(value) == DType.BOOL else value


def test_every_number_goes_through_every_instruction_of_one_operand() -> None:
    every = np.arange(1 << 16).astype(np.uint16)
    x = of_words(every)

    def build(builder: Builder, values: list[int]) -> list[int]:
        wide = builder.op("to_f32", values[0])
        return [*(builder.op(name, values[0]) for name in UNARY), wide, builder.op("to_bf16", wide)]

    *found, wide, back = carried([x], build)
    for name, results in zip(UNARY, found, strict=True):
        assert words_of(results)[::37] == tuple(reference(name, word) for word in every[::37].tolist()), name
    assert words_of(wide) == tuple(BFLOAT16.in_float32(word) for word in words_of(x))
    assert words_of(back) == words_of(x)


def test_every_upper_half_is_rounded_with_lower_halves_around_the_middle() -> None:
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    words = (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)[:, None] << 16) | lower
    x = words.view(torch.float32)
    (found,) = carried([x], lambda builder, values: [builder.op("to_bf16", values[0])])
    assert words_of(found)[::53] == tuple(BFLOAT16.of_float32(word) for word in words_of(x)[::53])


def corners() -> Words:
    """Ends of the range, numbers beside each other and beside powers of two, infinities and NaN, of both signs."""
    ends = [0, 1, 2, 3, 0x40, 0x7E, 0x7F, 0x80, 0x81, 0xFF, 0x100, 0x7F00, 0x7F7E, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0]
    middle = [0x3F7F, 0x3F80, 0x3F81, 0x3F82, 0x3FC0, 0x3FFF, 0x4000, 0x4049, 0x40A0, 0x3B80, 0x3C00, 0x1F81, 0x2001]
    words = np.array(ends + middle, dtype=np.uint16)
    return np.concatenate([words, words | np.uint16(0x8000)])


def test_corners_in_pairs_go_through_every_instruction_of_two_operands() -> None:
    a, b = np.array(list(product(corners(), repeat=2)), dtype=np.uint16).T.copy()

    def build(builder: Builder, values: list[int]) -> list[int]:
        found = [as_number(builder, builder.op(name, *values)) for name in BINARY]
        less = builder.op("lt", *values)
        return [*found, builder.op("where", less, *values), builder.op("where", builder.op("le", *values), *values)]

    found = carried([of_words(a), of_words(b)], build)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))[::7]
    for name, results in zip(BINARY, found, strict=False):
        right = tuple(reference(name, *pair) for pair in pairs)
        if name in ("eq", "lt", "le"):
            right = tuple(0x3F80 * flag for flag in right)
        assert words_of(results)[::7] == right, name


def significands(exponent: int, others: range) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every two normal significands, with these biased exponents."""
    fraction = np.arange(128, dtype=np.uint16)
    first = np.repeat(fraction, 128) | np.uint16(exponent << 7)
    for other in others:
        yield of_words(first), of_words(np.tile(fraction, 128) | np.uint16(other << 7))


@pytest.mark.parametrize(
    ("name", "exponent", "others"),
    [
        # Sums where one operand may be lost beside the other; but for the scale, that is all of them.
        ("add", 127, range(105, 128)),
        ("sub", 127, range(105, 128)),
        # In the normal range, and through all places of subnormal numbers to zero.
        ("mul", 127, range(126, 128)),
        ("mul", 64, range(50, 66)),
        ("div", 127, range(126, 128)),
        ("div", 60, range(184, 199)),
        # Overflow.
        ("add", 254, range(244, 255)),
        ("mul", 191, range(188, 192)),
        ("div", 191, range(62, 66)),
    ],
)
def test_rounding_twice_is_rounding_once(name: str, exponent: int, others: range) -> None:
    """By way of FP32, in tapes; operator by operator it is FP64, rounded to odd."""
    a, b = (torch.cat(one) for one in zip(*significands(exponent, others), strict=True))
    (found,) = carried([a, b], lambda builder, values: [builder.op(name, *values)])
    assert found.dtype == torch.bfloat16


def test_an_instruction_is_not_trusted_to_round_to_bf16_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_BY_FP32", frozenset())
    x = torch.ones(8)

    def build(builder: Builder, values: list[int]) -> list[int]:
        short = builder.op("neg", builder.op("to_bf16", values[0]))
        return [builder.op("to_f32", builder.op("mul", short, short)), builder.op("mul", *values, *values)]

    program = program_of(build, [x])
    alone = [program.nodes[unit] for unit in plan(program) if not isinstance(unit, Group)]
    assert [node.type.dtype for node in alone if node.op == "mul"] == [DType.BF16]


SHAPES: list[list[tuple[int, ...]]] = [
    [(6, 700), (700,), (6, 1), ()],
    [(2, 3, 20, 20), (1, 3, 1, 1), (2, 3, 20, 20), (20,)],
    [(3000,), (1,), (3000,), ()],
    [(4, 3, 7), (3, 1), (4, 1, 7), (1, 3, 7)],
]


@pytest.mark.slow_but("0-*")
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_random_chains_of_both_formats_give_the_same_bits(shapes: list[tuple[int, ...]], seed: int) -> None:
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    states = []
    for slot, shape in enumerate(shapes):
        wide = torch.tensor(generator.standard_normal(shape) * 2.0 ** generator.integers(-70, 60, shape)).float()
        anything = torch.tensor(generator.integers(-(1 << 15), 1 << 15, shape)).to(torch.int16).view(torch.bfloat16)
        short = torch.where(torch.tensor(generator.random(shape) < 0.2), anything, wide.bfloat16())
        states.append(wide if slot == 2 else short)

    def build(builder: Builder, values: list[int]) -> list[int]:
        made: dict[DType, list[int]] = {DType.F32: [values[2]], DType.BF16: [values[slot] for slot in (0, 1, 3)]}
        flags: list[int] = []
        for _ in range(rng.randint(8, 40)):
            dtype, kind = rng.choice(list(made)), rng.random()
            some = made[dtype]
            try:
                if kind < 0.5:
                    some.append(builder.op(rng.choice(BINARY[:6]), *rng.choices(some, k=2)))
                elif kind < 0.65:
                    some.append(builder.op(rng.choice(UNARY), rng.choice(some)))
                elif kind < 0.85:
                    other = DType.BF16 if dtype == DType.F32 else DType.F32
                    made[other].append(builder.op(f"to_{other}", rng.choice(some)))
                elif kind < 0.9 or not flags:
                    flags.append(builder.op(rng.choice(BINARY[6:]), *rng.choices(some, k=2)))
                elif kind < 0.93:
                    flags.append(builder.op("logical_not", rng.choice(flags)))
                    flags.append(builder.op(rng.choice(["logical_and", "logical_or"]), *rng.choices(flags, k=2)))
                else:
                    some.append(builder.op("where", rng.choice(flags), *rng.choices(some, k=2)))
                    some.append(builder.op(f"to_{dtype}", rng.choice(flags)))
            except ValueError:
                continue  # shapes that do not broadcast
        return [*made[DType.F32][-8:], *made[DType.BF16][-8:]]

    program = program_of(lambda builder, values: [*values, *build(builder, values)], states)
    groups = [unit for unit in plan(program) if isinstance(unit, Group)]
    assert {program.nodes[index].type.dtype for group in groups for index in group.nodes} >= {DType.F32, DType.BF16}
    for fused, single in both_ways(program, states):
        assert words_of(fused) == words_of(single)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1030])
def test_a_check_sees_what_becomes_infinite_when_it_is_rounded(size: int) -> None:
    """The largest number of BF16 and half a place of it are finite in FP32."""
    largest = torch.full((size,), BFLOAT16.largest).bfloat16()
    beside = torch.full((size,), BFLOAT16.largest * 2.0**-9).bfloat16()
    program = program_of(lambda builder, values: [builder.op("add", *values), values[1]], [largest, beside])
    for spot in {0, size // 2, size - 1}:
        beside.zero_()
        Executor(program).run(inputs_of([largest, beside]), Recorder(4))
        beside[spot] = BFLOAT16.largest * 2.0**-8
        said = []
        for observe in (lambda index, value: None, None):
            with pytest.raises(NonFiniteError) as caught:
                Executor(program).run(inputs_of([largest, beside]), Recorder(4), observe)
            said.append((caught.value.operator, caught.value.element))
        assert said[0] == said[1] and said[0][1] == spot


def test_what_is_rounded_back_is_what_it_was() -> None:
    """Through views, of numbers in any order in memory, infinities and NaN of all bits; what is read besides, and what
    changes a number on the way, is computed."""
    every = of_words(np.arange(1 << 16).astype(np.uint16)).reshape(256, 256)

    def build(builder: Builder, values: list[int]) -> list[int]:
        turned = builder.op("permute", values[0], dims=(1, 0))
        flat = builder.op("reshape", builder.op("to_f32", turned), shape=(1 << 16,))
        back = builder.op("to_bf16", builder.op("reshape", flat, shape=(4, 128, 128)))
        read = builder.op("to_f32", values[0])
        changed = builder.op("to_bf16", builder.op("abs", builder.op("to_f32", values[0])))
        other = builder.op("to_bf16", builder.op("to_f32", builder.op("to_bf16", builder.op("neg", read))))
        return [values[0], back, builder.op("add", back, back), builder.op("to_bf16", read), read, changed, other]

    program = program_of(build, [every])
    same = [unit for unit in plan(program) if isinstance(unit, SameNumbers)]
    assert len(same) == 3
    found = list(both_ways(program, [every]))
    for fused, single in found:
        assert fused.dtype == single.dtype and fused.shape == single.shape
        assert words_of(fused) == words_of(single)
    assert words_of(found[1][0]) == words_of(every.T)
    # Neither what is widened nor the views of it, but for what is read besides.
    done = {index for unit in plan(program) for index in (unit.nodes if isinstance(unit, Group) else [unit])}
    left_out = [node.op for index, node in enumerate(program.nodes) if index not in done]
    assert sorted(left_out) == ["reshape", "reshape", "to_bf16", "to_bf16", "to_bf16", "to_f32", "to_f32"]
