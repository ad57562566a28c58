"""Arithmetics of jobs: a program whose products, of matrices and of windows, are those of tensor cores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod

from roundlog.definitions.tensor_core import ARITHMETICS, TensorCoreArithmetic
from roundlog.operators.convolution_products import CONVOLUTIONS, NodeList, forward
from roundlog.operators.registry import ints
from roundlog.program import DType, Node, Program, ProgramError, TensorType

EXACT = "exact"
"""Arithmetic whose products are the mathematical ones, rounded once: no operator of this room."""


def check_arithmetic(name: str) -> None:
    """Raises ProgramError for an arithmetic of a job that there is not."""
    if name != EXACT and name not in ARITHMETICS:
        raise ProgramError(f"there is no arithmetic {name[:40]!r}: choose {EXACT}, {', '.join(ARITHMETICS)}")


def with_arithmetic(program: Program, name: str) -> Program:
    """The program with its products of matrices and its convolutions of BF16 or FP16 numbers by another arithmetic than
    EXACT, where that is defined for them. Convolutions become products (`convolution_products`), those with a bias
    that is added before they are rounded among them; all else stays.

    Raises ProgramError for an arithmetic that there is not, or one that changes nothing."""
    check_arithmetic(name)
    if name == EXACT:
        return program
    nodes = _Rewriting(program, ARITHMETICS[name]).run()
    if nodes == program.nodes:
        dtypes = " or ".join(dtype for dtype in ARITHMETICS[name].terms if dtype in tuple(DType))
        raise ProgramError(f"the program multiplies no matrices of {dtypes}: leave the arithmetic {name} away")
    return replace(program, nodes=nodes)


def arithmetic_of(program: Program) -> str:
    """Names of the arithmetics of a program's products of BF16 and FP16 matrices, usually one."""
    names = {str(node.attributes["arithmetic"]) for node in program.nodes if node.op == "tensor_core_matmul"}
    return ", ".join(sorted(names)) or EXACT


def tensor_core_products(program: Program) -> frozenset[tuple[str, str]]:
    """Arithmetics of a program's products as tensor cores add them, each with the dtype of its operands."""
    nodes = (node for node in program.nodes if node.op == "tensor_core_matmul")
    return frozenset((str(node.attributes["arithmetic"]), str(node.type.dtype)) for node in nodes)


_MOVING = ("reshape", "permute", "slice", "cat", "pad")
"""Operators between a convolution and what is widened for it, or rounded after it."""


@dataclass(frozen=True, slots=True)
class _Biased:
    """A convolution of widened numbers with a bias, which are rounded back after the bias is added: capture writes it
    so, since PyTorch does not round in between. Indices of operators."""

    convolution: int
    before: tuple[int, ...]
    """Movement of the sums, before the bias is added."""
    bias: int
    after: tuple[int, ...]


