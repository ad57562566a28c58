"""Writes tests/vectors/descriptors.json and access.json, read by the Python and the Solidity tests.

    python scripts/make_descriptor_vectors.py          writes the files
    python scripts/make_descriptor_vectors.py --check  exits with 1 if a file on disk is not what would be written

descriptors.json: a program in which every operator of the registry occurs, the encoded descriptor of each operator,
its fields, its leaf hash, and the program root. access.json: for inputs of those descriptors, which flat element is
read for an output element and a term (-1: the read is not valid), worked out by `roundlog.adjudication.adjudicate`,
which the tests hold against the kernels.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

from generated import write_or_check
from roundlog.adjudication.adjudicate import index_of, read
from roundlog.capture.builder import Builder, Value
from roundlog.commitments import leaf_hash
from roundlog.descriptors import Descriptor, Family, describe, encode_descriptor, program_root
from roundlog.descriptors.descriptor import DTYPE_CODES, flat_rows
from roundlog.operators import check
from roundlog.program import DType, Program, TensorType, to_json

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
READS = 12
"""Reads of an input in access.json."""

F32, I64 = DType.F32, DType.I64


def every_operator() -> Program:
    """A program without any purpose but to hold every operator, in shapes that leave something to do."""
    b = Builder()
    state = b.source_op("state", TensorType((2, 6, 7, 5), F32), slot=0)
    images = b.source_op("data", TensorType((3, 4, 9, 8), F32), slot=0)
    tokens = b.source_op("data", TensorType((3, 5), I64), slot=1)
    rate = b.source_op("schedule", TensorType((), F32), slot=1)
    b.source_op("constant", TensorType((300,), I64), bits=tuple(range(-100, 200)))
    b.source_op("constant", TensorType((2, 2), F32), bits=(0x80000000, 0x7F800000, 1, 0x3F800000))
    count = b.source_op("iota", TensorType((11,), I64), start=-(2**40), step=7)
    noise = b.source_op("uniform", TensorType((3, 4), F32), stream=9)
    mask = b.op("lt", noise, b.constant(0.5, F32))
    _movement(b, state, tokens, mask)
    _elementwise(b, noise, rate, count, mask)
    _reductions(b, state, images, tokens, count, mask)
    _contractions(b, images, noise)
    for kind, other in (("bf16", "f16"), ("f16", "bf16")):
        _short(b, kind, other, state, tokens, count, mask)
    # Every node counts here, so nothing is dropped as `finish` would.
    b.op("loss", rate)
    b._add("store", (state,), {"slot": 0}, b.type(state))
    program = Program(
        nodes=tuple(b.nodes),
        state_names=("state",),
        data_names=("images", "tokens"),
        schedule_names=("a", "rate", "b"),
        batch_size=3,
    )
    check(program)
    return program


def _movement(b: Builder, x: Value, tokens: Value, mask: Value) -> None:
    b.op("reshape", x, shape=(7, 60))
    b.op("permute", x, dims=(2, 0, 3, 1))
    b.op("permute", x, dims=(0, 2, 3, 1))
    b.op("expand", b.op("slice", x, dim=2, start=3, stop=4, step=1), shape=(2, 6, 4, 5))
    b.op("slice", x, dim=1, start=1, stop=6, step=2)
    b.op("flip", x, dim=3)
    b.op("cat", x, b.op("flip", x, dim=2), b.op("slice", x, dim=1, start=0, stop=2, step=1), dim=1)
    b.op("cat", tokens, tokens, dim=0)
    b.op("pad", x, b.constant(float("-inf"), F32), low=(0, 0, 1, 2), high=(0, 0, 0, 3))
    b.op("where", mask, b.constant(1, I64), b.constant(-1, I64, (4,)))
    b.op("take", b.op("reshape", x, shape=(42, 10)), tokens)
    index = b.op("take", b.op("reshape", tokens, shape=(15,)), b.constant(1, I64, (2, 6, 3, 5)))
    b.op("gather", x, index, dim=2)


def _elementwise(b: Builder, x: Value, rate: Value, count: Value, mask: Value) -> None:
    for name in ("add", "sub", "mul", "maximum", "minimum", "eq", "lt", "le"):
        b.op(name, x, rate)
        b.op(name, count, b.op("neg", count))
    b.op("div", b.op("slice", x, dim=1, start=2, stop=3, step=1), x)
    for name in ("neg", "abs"):
        b.op(name, x)
        b.op(name, count)
    for name in ("sqrt", "floor", "exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"):
        b.op(name, x)
    for name in ("eq", "logical_and", "logical_or"):
        b.op(name, mask, b.op("flip", mask, dim=0))
    for name in ("logical_not", "to_f32", "to_i64"):
        b.op(name, mask)
    b.op("to_f32", count)


def _reductions(b: Builder, x: Value, images: Value, tokens: Value, count: Value, mask: Value) -> None:
    for dims in ((), (0,), (1, 3), (0, 2, 3), (0, 1, 2, 3)):
        b.op("sum", x, dims=dims)
    b.op("amax", x, dims=(3,))
    b.op("amin", x, dims=(0, 2))
    b.op("argmax", x, dim=1)
    b.op("sum_i64", count, dims=(0,))
    b.op("any", mask, dims=(1,))
    windows = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0), "dilation": (1, 2)}
    place = b.op("max_pool_index", images, **windows)
    shape = b.shape(place)
    plane = b.op("reshape", images, shape=(3, 4, 72))
    flat = b.op("reshape", place, shape=(3, 4, shape[2] * shape[3]))
    pooled = b.op("gather", plane, flat, dim=2)
    b.op("scatter_add", pooled, flat, dim=2, size=72)
    rows = b.op("reshape", b.op("slice", x, dim=0, start=0, stop=1, step=1), shape=(15, 14))
    b.op("scatter_add", rows, b.op("reshape", tokens, shape=(15, 1)), dim=0, size=20)


def _contractions(b: Builder, images: Value, noise: Value) -> None:
    a = b.op("reshape", images, shape=(12, 9, 8))
    b.op("matmul", a, b.op("permute", a, dims=(0, 2, 1)))
    b.op("matmul", b.op("permute", noise, dims=(1, 0)), noise)
    # A long sum of which the right side strides over more than a chunk a term.
    long = b.constant(0.25, F32, (600, 300))
    b.op("matmul", b.constant(0.5, F32, (2, 600)), long)
    for arithmetic, to in (("hopper", "to_bf16"), ("ampere", "to_f16"), ("volta", "to_f16")):
        x = b.op(to, a)
        b.op("tensor_core_matmul", x, b.op("permute", x, dims=(0, 2, 1)), arithmetic=arithmetic)
    wide = b.op("to_bf16", b.constant(0.5, F32, (2, 600)))
    b.op("tensor_core_matmul", wide, b.op("to_bf16", long), arithmetic="hopper")
    for groups, weights in ((1, (2, 4, 3, 2)), (2, (6, 2, 2, 3))):
        w = b.constant(1.5, F32, weights)
        options = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": groups}
        y = b.op("conv2d", images, w, **options)
        b.op("conv2d_grad_input", y, w, **options, size=(9, 8))
        b.op("conv2d_grad_weight", y, images, **options, size=weights[2:])


def _short(b: Builder, kind: str, other: str, state: Value, tokens: Value, count: Value, mask: Value) -> None:
    """Operators on numbers of a format that is not FP32."""
    x = b.op(f"to_{kind}", state)
    for name in ("add", "mul", "div", "maximum", "le"):
        b.op(name, x, b.op("flip", x, dim=3))
    for name in ("neg", "sqrt", "floor", "exp", "tanh", "to_f32", f"to_{other}"):
        b.op(name, x)
    b.op("where", mask, b.op(f"to_{kind}", mask), b.op(f"to_{kind}", b.op("reshape", tokens, shape=(5, 3, 1))))
    b.op(f"to_{kind}", count)
    b.op("argmax", x, dim=1)
    b.op("take", b.op("reshape", x, shape=(42, 10)), tokens)


def fields(descriptor: Descriptor) -> dict[str, object]:
    """The struct's fields, named as in Solidity; numbers that may not fit a double are decimal strings."""
    return {
        "family": int(descriptor.family),
        "code": int(descriptor.code),
        "dtype": DTYPE_CODES[descriptor.dtype],
        "segment": descriptor.segment,
        "iteration": list(descriptor.iteration),
        "reduction": list(descriptor.reduction),
        "inputs": [
            {
                "value": item.value,
                "dtype": DTYPE_CODES[item.dtype],
                "shape": list(item.view),
                "affine": [str(number) for number in flat_rows(item.rows)],
            }
            for item in descriptor.inputs
        ],
        "parameters": [str(number) for number in descriptor.parameters],
        "root": "0x" + descriptor.root.hex(),
    }


