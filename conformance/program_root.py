"""Program root of a job, computed from docs/protocol.md with Python alone: does its spec bind this program?

    python conformance/program_root.py JOB      says right, or wrong (exit code 3) if spec.json names another root

The root is over one descriptor an operator. Nothing of ours is imported. From top to bottom: rows, the rule of every
operator, simplest forms, the size of a segment, the encoding, the root. The second verifier runs it, where it has it.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

DTYPES = {"f32": 0, "i64": 1, "bool": 2, "bf16": 3, "f16": 4}
ITEM = {"f32": 4, "i64": 8, "bool": 1, "bf16": 2, "f16": 2}
STORED = {"u8": 1, "i8": 2, "i16": 3, "u16": 4, "i32": 5}
STATE, DATA, SCHEDULE, CONSTANT, IOTA, UNIFORM, COPY, GATHER, MAP, FUNCTION, SUM, SELECTED_SUM, EXTREME, ARGMAX = range(
    14
)
INTEGER_SUM, ANY, CHAIN = 14, 15, 16
MAPS = {
    **{"add": (0, 13), "sub": (1, 14), "mul": (2, 15), "div": (3,), "sqrt": (4,), "neg": (5, 16), "abs": (6, 17)},
    **{"floor": (7,), "maximum": (8, 18), "minimum": (9, 19), "eq": (10, 20, 23), "lt": (11, 21), "le": (12, 22)},
    **{"logical_and": (0, 0, 24), "logical_or": (0, 0, 25), "logical_not": (0, 0, 26), "where": (27, 27, 27)},
    **dict.fromkeys(("to_f32", "to_bf16", "to_f16"), (31, 28, 29)),
    "to_i64": (0, 0, 30),
}
"""Codes of MAP by what the first input is: a number, an int64, a bool."""
FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")
ARITHMETICS = {"hopper": (0, 16), "ampere": (1, 8), "volta": (2, 4)}
"""Code, and products of a group of bf16 and f16."""


@dataclass(frozen=True)
class Row:
    """A view axis's coordinate: (offset + the sum of coefficients times indices) / divisor."""

    offset: int
    divisor: int
    coefficients: tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An operand as it is read: number of the operator that computes it, dtype, view, a row for each axis of it."""

    value: int
    dtype: str
    view: tuple[int, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Descriptor:
    """An operator as the contract reads it. Its label, of ARGMAX and SELECTED_SUM, is a row; else None."""

    family: int
    dtype: str
    code: int = 0
    segment: int = 0
    iteration: tuple[int, ...] = ()
    reduction: tuple[int, ...] = ()
    inputs: tuple[Input, ...] = ()
    parameters: tuple[int, ...] = ()
    root: bytes = bytes(32)
    label: Row | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """Index axes."""
        return self.iteration + self.reduction


class Node:
    """An operator of a program, and the types of its inputs."""

    def __init__(self, nodes: list[Any], number: int, program: dict[str, Any]) -> None:
        """nodes: those of the program; number: of this one."""
        self.name, self.inputs, self.parameters, self.dtype, shape = nodes[number]
        self.shape, self.program = tuple(shape), program
        self.dtypes = [nodes[i][3] for i in self.inputs]
        self.shapes = [tuple(nodes[i][4]) for i in self.inputs]
        first = nodes[self.inputs[0]] if self.inputs else None
        self.keeps = first is not None and first[0] == "state" and first[2].get("slot") == self.parameters.get("slot")

    def reads(self, position: int, rows: list[Row], view: tuple[int, ...] | None = None) -> Input:
        """An input by these rows; view: where it is not read by its shape."""
        shape = self.shapes[position] if view is None else view
        return Input(self.inputs[position], self.dtypes[position], shape, tuple(rows))


def row(axes: int, terms: dict[int, int] | None = None, offset: int = 0, divisor: int = 1) -> Row:
    """A row over so many index axes; terms: axis -> coefficient."""
    return Row(offset, divisor, tuple((terms or {}).get(axis, 0) for axis in range(axes)))


def places(shape: tuple[int, ...], axes: int, first: int) -> list[Row]:
    """Rows that read the axes of a shape at index axes from `first` on; an axis of size 1 at 0."""
    return [row(axes, {first + a: 1} if size != 1 else None) for a, size in enumerate(shape)]


def source(node: Node) -> Descriptor:
    """What comes from outside of the arithmetic."""
    p, count = node.parameters, math.prod(node.shape)
    flat, table = (
        (count,),
        {"iota": (IOTA, ("start", "step")), "uniform": (UNIFORM, ("stream",)), "state": (STATE, ("slot",))},
    )
    if node.name in table:
        family, names = table[node.name]
        return Descriptor(family, node.dtype, iteration=flat, parameters=tuple(p[name] for name in names))
    if node.name == "schedule":
        return Descriptor(SCHEDULE, node.dtype, parameters=(p["slot"], len(node.program["schedule"])))
    if node.name == "data":
        items = math.prod(node.shape[1:])
        numbers = (p["slot"], len(node.program["data"]), items, p.get("stride", items))
        return Descriptor(DATA, node.dtype, STORED.get(p.get("stored"), 0), iteration=flat, parameters=numbers)
    bits = p["bits"]
    if len(bits) <= 32:
        return Descriptor(CONSTANT, node.dtype, iteration=flat, parameters=tuple(bits))
    size = ITEM[node.dtype]
    data = b"".join((item % 256**size).to_bytes(size, "little") for item in bits)
    root = merkle_root([data[at : at + 1024] for at in range(0, len(data), 1024)])
    return Descriptor(CONSTANT, node.dtype, iteration=flat, root=root)


def copied(node: Node) -> Descriptor:
    """Movement: every element is one of an input."""
    n, p, name = len(node.shape), node.parameters, node.name
    if name in ("reshape", "loss", "store"):
        flat = (math.prod(node.shape),)
        finite = name == "loss" or (name == "store" and node.dtype in ("f32", "bf16", "f16") and not node.keeps)
        return Descriptor(COPY, node.dtype, int(finite), 0, flat, (), (node.reads(0, [row(1, {0: 1})], flat),))
    inputs = []
    if name == "permute":
        inputs = [node.reads(0, [row(n, {p["dims"].index(a): 1}) for a in range(n)])]
    elif name == "expand":
        inputs = [node.reads(0, places(node.shapes[0], n, n - len(node.shapes[0])))]
    elif name in ("slice", "flip"):
        rows = [row(n, {a: 1}) for a in range(n)]
        dim = p["dim"]
        rows[dim] = row(n, {dim: p["step"]}, p["start"]) if name == "slice" else row(n, {dim: -1}, node.shape[dim] - 1)
        inputs = [node.reads(0, rows)]
    elif name == "cat":
        offset = 0
        for position, shape in enumerate(node.shapes):
            rows = [row(n, {a: 1}, -offset if a == p["dim"] else 0) for a in range(n)]
            inputs.append(node.reads(position, rows))
            offset += shape[p["dim"]]
    else:  # pad
        inputs = [node.reads(0, [row(n, {a: 1}, -p["low"][a]) for a in range(n)]), node.reads(1, [])]
    return Descriptor(COPY, node.dtype, iteration=node.shape, inputs=tuple(inputs))


def gathered(node: Node) -> Descriptor:
    """gather and take: one coordinate of x, whose row is zero, is an index's value."""
    n, (x, index) = len(node.shape), node.shapes
    if node.name == "gather":
        marked = node.parameters["dim"]
        rows = [row(n, {a: 1} if a != marked else None) for a in range(n)]
        inputs = (node.reads(0, rows), node.reads(1, [row(n, {a: 1}) for a in range(n)]))
        return Descriptor(GATHER, node.dtype, iteration=node.shape, inputs=inputs, parameters=(marked,))
    rows = [row(n)] + [row(n, {len(index) + a: 1}) for a in range(len(x) - 1)]
    inputs = (node.reads(0, rows), node.reads(1, [row(n, {a: 1}) for a in range(len(index))]))
    return Descriptor(GATHER, node.dtype, iteration=node.shape, inputs=inputs, parameters=(0,))


