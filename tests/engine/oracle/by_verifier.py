"""What operators come to by conformance/second_verifier.py, which knows nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import second_verifier as verifier
from roundlog.operators import REGISTRY, StepInputs
from roundlog.program import DType, Program, TensorType

from tests.engine.oracle.array import Array, from_torch


def held(x: Array) -> Any:
    """An array as the verifier holds it."""
    return verifier.from_words(np.array(x.items, verifier.WORDS[x.dtype]), x.dtype).reshape(x.shape)


def computed(name: str, inputs: list[Any], attributes: Mapping[str, Any], kind: TensorType, step: verifier.Step) -> Any:
    """An operator's output, as the verifier holds it. Raises if it is of another shape than `kind`."""
    return verifier.compute(verifier.Operator(name, (), dict(attributes), str(kind.dtype), kind.shape), inputs, step)


def as_array(values: Any, dtype: str) -> Array:
    """Values that the verifier holds; each NaN is the one of its format."""
    return Array(values.shape, dtype, tuple(verifier.to_words(values, dtype).ravel().tolist()))


def right(name: str, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    """An operator's output for FP32 numbers (of tensor cores: for those of its formats), integers and truth values."""
    kinds = [TensorType(x.shape, DType(x.dtype)) for x in inputs]
    kind = REGISTRY[name].infer(kinds, attributes, TensorType((), DType.F32))
    return as_array(computed(name, list(map(held, inputs)), attributes, kind, verifier.Step()), str(kind.dtype))


def values_of(program: Program, inputs: StepInputs) -> list[Array]:
    """The output of every operator of a program; each NaN is the one of its format. No index may be out of range."""
    states, data = ([held(from_torch(x)) for x in some] for some in (inputs.states, inputs.data))
    step = verifier.Step(inputs.step, inputs.seed, states, data, inputs.schedule.numpy())
    found: list[Any] = []
    for node in program.nodes:
        found.append(computed(node.op, [found[value] for value in node.inputs], node.attributes, node.type, step))
    return [as_array(value, str(node.type.dtype)) for value, node in zip(found, program.nodes, strict=True)]
