"""Registry of operators: what an operator is, and the one place that knows them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as quoted
from typing import ClassVar, TypeVar, cast

import torch

from roundlog.arithmetic import as_float32
from roundlog.definitions import DEFINITIONS, OperatorDefinition, OperatorKind, Signature
from roundlog.number_format import FLOAT32, Format
from roundlog.operators.bounds import Ambiguous, Bound, mark
from roundlog.program import Attribute, Program, ProgramError, TensorType

Attributes = Mapping[str, Attribute]
Tensors = Sequence[torch.Tensor]
Types = Sequence[TensorType]


class Operator(ABC):
    """One entry of the registry: how to compute what a definition says."""

    definition: OperatorDefinition
    name: str
    kind: OperatorKind

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        """The output's type from the inputs' types. Raises ProgramError if the operator does not apply.
        `declared` is what the program says; only sources, whose type is not computable, may return it."""
        signature = self.need_form(inputs, attributes)
        shape, each = self.shape(inputs, attributes), zip(inputs, signature.inputs, strict=False)
        return TensorType(shape, signature.output or next(kind.dtype for kind, dtype in each if dtype is None))

    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        """The output's shape, for inputs and attributes of the right form; that of the first input unless an operator
        says otherwise. Raises ProgramError if the operator does not apply."""
        return inputs[0].shape

    def need_form(self, inputs: Types, attributes: Attributes) -> Signature:
        """The signature of these inputs. Raises ProgramError unless their number and dtypes, and the attributes, are
        the definition's."""
        definition = self.definition
        need_attributes(attributes, definition)
        formats, arity = definition.formats, definition.arity
        if definition.joins:
            return formats[0]
        if len(inputs) != arity:
            raise ProgramError(f"takes {arity} inputs, has {len(inputs)}")
        found = definition.signature(inputs[0].dtype) if inputs else formats[0]
        if found is None and len(formats) > 1:
            raise ProgramError(f"does not apply to {inputs[0]}")
        signature, any_one = found or formats[0], None
        for position, (kind, dtype) in enumerate(zip(inputs, signature.inputs, strict=True)):
            if dtype is None:
                dtype = any_one = any_one or kind.dtype
            if kind.dtype != dtype:
                raise ProgramError(f"input {position} is {kind}, expected {dtype}")
        return signature


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInputs:
    """Inputs of one step, from which its sources get their values: everything else is computed."""

    states: Tensors
    data: Tensors
    schedule: torch.Tensor
    """f32[columns]: this step's row of the schedule table."""
    seed: int
    step: int
    device: torch.device


class Source(Operator):
    """A value from outside the arithmetic."""

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        return TensorType(declared.shape, self.need_form(inputs, attributes).output or declared.dtype)

    @abstractmethod
    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        """The value, as a tensor of the declared type."""


class Direct(Operator):
    """Movement and exact operators: the kernel's output is the answer, to the bit."""

    reads_short: ClassVar[bool] = False
    """Whether an exact operator's `compute` reads numbers of 16 bits as they are, and rounds to its output's format."""

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        """Bytes that the operator needs beside inputs and output."""
        return short_bytes(inputs, output) if self.kind == OperatorKind.EXACT else 0

    @abstractmethod
    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        """The value. May be a view of an input: values are never written to."""


MARKED_BYTES = 64
"""An index, a value and its bound, twice while they are collected, and a decision: what deciding them needs beside that
is bounded, because it is done some at a time."""


ROUNDING_BYTES = 16 * 8
"""Bytes an element that rounding to another format than FP32 needs: up to sixteen FP64 tensors of an output's size."""


def short_bytes(inputs: Types, output: TensorType) -> int:
    """Bytes that an operator needs because of its formats of 16 bits: inputs as FP32 and FP64, and rounding."""
    copies = 12 * sum(kind.numel for kind in inputs if kind.dtype.is_short)
    return copies + (ROUNDING_BYTES * output.numel if output.dtype.is_short else 0)


class Inexact(Operator):
    """An operator whose FP64 kernel comes within a known distance of the mathematical value."""

    kind = OperatorKind.INEXACT

    reads_bf16: ClassVar[bool] = False
    """Whether its kernels read tensors of BF16 as they are, if all inputs are such."""

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        """Bytes that the operator needs beside inputs and output: FP64 copies of them, what they are rounded to, and
        what is known of ambiguous elements, if all of them are."""
        wide = 8 * (sum(kind.numel for kind in inputs) + 2 * output.numel)
        return wide + MARKED_BYTES * output.numel + short_bytes(inputs, output)

    @abstractmethod
    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        """FP64, contiguous, by the vendor's kernel, within `bound` of the mathematical value elementwise."""

    @abstractmethod
    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        """|y - exact| <= bound for every kernel that computes this in FP64, in any order of summation, with or
        without FMA."""

    def evaluate(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Bound]:
        """(approximation, bound); operators that can compute the two in one read do."""
        y = self.approximate(inputs, attributes)
        return y, self.bound(inputs, attributes, y)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        """(every element rounded to FP32, those marked whose interval [y - scale d, y + scale d] holds a rounding
        boundary or is not finite): all others are correctly rounded. Operators override this where they can round
        what they compute while it is in the cache."""
        return mark(*self.evaluate(inputs, attributes), scale)

    def certify_short(
        self, inputs: Tensors, attributes: Attributes, scale: float, format: Format
    ) -> tuple[torch.Tensor, Ambiguous] | None:
        """`certify` to another format than FP32, as tensors of its dtype; None where there is no kernel for it."""
        return None

    @abstractmethod
    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        """elements: int64[n], flat output indices. The mathematical values there, rounded once to a format: f32[n].
        Both on the CPU, wherever the inputs are."""


