"""An operator with the wrong inputs, types or attributes is refused with one ProgramError, and raises nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from roundlog.operators import REGISTRY
from roundlog.program import DType, ProgramError, TensorType

from tests.engine.operators.operator_cases import CASES


def _programs_of_one(op: str) -> list[tuple[list[TensorType], dict[str, Any]]]:
    cases = list(CASES[op](Random(op)))[:12] if op in CASES else []
    return [([TensorType(tuple(x.shape), DType.of(x.dtype)) for x in c.inputs], dict(c.attributes)) for c in cases]


JUNK_KINDS = [TensorType(s, d) for s in ((), (0,), (3,), (2, 3), (1, 2, 3, 3), (2**20, 2**20)) for d in DType]
JUNK_NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 2**20, 2**31, 2**63 - 1]
JUNK: list[Any] = [*JUNK_NUMBERS, True, False, "", "x", 1.0, None, (), (0,), (-1, 0), (1, 1), (2**62,) * 4, (True,)]


@pytest.mark.parametrize("op", sorted(REGISTRY))
def test_no_types_and_attributes_make_an_operator_raise_anything_else(op: str) -> None:
    rng = Random(op)
    operator = REGISTRY[op]
    known = _programs_of_one(op) or [([], {"slot": 0, "bits": (0,), "start": 0, "step": 1, "stream": 1})]
    for _ in range(400):
        inputs, attributes = rng.choice(known)
        inputs, attributes = list(inputs), dict(attributes)
        fits = rng.random() < 0.8
        if not fits and (op == "cat" or rng.random() < 0.5):
            attributes["more"] = 1
        elif not fits:
            inputs = inputs[:-1] if inputs and rng.random() < 0.5 else [*inputs, rng.choice(JUNK_KINDS)]
        for _ in range(rng.randrange(1, 4)):
            if inputs and rng.random() < 0.5:
                inputs[rng.randrange(len(inputs))] = rng.choice(JUNK_KINDS)
            elif attributes:
                name = rng.choice(sorted(attributes))
                old = attributes[name]
                if isinstance(old, tuple) and rng.random() < 0.7:
                    attributes[name] = tuple(rng.choice((i, rng.choice(JUNK_NUMBERS))) for i in old)
                else:
                    attributes[name] = rng.choice(JUNK)
        try:
            kind = operator.infer(inputs, attributes, rng.choice(JUNK_KINDS))
        except ProgramError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert fits and all(type(size) is int and size >= 0 for size in kind.shape), (inputs, attributes, kind)
