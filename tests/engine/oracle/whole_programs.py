"""The values of a whole program, operator by operator, from the meanings of its operators."""

from __future__ import annotations

from roundlog.operators import StepInputs
from roundlog.program import DType, Node, Program

from tests.engine.oracle.array import FORMATS, Array, from_torch
from tests.engine.oracle.direct import DIRECT
from tests.engine.oracle.inexact import INEXACT
from tests.engine.oracle.sources import constant, iota, uniform


def values_of(program: Program, inputs: StepInputs) -> list[Array]:
    """The output of every operator; each NaN is the one of its format. No index may be out of range."""
    found: list[Array] = []
    for node in program.nodes:
        value = _value(node, [found[value] for value in node.inputs], inputs)
        assert (value.shape, value.dtype) == (node.type.shape, str(node.type.dtype))
        found.append(with_one_nan(value))
    return found


def _value(node: Node, given: list[Array], inputs: StepInputs) -> Array:
    attributes, kind = node.attributes, node.type
    match node.op:
        case "state":
            return from_torch(inputs.states[attributes["slot"]])  # type: ignore[index]
        case "data":
            return from_torch(inputs.data[attributes["slot"]])  # type: ignore[index]
        case "schedule":
            return from_torch(inputs.schedule[attributes["slot"]])  # type: ignore[index]
        case "constant":
            return constant(attributes, kind.shape, str(kind.dtype))
        case "iota":
            return iota(attributes, kind.shape)
        case "uniform":
            return uniform(attributes, kind.shape, inputs.seed, inputs.step)
    if node.op in DIRECT:
        return DIRECT[node.op](given, attributes)
    shape, reals = INEXACT[node.op](given, attributes)
    # All inputs of an operator have one format, and its output has that, too.
    dtype = given[0].dtype
    assert DType(dtype) is kind.dtype
    return Array(shape, dtype, tuple(real.rounded_to(FORMATS[dtype]) for real in reals))


def with_one_nan(x: Array) -> Array:
    """The same numbers, with one pattern for all NaN of a format."""
    form = FORMATS.get(x.dtype)
    if form is None:
        return x
    return Array(x.shape, x.dtype, tuple(form.nan if (w & form.sign - 1) > form.infinity else w for w in x.items))
