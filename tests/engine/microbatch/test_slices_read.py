"""A sample's part of an output reads no more of the inputs than slicing rules say: descriptors know what is read."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from roundlog.adjudication.adjudicate import index_of, read
from roundlog.definitions import DEFINITIONS, Family, InputReads
from roundlog.descriptors import describe
from roundlog.execution.slicing import RULES, Layout, needs

from tests.engine.adjudication.adjudication_cases import program_of
from tests.engine.operators.operator_cases import CASES

SLICED = sorted(name for name, one in DEFINITIONS.items() if one.reads is not InputReads.WHOLE)


def wrong_reads(name: str, cases: int = 40) -> Iterator[bool]:
    """Whether an element reads one of another sample, for elements drawn at random. Each axis of an output is taken for
    that of the samples, one index a sample."""
    rng = Random(name)
    found = [case for case in CASES[name](Random(f"tiebreak {name}")) if all(x.numel() for x in case.inputs)]
    for case in rng.sample(found, min(cases, len(found))):
        program = program_of(name, case.inputs, case.attributes)
        node, descriptor = program.nodes[-1], describe(program, len(program.nodes) - 1)
        types = [program.nodes[value].type for value in node.inputs]
        for axis in range(len(node.type.shape)):
            layouts = needs(node, types, Layout(axis, 1, 1)) if node.type.numel else None
            for _ in range(8 if layouts else 0):
                element = rng.randrange(descriptor.elements)
                sample = np.unravel_index(element, node.type.shape)[axis]
                index = index_of(descriptor, element, rng.randrange(max(descriptor.terms, 1)))
                for item in descriptor.inputs:
                    layout, kind = layouts[item.value], types[item.value]
                    gathered = None
                    if descriptor.family is Family.GATHER and item.value == 0:
                        gathered = (descriptor.parameters[0], rng.randrange(item.view[descriptor.parameters[0]]))
                    place = read(item, index, gathered)
                    if layout is not None and place is not None:
                        coordinate = np.unravel_index(place, kind.shape)[layout.axis]
                        yield coordinate // layout.chunk % node.type.shape[axis] != sample


@pytest.mark.parametrize("name", SLICED)
def test_a_slice_reads_its_own_samples(name: str) -> None:
    found = list(wrong_reads(name))
    assert found and not any(found)


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "gather", lambda node, inputs, wanted: (wanted, wanted))
    assert any(wrong_reads("gather"))
