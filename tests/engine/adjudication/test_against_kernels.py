"""The reference, by way of descriptors and opened chunks, gives every element of every operator as the engine does."""

from __future__ import annotations

from random import Random

import pytest
import torch
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate
from roundlog.definitions import DEFINITIONS, FLOATS
from roundlog.descriptors.describe import rule_for
from roundlog.descriptors.descriptor import check_descriptor
from roundlog.operators import REGISTRY, Direct, Inexact, OperatorKind, Source, compute_narrow
from roundlog.operators.elementwise import convert
from roundlog.program import DType
from roundlog.rounding import Recorder

from tests.engine.adjudication.adjudication_cases import Bits, descriptor_of, of_numbers
from tests.engine.operators.operator_cases import CASES, Case
from tests.engine.oracle.array import FORMATS, Array, from_torch

STEP = DisputedStep(step=3, seed=2**63 + 5, batch_size=2, data_rows=7)

OPERATORS = sorted(name for name, operator in REGISTRY.items() if not isinstance(operator, Source))

WORK = 400
"""Terms that are computed of a case in the default run: elements are drawn until they have so many."""


def engine_output(name: str, case: Case, attributes: dict[str, object], dtype: DType = DType.F32) -> Array:
    """The operator's output, bit by bit; an inexact one's is its exact value, correctly rounded. dtype: of the output,
    if it is one of numbers."""
    operator, format = REGISTRY[name], dtype.number_format()
    if isinstance(operator, Direct):
        return from_torch(compute_narrow(operator, case.inputs, attributes, format))
    assert isinstance(operator, Inexact) and format is not None
    if dtype != DType.F32:
        return from_torch(Recorder(4).round(0, operator, case.inputs, attributes, format))
    y = operator.approximate(case.inputs, attributes)
    return from_torch(operator.exact(case.inputs, attributes, torch.arange(y.numel())).reshape(y.shape))


def right(name: str, bits: int, dtype: str) -> int | NoAnswer:
    """The element as it leaves a step, or that a run stops there."""
    format = FORMATS.get(dtype)
    if format is None:
        return bits
    if name in ("loss", "store"):
        return bits if format.is_finite(bits) else NoAnswer.NO_VALUE
    # Movement copies bits, and no step has another NaN to copy.
    is_nan = bits & ~format.sign > format.infinity
    return format.nan if is_nan and REGISTRY[name].kind != OperatorKind.MOVEMENT else bits


def in_format(case: Case, dtype: DType) -> Case:
    """With its numbers rounded to a dtype."""
    format = dtype.number_format()
    assert format is not None
    inputs = [convert(x, format) if x.is_floating_point() else x for x in case.inputs]
    return Case(inputs, case.attributes)


def check(name: str, case: Case, elements: list[int] | None, rng: Random, dtype: DType = DType.F32) -> None:
    """dtype: of the operator's numbers, instead of FP32."""
    attributes = {**case.attributes, **({"slot": 0} if name == "store" else {})}
    descriptor = of_numbers(descriptor_of(name, case.inputs, attributes), dtype)
    if dtype != DType.F32:
        case = in_format(case, dtype)
        check_descriptor(descriptor)
    output = engine_output(name, case, attributes, descriptor.dtype)
    assert descriptor.elements == len(output.items)
    if elements is None:
        count = min(descriptor.elements, max(2, WORK // max(descriptor.terms, 1)))
        elements = sorted(rng.sample(range(descriptor.elements), count))
    chunks = Bits(case.inputs)
    for element in elements:
        found = adjudicate(descriptor, element, STEP, chunks)
        expected = right(name, output.items[element], output.dtype)
        assert found == expected, (name, dict(case.attributes), element, found, expected, case.inputs)


def test_every_operator_of_the_registry_has_a_descriptor() -> None:
    assert all(map(rule_for, REGISTRY))


@pytest.mark.slow_cases("conv2d_grad_*")
@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_gives_the_engines_bits(name: str) -> None:
    rng = Random(f"adjudication {name}")
    for case in CASES[name](Random(f"tiebreak {name}")):
        check(name, case, None, rng)


OF_NUMBERS = [
    name
    for name in OPERATORS
    # Cases of tensor_core_matmul are in these formats already.
    if name not in ("loss", "tensor_core_matmul")
    and any(dtype == DType.BF16 for each in DEFINITIONS[name].formats for dtype in each.inputs)
]
CONVERSIONS = [name for name in OF_NUMBERS if name.startswith("to_")]


@pytest.mark.slow_but("matmul-*", "sum-*", "add-*", "div-*", "exp-*", "argmax-*")
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("name", [name for name in OF_NUMBERS if name not in CONVERSIONS])
def test_the_reference_gives_the_engines_bits_of_other_formats(name: str, dtype: DType) -> None:
    rng = Random(f"adjudication {name} {dtype}")
    found = [case for case in CASES[name](Random(f"tiebreak {name}")) if any(map(torch.is_floating_point, case.inputs))]
    for case in rng.sample(found, min(len(found), 12)):
        check(name, case, None, rng, dtype)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_the_reference_converts_as_the_engine(name: str) -> None:
    """Every number of 16 bits, and of FP32 those beside the middles between two of them."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    rng, to = Random(f"adjudication {name}"), DEFINITIONS[name].formats[0].output
    for kind in (dtype for dtype in FLOATS if dtype != to):
        x = every.view(torch.bfloat16 if kind == DType.F32 else kind.torch_dtype)
        if kind == DType.F32:
            words = every.to(torch.int32)
            halves = every.view(torch.float16).float().view(torch.int32)
            middles = torch.cat([words << 16, (words << 16) + (1 << 15), halves, halves + (1 << 12)])
            x = torch.cat([(middles + off).view(torch.float32) for off in (-1, 0, 1)])
        check(name, Case([x]), rng.sample(range(x.numel()), 3000), rng)
