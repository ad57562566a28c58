"""The table of rules and what a rule works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import fx

from roundlog.capture.builder import Builder, ProgramStates, Value
from roundlog.capture.errors import CaptureError
from roundlog.program import Attribute, DType, TensorType

Scalar = float | int | bool
Rule = Callable[..., Any]
_R = TypeVar("_R", bound=Rule)

RULES: dict[str, Rule] = {}
"""ATen name, with or without overload -> rule(context, *args, **kwargs) -> value, or a tuple of values."""

VIEWS: set[str] = set()
"""ATen names whose result shares storage with its first argument."""

AT_CAPTURE: set[str] = set()
"""ATen names whose rules take many operators: of constants, PyTorch computes them at capture."""


def rule(
    *names: str, view: bool = False, at_capture: bool = False, complex_numbers: bool = False
) -> Callable[[_R], _R]:
    """Register a rule under ATen names ("add", or "add.Tensor" for one overload). complex_numbers: whether it knows
    what to do with them; other rules refuse them."""

    def add(function: _R) -> _R:
        kept = function if complex_numbers else _of_real_numbers(function)
        for name in names:
            if name in RULES:
                raise ValueError(f"two rules for aten.{name}")
            RULES[name] = kept
            if view:
                VIEWS.add(name)
            if at_capture:
                AT_CAPTURE.add(name)
        return function

    return add


def base_name(target: object) -> str:
    """Name of an ATen operator without its overload, and without the underscore of one that writes in place."""
    base = str(target).removeprefix("aten.").partition(".")[0]
    return base if base.startswith("_") else base.removesuffix("_")


def is_among(names: Collection[str], target: object) -> bool:
    """Whether an ATen operator is named in a table, with its overload or without."""
    name = str(target).removeprefix("aten.")
    return name in names or name.partition(".")[0] in names


def _of_real_numbers(function: Rule) -> Rule:
    @wraps(function)
    def apply(c: Context, *args: Any, **kwargs: Any) -> Any:
        if any(is_complex(node) for node in (c.node, *c.node.all_input_nodes)):
            raise CaptureError(
                "computes with complex numbers in a way that has no counterpart: write it with their real and "
                "imaginary parts (torch.view_as_real)"
            )
        return function(c, *args, **kwargs)

    return apply


def is_complex(node: fx.Node) -> bool:
    """Whether a graph node stands for complex numbers, which are held as pairs of real ones."""
    traced = node.meta.get("val")
    return "pairs" in node.meta or (isinstance(traced, torch.Tensor) and traced.is_complex())


class NodeValues(dict[fx.Node, Any]):
    """Meaning of each graph node: a value, a tuple of them, or, where it was computed at capture, the tensor itself,
    until an operator of the program needs it."""

    def __init__(self, states: ProgramStates) -> None:
        super().__init__()
        self._states = states

    def value(self, node: fx.Node) -> Any:
        """Values of the program that a graph node stands for."""
        value = self[node]
        if isinstance(value, torch.Tensor):
            value = self[node] = self._states.literal(value)
        return value


class Context(ABC):
    """Context of a rule: the builder under short names, and tensors and scalars brought together."""

    node: fx.Node
    """The graph node being lowered."""

    def __init__(self, builder: Builder, states: ProgramStates) -> None:
        self.builder = builder
        self._states = states

    @abstractmethod
    def rebind(self, target: fx.Node, value: Value) -> None:
        """Record that the operator being lowered also writes `value` into a graph node's tensor."""

    @abstractmethod
    def known(self, node: Any) -> torch.Tensor | None:
        """The tensor that a graph node always gives, if it depends on no parameter, data or random number."""

    def literal(self, tensor: torch.Tensor) -> Value:
        """A tensor that is known at capture."""
        return self._states.literal(tensor)

    def op(self, name: str, *inputs: Value, **attributes: Attribute) -> Value:
        return self.builder.op(name, *inputs, **attributes)

    def shape(self, value: Value) -> tuple[int, ...]:
        return self.builder.shape(value)

    def rank(self, value: Value) -> int:
        return len(self.builder.shape(value))

    def dtype(self, value: Value) -> DType:
        return self.builder.dtype(value)

    def dim(self, dim: int, rank: int) -> int:
        """An axis given from either end."""
        return dim % rank if rank else 0

    def dims(self, dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
        """Ascending axes; none given means all. A number has none, though PyTorch lets one name its axis 0."""
        if not rank:
            return ()
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(rank))
        return tuple(sorted(self.dim(d, rank) for d in ([dims] if isinstance(dims, int) else dims)))

    def f32(self, item: Scalar) -> Value:
        return self.builder.constant(item, DType.F32)

    def i64(self, item: int) -> Value:
        return self.builder.constant(item, DType.I64)

    def move(self, value: Value, source: int, destination: int) -> Value:
        """One axis moved to another place."""
        order = [dim for dim in range(self.rank(value)) if dim != source]
        order.insert(destination, source)
        return self.builder.permute(value, order)

    def squeeze(self, value: Value, dims: Sequence[int]) -> Value:
        """Drop axes of size 1."""
        kept = [size for dim, size in enumerate(self.shape(value)) if dim not in dims]
        return self.builder.reshape(value, kept)

    def iota(self, count: int, start: int = 0, step: int = 1) -> Value:
        """start, start + step, ...: i64[count]."""
        return self.builder.source_op("iota", TensorType((count,), DType.I64), start=start, step=step)

    def is_tensor(self, position: int) -> bool:
        """Whether an argument of the node being lowered is a tensor: values are plain integers here, so only the
        graph can tell them from scalars."""
        return position < len(self.node.args) and isinstance(self.node.args[position], fx.Node)

    def operands(self, a: Any, b: Any, *, floating: bool = False) -> tuple[Value, Value]:
        """The first two arguments of the node, tensors or Python scalars, as tensors of the dtype that PyTorch promotes
        them to."""
        tensors = [self.is_tensor(0), self.is_tensor(1)]
        dtypes = [self.dtype(x) for x, tensor in zip((a, b), tensors, strict=True) if tensor]
        for x, tensor in zip((a, b), tensors, strict=True):
            # A number of Python's widens no format.
            if not tensor and not (scalar_dtype(x).is_float and any(dtype.is_float for dtype in dtypes)):
                dtypes.append(scalar_dtype(x))
        dtype = wider(*dtypes)
        if floating and not dtype.is_float:
            dtype = DType.F32
        result = []
        for x, tensor in zip((a, b), tensors, strict=True):
            result.append(self.builder.convert(x, dtype) if tensor else self.builder.constant(x, dtype))
        return result[0], result[1]

    def to_torch_dtype(self, value: Value, dtype: torch.dtype | None) -> Value:
        return value if dtype is None else self.builder.convert(value, storage(dtype))


def storage(dtype: torch.dtype) -> DType:
    """Storage type of a dtype in a program: smaller integers as int64, which do not wrap around where PyTorch's do.
    Raises CaptureError for float16, and ProgramError for any other that programs have not."""
    if dtype == torch.float16:
        raise CaptureError(f"{dtype} is not a storage type of captured programs: use torch.bfloat16")
    return DType.I64 if dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else DType.of(dtype)


def wider(*dtypes: DType) -> DType:
    """Dtype that PyTorch promotes tensors of these dtypes to."""
    if DType.BF16 in dtypes and DType.F16 in dtypes:
        return DType.F32
    return max(dtypes, key=[DType.BOOL, DType.I64, DType.F16, DType.BF16, DType.F32].index)


def scalar_dtype(item: object) -> DType:
    """The dtype of a Python number. Raises CaptureError for anything else."""
    if isinstance(item, bool):
        return DType.BOOL
    if isinstance(item, int):
        return DType.I64
    if isinstance(item, float):
        return DType.F32
    raise CaptureError(f"the scalar {item!r} is not a number")