def operands(operator: Inexact, inputs: Tensors) -> list[torch.Tensor]:
    """Inputs of an inexact operator as its kernels take them: numbers of every format as FP32, or all BF16."""
    if operator.reads_bf16 and all(x.dtype == torch.bfloat16 for x in inputs):
        return list(inputs)
    return [as_float32(x) for x in inputs]


REGISTRY: dict[str, Operator] = {}


_Registered = TypeVar("_Registered", bound=Operator)


def register(name: str) -> Callable[[type[_Registered]], type[_Registered]]:
    """Class decorator: put one instance into the registry, under the definition with this name."""

    def add(cls: type[_Registered]) -> type[_Registered]:
        cls.__doc__ = DEFINITIONS[name].meaning
        enter(cls(), DEFINITIONS[name])
        return cls

    return add


def enter(operator: Operator, definition: OperatorDefinition) -> None:
    """Put an operator into the registry."""
    if definition.name in REGISTRY:
        raise ValueError(f"operator {definition.name} is registered twice")
    operator.definition, operator.name, operator.kind = definition, definition.name, definition.kind
    REGISTRY[definition.name] = operator


def operator(name: str) -> Operator:
    """Look an operator up. Raises ProgramError for a name that the registry does not know."""
    found = REGISTRY.get(name)
    if found is None:
        raise ProgramError(f"{name} is not an operator of this registry")
    return found


def check(program: Program) -> None:
    """Hold every node against the registry: known, applicable, of the declared type. Raises ProgramError naming the
    node and its source line."""
    for index, node in enumerate(program.nodes):
        try:
            inputs = [program.nodes[value].type for value in node.inputs]
            inferred = operator(node.op).infer(inputs, node.attributes, node.type)
        except ProgramError as error:
            # A stranger's shapes and lists can be as long as a novel.
            text = str(error) if len(str(error)) <= 500 else f"{str(error)[:500]} ..."
            raise ProgramError(f"{program.describe(index)}: {text}") from None
        if inferred != node.type:
            raise ProgramError(f"{program.describe(index)}: declared as {node.type}, but computes {inferred}")


def workspace(program: Program, index: int) -> int:
    """Bytes that one operator of a program needs while it runs, beside its inputs and output."""
    node = program.nodes[index]
    op = operator(node.op)
    inputs = [program.nodes[value].type for value in node.inputs]
    return op.workspace(inputs, node.attributes, node.type) if isinstance(op, Direct | Inexact) else 0


def need_attributes(attributes: Attributes, definition: OperatorDefinition) -> None:
    """Raise ProgramError unless exactly the definition's attributes are there, of its types (tuple: of integers)."""
    given = {name: kind for name, kind in definition.optional.items() if name in attributes}
    kinds = {**definition.attributes, **given}
    if set(attributes) != set(kinds):
        raise ProgramError(f"has the attributes {sorted(attributes)}, expected {sorted(kinds)}")
    for name, kind in kinds.items():
        value = attributes[name]
        if type(value) is not kind or (isinstance(value, tuple) and any(type(item) is not int for item in value)):
            expected = "a list of integers" if kind is tuple else kind.__name__
            raise ProgramError(f"attribute {name} is {quoted(value)}, expected {expected}")


def ints(attributes: Attributes, name: str) -> tuple[int, ...]:
    """A checked attribute as a tuple of integers."""
    return cast(tuple[int, ...], attributes[name])


def integer(attributes: Attributes, name: str) -> int:
    """A checked attribute as an integer."""
    return cast(int, attributes[name])


def axis(attributes: Attributes, rank: int) -> int:
    """The attribute `dim`, checked to lie in [0, rank)."""
    dim = integer(attributes, "dim")
    if not 0 <= dim < rank:
        raise ProgramError(f"dim is {dim}, but the input has {rank} axes")
    return dim


def axes(attributes: Attributes, rank: int) -> tuple[int, ...]:
    """The attribute `dims`, checked to be ascending, without repetition and in [0, rank)."""
    dims = ints(attributes, "dims")
    if list(dims) != sorted(set(dims)) or any(not 0 <= dim < rank for dim in dims):
        raise ProgramError(f"dims is {list(dims)}, expected ascending axes of a tensor of {rank} axes")
    return dims


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape under NumPy's broadcasting rule. Raises ProgramError if there is none."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise ProgramError(f"shapes {[list(shape) for shape in shapes]} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)
