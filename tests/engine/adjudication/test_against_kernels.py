"""The reference, by way of descriptors and opened chunks, gives every element of every operator as the engine does."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate
from roundlog.commitments import canonical
from roundlog.descriptors.describe import rule_for
from roundlog.number_format import FLOAT32
from roundlog.operators import REGISTRY, Direct, Inexact, OperatorKind, Source, compute_narrow, operator
from roundlog.operators.summation import InParts
from roundlog.program import DType
from roundlog.rounding import Follower

from tests.engine.adjudication.adjudication_cases import Bits, descriptor_of
from tests.engine.operators.hostile_numbers import INEXACT, hostile
from tests.engine.operators.operator_cases import CASES, Case, golden
from tests.engine.operators.test_golden_vectors import rounded_everywhere
from tests.engine.oracle.array import FORMATS, Array, from_torch

STEP = DisputedStep(step=3, seed=2**63 + 5, batch_size=2, data_rows=7)

OPERATORS = sorted(name for name, operator in REGISTRY.items() if not isinstance(operator, Source))


def engine_output(name: str, case: Case, attributes: dict[str, object], dtype: DType) -> Array:
    """The operator's output, bit by bit; an inexact one's is its exact value, correctly rounded. dtype: of the output,
    if it is one of numbers."""
    operator, format = REGISTRY[name], dtype.number_format()
    if isinstance(operator, Direct):
        return from_torch(compute_narrow(operator, case.inputs, attributes, format))
    assert isinstance(operator, Inexact)
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


def check(name: str, case: Case, rng: Random, most: int | None = None) -> None:
    """Compare `most` elements, or as many as have 100 terms."""
    attributes = {**case.attributes, **({"slot": 0} if name == "store" else {})}
    descriptor = descriptor_of(name, case.inputs, attributes)
    output = engine_output(name, case, attributes, descriptor.dtype)
    assert descriptor.elements == len(output.items)
    count = min(descriptor.elements, most or max(2, 100 // max(descriptor.terms, 1)))
    chunks = Bits(case.inputs)
    for element in rng.sample(range(descriptor.elements), count):
        found = adjudicate(descriptor, element, STEP, chunks)
        expected = right(name, output.items[element], output.dtype)
        assert found == expected, (name, dict(case.attributes), element, found, expected, case.inputs)


def test_every_operator_of_the_registry_has_a_descriptor() -> None:
    assert all(map(rule_for, REGISTRY))


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_gives_the_golden_vectors(name: str) -> None:
    """Every element of every vector, in all formats, which kernels give, too (test_golden_vectors.py)."""
    for case in golden(name):
        if case.bits < 32 and REGISTRY[name].kind == OperatorKind.EXACT:
            continue  # no job of fewer bits is disputed about an exact operator
        descriptor, chunks = descriptor_of(name, case.inputs, case.attributes), Bits(case.inputs)
        step = replace(STEP, rounding_bits=case.bits)
        found = [adjudicate(descriptor, element, step, chunks) for element in range(descriptor.elements)]
        assert [answer % 2**64 for answer in found] == list(case.words), (name, case)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_gives_the_engines_bits(name: str) -> None:
    """For other shapes, parameters and numbers than those of the vectors."""
    rng = Random(f"adjudication {name}")
    for case in CASES[name](Random(f"tiebreak {name}"), count=12):
        check(name, case, rng)


@pytest.mark.slow_but("matmul", "exp", "sum")
@pytest.mark.parametrize("name", INEXACT)
def test_infinities_and_nan_have_the_same_bits_for_trainers_auditors_and_the_reference(name: str) -> None:
    """Where they hurt, as in padding: otherwise a trainer could take the bonds of honest auditors."""
    rng, special = Random(f"infinities {name}"), 0
    for case in (case for nan in (False, True) for case in hostile(name, rng, 6, nan)):
        inputs, attributes, op = [canonical(x) for x in case.inputs], dict(case.attributes), operator(name)
        descriptor, chunks = descriptor_of(name, inputs, attributes), Bits(inputs)
        answers = [adjudicate(descriptor, element, STEP, chunks) for element in range(descriptor.elements)]
        found = [from_torch(canonical(rounded_everywhere(op, inputs, attributes, FLOAT32))).items]
        axes = {"matmul": (-1, -2), "conv2d_grad_weight": (0, 0)}.get(name)
        if axes is not None:
            # Term by term, as in micro-batches.
            def part(i: int, inputs: list[torch.Tensor] = inputs, axes: tuple[int, int] = axes) -> list[torch.Tensor]:
                return [x.narrow(axis, i, 1) for x, axis in zip(inputs, axes, strict=True)]

            shapes = [tuple(x.shape) for x in inputs]
            parts = InParts(op, op.terms(shapes, attributes), inputs[0].shape[axes[0]], part)
            found.append(from_torch(canonical(Follower.without_log(4).round(0, parts, (), attributes))).items)
        for items in found:
            for answer, item in zip(answers, items, strict=True):
                assert answer in (item, NoAnswer.UNDECIDED), (name, answer, hex(item), case)
        special += sum(item & 0x7F800000 == 0x7F800000 for item in found[0])
    assert special or name in ("tanh", "erf")