def descriptor_vectors(program: Program) -> dict[str, object]:
    operators = []
    for index, node in enumerate(program.nodes):
        descriptor = describe(program, index)
        encoded = encode_descriptor(descriptor)
        operators.append(
            {
                "operator": node.op,
                "encoded": "0x" + encoded.hex(),
                "leaf": "0x" + leaf_hash(encoded).hex(),
                **fields(descriptor),
            }
        )
    return {
        "program": to_json(program).decode(),
        "operators": operators,
        "programRoot": "0x" + program_root(program).hex(),
    }


def access_vectors(program: Program) -> list[dict[str, object]]:
    rng = Random("tiebreak access")
    vectors = []
    for index, node in enumerate(program.nodes):
        descriptor = describe(program, index)
        for position, item in enumerate(descriptor.inputs):
            gathered = descriptor.family == Family.GATHER and position == 0
            columns: dict[str, list[int]] = {"element": [], "term": [], "index": [], "read": []}
            for number in range(READS):
                # The corners first: most mistakes sit there.
                element = (0, descriptor.elements - 1)[number] if number < 2 else rng.randrange(descriptor.elements)
                term = (0, descriptor.terms - 1)[number] if number < 2 else rng.randrange(descriptor.terms)
                value = rng.randrange(-1, item.view[descriptor.parameters[0]] + 1) if gathered else 0
                replaced = (descriptor.parameters[0], value) if gathered else None
                found = read(item, index_of(descriptor, element, term), replaced)
                for name, entry in zip(columns, (element, term, value, -1 if found is None else found), strict=True):
                    columns[name].append(entry)
            vectors.append({"operator": index, "name": node.op, "input": position, **columns})
    return vectors


def files() -> dict[Path, str]:
    """Every vector file and the text that it should have."""
    program = every_operator()
    return {
        VECTORS / "descriptors.json": json.dumps(descriptor_vectors(program), indent=1) + "\n",
        VECTORS / "access.json": json.dumps(access_vectors(program)) + "\n",
    }


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