class _Rewriting:
    """A program that is written again, node by node."""

    def __init__(self, program: Program, arithmetic: TensorCoreArithmetic) -> None:
        self._nodes, self._arithmetic = program.nodes, arithmetic
        self._new = NodeList()
        self._places: list[int] = []
        """Places of values of the program among the new nodes."""
        self._narrowed: dict[int, int] = {}
        """By a value that has only been widened and moved: the place of the same one that has not been widened."""
        self._dtypes: dict[int, DType | None] = {}
        """Answers of `_narrow_dtype`, which joins of joins would ask again and again."""
        uses = Counter(value for node in self._nodes for value in node.inputs)
        self._user = {
            value: index for index, node in enumerate(self._nodes) for value in node.inputs if uses[value] == 1
        }
        """The one operator that reads a value, where there is only one."""

    def run(self) -> tuple[Node, ...]:
        found = (self._biased(index) for index in range(len(self._nodes)))
        biased = dict(one for one in found if one is not None)
        for index, node in enumerate(self._nodes):
            self._new.source = node.source
            inputs = [self._places[value] for value in node.inputs]
            if index in biased:
                place = self._with_bias(biased[index])
            elif self._has(node.type.dtype) and node.op == "matmul":
                place = self._multiply(*inputs)
            elif self._has(node.type.dtype) and node.op in CONVOLUTIONS:
                place = CONVOLUTIONS[node.op](self._new, node, inputs[0], inputs[1], self._multiply)
            else:
                place = self._new.append(replace(node, inputs=tuple(inputs)))
            self._places.append(place)
        return _without_dead(self._new.nodes) if biased else tuple(self._new.nodes)

    def _has(self, dtype: DType) -> bool:
        return dtype in self._arithmetic.terms

    def _multiply(self, a: int, b: int) -> int:
        return self._new.add("tensor_core_matmul", a, b, arithmetic=self._arithmetic.name)

    def _biased(self, index: int) -> tuple[int, _Biased] | None:
        """The operator that rounds what a convolution and its bias come to, and both; None if it is another one."""
        node = self._nodes[index]
        if node.op != "conv2d" or node.type.dtype != DType.F32:
            return None
        before, added = self._moved_from(index)
        if added is None or self._nodes[added].op != "add":
            return None
        first, bias = self._nodes[added].inputs
        channel, rank = _channel_axis(node, [self._nodes[one] for one in before]), len(self._nodes[first].type.shape)
        of_channels = tuple(node.type.shape[1] if axis == channel else 1 for axis in range(rank))
        after, last = self._moved_from(added)
        if first != (before[-1] if before else index) or self._nodes[bias].type.shape != of_channels or last is None:
            return None
        dtypes = {self._narrow_dtype(value) for value in (*node.inputs, bias)}
        dtype = self._nodes[last].type.dtype
        if dtypes != {dtype} or self._nodes[last].op != f"to_{dtype}":
            return None
        return last, _Biased(index, before, bias, after)

    def _moved_from(self, value: int) -> tuple[tuple[int, ...], int | None]:
        """The movement that follows a value, and the operator that it comes to; None if several read it."""
        moving: list[int] = []
        user = self._user.get(value)
        while user is not None and self._nodes[user].op in ("reshape", "permute"):
            moving.append(user)
            user = self._user.get(user)
        return tuple(moving), user

    def _narrow_dtype(self, value: int) -> DType | None:
        """The dtype from which a value has been widened, before it was moved, if the arithmetic is defined for it."""
        if value not in self._dtypes:
            self._dtypes[value] = self._found_dtype(value)
        return self._dtypes[value]

    def _found_dtype(self, value: int) -> DType | None:
        node = self._nodes[value]
        while node.op in _MOVING:
            if node.op == "pad" and not _zero(self._nodes[node.inputs[1]]):
                return None
            if node.op == "cat":
                dtypes = {self._narrow_dtype(one) for one in node.inputs}
                return dtypes.pop() if len(dtypes) == 1 else None
            node = self._nodes[node.inputs[0]]
        dtype = self._nodes[node.inputs[0]].type.dtype if node.op == "to_f32" else None
        return dtype if dtype is not None and self._has(dtype) else None

    def _narrow(self, value: int) -> int:
        """The place of a value in the dtype that `_narrow_dtype` has found for it."""
        node, new = self._nodes[value], self._new
        if node.op == "to_f32":
            return self._places[node.inputs[0]]
        if value not in self._narrowed:
            moved = [self._narrow(one) for one in (node.inputs[:1] if node.op == "pad" else node.inputs)]
            if node.op == "pad":
                moved.append(new.constant(0, TensorType((), new.type(moved[0]).dtype)))
            self._narrowed[value] = new.add(node.op, *moved, **node.attributes)
        return self._narrowed[value]

    def _with_bias(self, found: _Biased) -> int:
        node, new = self._nodes[found.convolution], self._new
        x, w, bias = map(self._narrow, (*node.inputs, found.bias))
        place = forward(new, node, x, w, self._multiply, bias)
        for index in (*found.before, *found.after):
            place = new.add(self._nodes[index].op, place, **self._nodes[index].attributes)
        return place


def _zero(node: Node) -> bool:
    """Whether a value is the number +0."""
    return node.op == "constant" and node.attributes["bits"] == (0,)


def _channel_axis(node: Node, moving: list[Node]) -> int | None:
    """The axis that the channels of a convolution's output come to; None if they are no axis any more."""
    axis, shape = 1, node.type.shape
    for one in moving:
        after = one.type.shape
        if one.op == "permute":
            axis = ints(one.attributes, "dims").index(axis)
        else:
            outer, size = prod(shape[:axis]), shape[axis]
            found = [a for a, n in enumerate(after) if n == size and prod(after[:a]) == outer]
            if not found:
                return None
            axis = found[0]
        shape = after
    return axis


def _without_dead(nodes: list[Node]) -> tuple[Node, ...]:
    """Without operators whose values nobody reads; states and fields of data stay."""
    alive: set[int] = set()
    for index in reversed(range(len(nodes))):
        if index in alive or nodes[index].op in ("state", "data", "loss", "store"):
            alive |= {index, *nodes[index].inputs}
    places = {old: new for new, old in enumerate(sorted(alive))}
    return tuple(
        replace(nodes[old], inputs=tuple(places[value] for value in nodes[old].inputs)) for old in sorted(alive)
    )
