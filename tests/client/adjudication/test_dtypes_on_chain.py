"""Combinations of dtypes that an operator may have: the contract and the client refuse the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

from eth_abi.abi import encode
from roundlog.commitments import CHUNK_SIZE
from roundlog.definitions import Family, signatures
from roundlog.descriptors import Descriptor, DescriptorError, Input, Row
from roundlog.descriptors.descriptor import REDUCTIONS, STRUCT, _plain, check_descriptor
from roundlog.program import DType
from web3.exceptions import Web3Exception

ARITIES = {Family.COPY: (1, 2), Family.SUM: (1, 2)}
PARAMETERS = {
    Family.STATE: (0,),
    Family.DATA: (0, 1, 1, 1),
    Family.SCHEDULE: (0, 1),
    Family.CONSTANT: (1,),
    Family.IOTA: (0, 1),
    Family.UNIFORM: (0,),
    Family.GATHER: (0,),
}
UNKNOWN = 5
"""The first code that no dtype has."""


def described(family: Family, code: int, dtype: DType, inputs: tuple[DType, ...]) -> Descriptor:
    """One element, and one term, in which nothing is wrong but perhaps the dtypes."""
    reduces = family in REDUCTIONS
    axes = (1, 1) if reduces else (1,)
    labelled = (0, 1, *(0 for _ in axes)) if family in (Family.SELECTED_SUM, Family.ARGMAX) else ()
    row = Row(0, (0,) * len(axes))
    segment = 16 if family == Family.CHAIN else 1
    return Descriptor(
        family=family,
        code=code,
        dtype=dtype,
        segment=segment if reduces else 0,
        iteration=(1,),
        reduction=(1,) if reduces else (),
        inputs=tuple(Input(number, kind, (1,), (row,)) for number, kind in enumerate(inputs)),
        parameters=PARAMETERS.get(family, labelled),
    )


def combinations() -> Iterator[Descriptor]:
    """Every code of every family with every dtype of its output and of its inputs."""
    for family, code in product(Family, range(33)):
        if not (formats := signatures(family, code)):
            continue
        for count in ARITIES.get(family, (len(formats[0].inputs),)):
            for dtype, *inputs in product(DType, repeat=1 + count):
                yield described(family, code, dtype, tuple(inputs))


def accepts(adjudicator: Any, fields: tuple[Any, ...]) -> bool:
    try:
        adjudicator.functions.outline(encode([STRUCT], [fields]), CHUNK_SIZE).call()
    except Web3Exception:
        return False
    return True


def agree(adjudicator: Any, descriptor: Descriptor) -> bool:
    """Whether it is accepted, by both."""
    try:
        check_descriptor(descriptor)
        is_sound = True
    except DescriptorError:
        is_sound = False
    assert accepts(adjudicator, _plain(descriptor)) == is_sound, descriptor
    return is_sound


def test_some_combinations_of_dtypes_are_refused_by_both_or_by_none(adjudicator: Any) -> None:
    everything = list(combinations())
    sound = [one for one in everything if _sound(one)]
    rng = Random("tiebreak dtypes")
    assert all(agree(adjudicator, one) for one in rng.sample(sound, 60))
    assert not all(agree(adjudicator, one) for one in rng.sample(everything, 150))


def _sound(descriptor: Descriptor) -> bool:
    try:
        check_descriptor(descriptor)
    except DescriptorError:
        return False
    return True


def test_a_dtype_that_there_is_not_is_refused(adjudicator: Any) -> None:
    family, code, _, *rest = _plain(described(Family.COPY, 0, DType.F16, (DType.F16,)))
    assert accepts(adjudicator, (family, code, UNKNOWN - 1, *rest))
    assert not accepts(adjudicator, (family, code, UNKNOWN, *rest))
    (value, _, view, affine) = rest[3][0]
    assert not accepts(adjudicator, (family, code, UNKNOWN - 1, *rest[:3], [(value, UNKNOWN, view, affine)], *rest[4:]))
