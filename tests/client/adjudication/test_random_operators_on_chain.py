"""The contract against the reference, where neither knows what comes: values, stops and every running result."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from eth_abi.abi import encode
from roundlog.adjudication.adjudicate import Answer
from roundlog.commitments import CHUNK_SIZE
from roundlog.descriptors import Descriptor, DescriptorError, Family
from roundlog.descriptors.descriptor import STRUCT, _plain, check_descriptor
from roundlog.program import DType
from web3.exceptions import Web3Exception

from tests.client.adjudication.contract_answers import compare
from tests.client.adjudication.random_operators import case, sound


@pytest.mark.slow_but("MAP", "SUM")
@pytest.mark.parametrize("family", Family, ids=lambda family: family.name)
def test_the_contract_answers_as_the_reference(adjudicator: Any, family: Family) -> None:
    rng, answers = Random(f"tiebreak {family.name}"), list[Answer]()
    for _ in range(20):
        descriptor, step, memory = case(rng, family)
        for element in {descriptor.elements - 1, rng.randrange(descriptor.elements)}:
            answers.append(compare(adjudicator, descriptor, element, step, memory))
    assert sum(isinstance(answer, int) for answer in answers) > 5, answers


def bent(rng: Random, d: Descriptor) -> Descriptor:
    """With one field changed, perhaps to one that makes no sense."""
    change = rng.randrange(9)
    if change == 0:
        return replace(d, family=rng.choice(list(Family)))
    if change == 1:
        return replace(d, code=rng.choice([d.code + 1, 0, 1, 7, 31, 32, 255]))
    if change == 2:
        return replace(d, dtype=rng.choice(list(DType)))
    if change == 3:
        return replace(d, segment=rng.choice([0, 1, 4096, 4097]))
    if change == 4:
        return replace(d, iteration=(*d.iteration, rng.choice([1, 2, 2**40, 2**41])))
    if change == 5:
        return replace(d, reduction=rng.choice([(), (1,), (*d.reduction, 0)]))
    if change == 6:
        return replace(d, inputs=d.inputs[1:] if rng.random() < 0.5 else (*d.inputs, *d.inputs[:1]))
    if change == 7:
        return replace(d, parameters=d.parameters[1:] if rng.random() < 0.5 else (*d.parameters, 0))
    inputs = tuple(replace(i, dtype=rng.choice(list(DType))) for i in d.inputs)
    return replace(d, inputs=inputs)


@pytest.mark.slow
def test_what_the_contract_refuses_no_program_has(adjudicator: Any) -> None:
    """Of dtypes both refuse the same; of rows and parameters the contract checks only what it reads."""
    rng = Random("tiebreak bent")
    found: Counter[tuple[bool, bool]] = Counter()
    for turn in range(400):
        drawn = sound(rng, Family(turn % len(Family)))
        descriptor = bent(rng, drawn)
        try:
            check_descriptor(descriptor)
            is_sound = True
        except DescriptorError:
            is_sound = False
        try:
            adjudicator.functions.outline(encode([STRUCT], [_plain(descriptor)]), CHUNK_SIZE).call()
            accepted = True
        except Web3Exception:
            accepted = False
        assert accepted or not is_sound, descriptor
        if replace(descriptor, dtype=drawn.dtype, inputs=drawn.inputs) == drawn and drawn.family != Family.CONSTANT:
            assert accepted == is_sound, descriptor
        found[is_sound, accepted] += 1
    assert found[True, True] > 20 and found[False, False] > 100, found