def mapped(node: Node) -> Descriptor:
    """Operators that work element by element."""
    n = len(node.shape)
    inputs = tuple(node.reads(i, places(shape, n, n - len(shape))) for i, shape in enumerate(node.shapes))
    if node.name in FUNCTIONS:
        return Descriptor(FUNCTION, node.dtype, FUNCTIONS.index(node.name), iteration=node.shape, inputs=inputs)
    kind = {"i64": 1, "bool": 2}.get(node.dtypes[0], 0)
    return Descriptor(MAP, node.dtype, MAPS[node.name][kind], iteration=node.shape, inputs=inputs)


def reduced(node: Node) -> Descriptor:
    """Reductions along axes, which stay as axes of size 1."""
    p, (x, *_) = node.parameters, node.shapes
    n = len(x)
    if node.name == "scatter_add":
        dim, axes = p["dim"], n + 1
        rows = [row(axes, {n if a == dim else a: 1}) for a in range(n)]
        indices = [row(axes, {n if a == dim else a: 1} if node.shapes[1][a] != 1 else None) for a in range(n)]
        inputs = (node.reads(0, rows), node.reads(1, indices))
        label = row(axes, {dim: 1})
        return Descriptor(SELECTED_SUM, node.dtype, 0, 0, node.shape, (x[dim],), inputs, label=label)
    dims = [p["dim"]] if node.name == "argmax" else sorted(p["dims"])
    axes = n + len(dims)
    rows = [row(axes, {n + dims.index(a) if a in dims else a: 1}) for a in range(n)]
    family, code = {
        **{"sum": (SUM, 0), "amax": (EXTREME, 0), "amin": (EXTREME, 1), "argmax": (ARGMAX, 0)},
        **{"sum_i64": (INTEGER_SUM, 0), "any": (ANY, 0)},
    }[node.name]
    found = row(axes, {n: 1}) if family == ARGMAX else None
    reduction = tuple(x[a] for a in dims)
    return Descriptor(family, node.dtype, code, 0, node.shape, reduction, (node.reads(0, rows),), label=found)


