"""The reference, by way of descriptors and opened chunks, gives every element of every operator as the engine does."""

from __future__ import annotations

from random import Random

import contraction_cases  # noqa: F401  (registers its cases)
import pytest
import torch
from adjudication_cases import Bits, descriptor_of
from operator_cases import CASES, TAKES_INTEGERS, Case, integer_pairs
from oracle.array import Array, from_torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate
from roundlog.descriptors.describe import rule_for
from roundlog.operators import REGISTRY, Direct, Inexact, OperatorKind, Source

STEP = DisputedStep(step=3, seed=2**63 + 5, batch_size=2, data_rows=7)

OPERATORS = sorted(name for name, operator in REGISTRY.items() if not isinstance(operator, Source))

WORK = 400
"""Terms that are computed of a case in the default run: elements are drawn until they have so many."""


def engine_output(name: str, case: Case, attributes: dict[str, object]) -> Array:
    """The operator's output, bit by bit; an inexact one's is its exact value, correctly rounded."""
    operator = REGISTRY[name]
    if isinstance(operator, Direct):
        return from_torch(operator.compute(case.inputs, attributes))
    assert isinstance(operator, Inexact)
    y = operator.approximate(case.inputs, attributes)
    return from_torch(operator.exact(case.inputs, attributes, torch.arange(y.numel())).reshape(y.shape))


def right(name: str, bits: int, dtype: str) -> int | NoAnswer:
    """The element as it leaves a step, or that a run stops there."""
    if dtype != "f32":
        return bits
    if name in ("loss", "store"):
        return bits if ieee.is_finite(bits) else NoAnswer.NO_VALUE
    # Movement copies bits, and no step has another NaN to copy.
    return ieee.NAN if ieee.is_nan(bits) and REGISTRY[name].kind != OperatorKind.MOVEMENT else bits


def check(name: str, case: Case, elements: list[int] | None, rng: Random) -> None:
    attributes = {**case.attributes, **({"slot": 0} if name == "store" else {})}
    descriptor = descriptor_of(name, case.inputs, attributes)
    output = engine_output(name, case, attributes)
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


@pytest.mark.parametrize("name", TAKES_INTEGERS)
def test_the_reference_gives_the_engines_integers(name: str) -> None:
    rng = Random(f"adjudication {name}")
    for case in integer_pairs(rng):
        check(name, case, None, rng)


def test_the_reference_compares_truth_values() -> None:
    a = torch.tensor([True, True, False, False])
    check("eq", Case([a, a[[0, 2, 1, 3]]]), [0, 1, 2, 3], Random(0))


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_gives_the_engines_bits_for_every_element(name: str) -> None:
    for case in CASES[name](Random(f"tiebreak {name}, all")):
        attributes = {**case.attributes, **({"slot": 0} if name == "store" else {})}
        descriptor = descriptor_of(name, case.inputs, attributes)
        check(name, case, list(range(descriptor.elements)), Random(0))