def pooled(node: Node) -> Descriptor:
    """max_pool_index: the label is the place in the plane."""
    p, x = node.parameters, node.shapes[0]
    settings = zip(p["stride"], p["dilation"], p["padding"], strict=True)
    down, across = (row(6, {2 + a: s, 4 + a: d}, -q) for a, (s, d, q) in enumerate(settings))
    pairs = zip(down.coefficients, across.coefficients, strict=True)
    label = Row(down.offset * x[3] + across.offset, 1, tuple(a * x[3] + b for a, b in pairs))
    inputs = (node.reads(0, [row(6, {0: 1}), row(6, {1: 1}), down, across]),)
    return Descriptor(ARGMAX, node.dtype, 0, 0, node.shape, tuple(p["kernel"]), inputs, label=label)


def product(node: Node) -> Descriptor:
    """Products of matrices, exact or as tensor cores add them."""
    n = len(node.shape)
    batch = [row(n + 1, {a: 1}) for a in range(n - 2)]
    left = node.reads(0, [*batch, row(n + 1, {n - 2: 1}), row(n + 1, {n: 1})])
    right = node.reads(1, [*batch, row(n + 1, {n: 1}), row(n + 1, {n - 1: 1})])
    family, code = (SUM, 0) if node.name == "matmul" else (CHAIN, ARITHMETICS[node.parameters["arithmetic"]][0])
    return Descriptor(family, node.dtype, code, 0, node.shape, (node.shapes[0][-1],), (left, right))


def convolved(node: Node) -> Descriptor:
    """conv2d and its gradients, with an axis of their own for the groups."""
    p, g = node.parameters, node.parameters["groups"]
    s, d, q = p["stride"], p["dilation"], p["padding"]
    if node.name == "conv2d":  # index: n, group, o, p, q; c, i, j
        _, w = node.shapes
        iteration = (node.shape[0], g, node.shape[1] // g, *node.shape[2:])
        planes = [row(8, {3 + a: s[a], 6 + a: d[a]}, -q[a]) for a in (0, 1)]
        left = node.reads(0, [row(8, {0: 1}), row(8, {1: w[1], 5: 1}), *planes])
        right = node.reads(1, [row(8, {1: w[0] // g, 2: 1}), *(row(8, {5 + a: 1}) for a in range(3))])
        return Descriptor(SUM, node.dtype, 0, 0, iteration, w[1:], (left, right))
    if node.name == "conv2d_grad_input":  # index: n, group, c, h, v; o, i, j
        _, w = node.shapes
        iteration = (node.shape[0], g, node.shape[1] // g, *node.shape[2:])
        planes = [row(8, {3 + a: 1, 6 + a: -d[a]}, q[a], s[a]) for a in (0, 1)]
        left = node.reads(0, [row(8, {0: 1}), row(8, {1: w[0] // g, 5: 1}), *planes])
        kernel = [row(8, {2: 1}), row(8, {6: 1}), row(8, {7: 1})]
        right = node.reads(1, [row(8, {1: w[0] // g, 5: 1}), *kernel])
        return Descriptor(SUM, node.dtype, 0, 0, iteration, (w[0] // g, *w[2:]), (left, right))
    y, _ = node.shapes  # index: group, o, c, i, j; n, p, q
    iteration = (g, node.shape[0] // g, *node.shape[1:])
    planes = [row(8, {6 + a: s[a], 3 + a: d[a]}, -q[a]) for a in (0, 1)]
    left = node.reads(0, [row(8, {5: 1}), row(8, {0: y[1] // g, 1: 1}), row(8, {6: 1}), row(8, {7: 1})])
    right = node.reads(1, [row(8, {5: 1}), row(8, {0: node.shape[1], 2: 1}), *planes])
    return Descriptor(SUM, node.dtype, 0, 0, iteration, (y[0], *y[2:]), (left, right))


RULES = {
    **dict.fromkeys(("state", "data", "schedule", "constant", "iota", "uniform"), source),
    **dict.fromkeys(("reshape", "loss", "store", "permute", "expand", "slice", "flip", "cat", "pad"), copied),
    **dict.fromkeys(("gather", "take"), gathered),
    **dict.fromkeys((*MAPS, *FUNCTIONS), mapped),
    **dict.fromkeys(("sum", "amax", "amin", "argmax", "sum_i64", "any", "scatter_add"), reduced),
    **dict.fromkeys(("conv2d", "conv2d_grad_input", "conv2d_grad_weight"), convolved),
    **dict.fromkeys(("matmul", "tensor_core_matmul"), product),
    "max_pool_index": pooled,
}


# --- simplest form ---


def with_axes(d: Descriptor, iteration: tuple[int, ...], reduction: tuple[int, ...], keep: list[int]) -> Descriptor:
    """The descriptor over other index axes, whose coefficients are those of the axes `keep`."""

    def cut(one: Row) -> Row:
        return replace(one, coefficients=tuple(one.coefficients[axis] for axis in keep))

    inputs = tuple(replace(i, rows=tuple(map(cut, i.rows))) for i in d.inputs)
    return replace(d, iteration=iteration, reduction=reduction, inputs=inputs, label=d.label and cut(d.label))


def joined_view(item: Input, axes: tuple[int, ...], marked: int | None) -> tuple[Input, int | None]:
    """An input whose view axes are joined, from the last to the first, to the one inside if that is never left."""
    view: list[int] = []
    rows: list[Row] = []
    place, joinable = None, False
    for axis in reversed(range(len(item.view))):
        size, one = item.view[axis], item.rows[axis]
        ends = [c * (n - 1) for c, n in zip(one.coefficients, axes, strict=True)]
        low, high = one.offset + sum(min(e, 0) for e in ends), one.offset + sum(max(e, 0) for e in ends)
        inside = one.divisor == 1 and low >= 0 and high < size
        if axis == marked:
            place, joinable = len(view), False
        elif size == 1 and inside:
            continue
        elif joinable and one.divisor == 1:
            inner, width = rows[-1], view[-1]
            pairs = zip(one.coefficients, inner.coefficients, strict=True)
            rows[-1] = Row(one.offset * width + inner.offset, 1, tuple(a * width + b for a, b in pairs))
            view[-1], joinable = width * size, inside
            continue
        else:
            joinable = inside
        view.append(size)
        rows.append(one)
    item = replace(item, view=tuple(reversed(view)), rows=tuple(reversed(rows)))
    return item, None if place is None else len(view) - 1 - place


def simplest(d: Descriptor) -> Descriptor:
    """The one form of a descriptor: no index axis of size 1, and neighbours that every row treats as one are one."""
    if 0 in d.axes:
        iteration = (0,) if 0 in d.iteration else tuple(n for n in d.iteration if n != 1)
        reduction = (0,) if 0 not in d.iteration else ()
        zero = row(len(iteration) + len(reduction))
        inputs = tuple(replace(i, view=(math.prod(i.view),), rows=(zero,)) for i in d.inputs)
        parameters = (0,) if d.family == GATHER else d.parameters
        label = d.label and zero
        return replace(d, iteration=iteration, reduction=reduction, inputs=inputs, parameters=parameters, label=label)
    keep = [axis for axis, size in enumerate(d.axes) if size != 1]
    d = with_axes(d, tuple(n for n in d.iteration if n != 1), tuple(n for n in d.reduction if n != 1), keep)
    parameters, simple = d.parameters, []
    for position, item in enumerate(d.inputs):
        marked = d.parameters[0] if d.family == GATHER and position == 0 else None
        item, marked = joined_view(item, d.axes, marked)
        simple.append(item)
        parameters = parameters if marked is None else (marked,)
    d = replace(d, inputs=tuple(simple), parameters=parameters)
    for axis in reversed(range(len(d.axes) - 1)):
        split, size = len(d.iteration), d.axes[axis + 1]
        rows = [one for item in d.inputs for one in item.rows] + ([d.label] if d.label else [])
        if axis + 1 != split and all(r.coefficients[axis] == r.coefficients[axis + 1] * size for r in rows):
            sizes = (*d.axes[:axis], d.axes[axis] * size, *d.axes[axis + 2 :])
            keep = [other for other in range(len(d.axes)) if other != axis]
            split -= axis < split
            d = with_axes(d, sizes[:split], sizes[split:], keep)
    return d


# --- size of a segment ---


def run_chunks(sizes: tuple[int, ...], strides: list[int], terms: int) -> int:
    """Most chunks that so many consecutive indices of a box touch, by the bytes of a step along each axis."""
    if not sizes:
        return 1
    inner = math.prod(sizes[1:])
    if not inner:
        return 0
    steps = min(sizes[0], -(-(terms - 1) // inner) + 1)
    span = 0
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        most = -(-(terms - 1) // math.prod(sizes[axis + 1 :]))
        span += (size - 1 if terms > 1 and math.prod(sizes[:axis]) > 1 else min(size - 1, most)) * stride
    return min(terms, steps * run_chunks(sizes[1:], strides[1:], min(terms, inner)), span // 1024 + 2)


def gas(d: Descriptor, terms: int) -> int:
    """Estimated gas of a segment of so many terms."""
    sent = hashed = 0
    for item in d.inputs:
        strides, weight = [0] * len(d.reduction), ITEM[item.dtype]
        for size, one in zip(reversed(item.view), reversed(item.rows), strict=True):
            for axis in range(len(strides)):
                strides[axis] += -(-abs(one.coefficients[len(d.iteration) + axis]) // one.divisor) * weight
            weight *= size
        leaves = max(1, -(-math.prod(item.view) * ITEM[item.dtype] // 1024))
        depth, chunks = (leaves - 1).bit_length(), min(run_chunks(d.reduction, strides, terms), leaves)
        sent += chunks * (1024 + 32 * depth)
        hashed += chunks * (depth + 4)
    term = 1000 + sum(1000 + 250 * len(item.view) + 350 * (item.dtype == "f16") for item in d.inputs)
    term += 1100 * (d.family in (EXTREME, ARGMAX)) + 3000 * (d.family == CHAIN)
    return max(40 * sent, 16 * sent + 1000 * hashed + terms * term)


def segment(d: Descriptor) -> int:
    """Terms that one opening covers."""
    terms, most = math.prod(d.reduction), 2048 if d.family == CHAIN else 4096
    size = next(group for code, group in ARITHMETICS.values() if code == d.code) if d.family == CHAIN else 1
    while size < min(terms, most) and gas(d, 2 * size) <= 650_000:
        size *= 2
    return size


# --- encoding and root ---


def words(*numbers: int) -> bytes:
    """Words of 256 bits, in two's complement."""
    return b"".join((number % 2**256).to_bytes(32, "big") for number in numbers)


def array(numbers: tuple[int, ...]) -> bytes:
    """An array of numbers of Solidity's."""
    return words(len(numbers), *numbers)


def together(head: list[int | bytes]) -> bytes:
    """A tuple of Solidity's: numbers are static, bytes are dynamic."""
    body, tail = b"", b""
    for one in head:
        body += words(one) if isinstance(one, int) else words(32 * len(head) + len(tail))
        tail += b"" if isinstance(one, int) else one
    return body + tail


def encode(d: Descriptor) -> bytes:
    """abi.encode of a descriptor."""
    inputs: list[int | bytes] = []
    for item in d.inputs:
        affine = tuple(n for one in item.rows for n in (one.offset, one.divisor, *one.coefficients))
        inputs.append(together([item.value, DTYPES[item.dtype], array(item.view), array(affine)]))
    parameters = d.parameters if d.label is None else (d.label.offset, d.label.divisor, *d.label.coefficients)
    listed = words(len(inputs)) + together(inputs)
    head: list[int | bytes] = [
        d.family,
        d.code,
        DTYPES[d.dtype],
        d.segment,
        array(d.iteration),
        array(d.reduction),
        listed,
    ]
    return words(32) + together([*head, array(parameters), int.from_bytes(d.root, "big")])


def describe(program: dict[str, Any], number: int) -> bytes:
    """The encoded descriptor of an operator."""
    node = Node(program["nodes"], number, program)
    d = simplest(RULES[node.name](node))
    return encode(replace(d, segment=segment(d)) if d.family >= SUM else d)


def merkle_root(payloads: list[bytes]) -> bytes:
    """The root over payloads, padded on the right to a power of two."""
    nodes = [hashlib.sha256(b"\0" + payload).digest() for payload in payloads]
    while len(nodes) & (len(nodes) - 1):
        nodes.append(hashlib.sha256(b"\2").digest())
    while len(nodes) > 1:
        nodes = [hashlib.sha256(b"\1" + a + b).digest() for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def root_of(program: dict[str, Any]) -> bytes:
    """The root of a program, as program.json has it."""
    return merkle_root([describe(program, number) for number in range(len(program["nodes"]))])


def main(directory: Path) -> int:
    """Compare the root of a job's program with the one in its spec, and return the exit code."""
    try:
        program = json.loads((directory / "program.json").read_bytes())
        wanted = json.loads((directory / "spec.json").read_bytes())["program_root"]
        root = "0x" + root_of(program).hex()
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        print(f"The program root of {directory} cannot be told: {error!r}.", file=sys.stderr)
        return 1
    print(
        f"right: {root}" if root == wanted else f"wrong: the program has the root {root}, and its spec names {wanted}"
    )
    return 0 if root == wanted else 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) if len(sys.argv) == 2 else print(__doc__, file=sys.stderr) or 1)
