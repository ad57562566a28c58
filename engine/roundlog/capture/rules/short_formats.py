"""Rules applied to BF16 and FP16.

PyTorch computes most operators on such numbers in FP32 inside and rounds what comes out, once. So does a program: the
inputs are widened, the rule is the one of FP32, and its results are converted to the dtypes that PyTorch gives. Only
what is one operator of a program, and would round the same exact value, is left in the format that it comes in:
products of matrices, with a bias too, sums, + - * /, comparisons, and what moves numbers.

Single numbers beside tensors are taken one by one as PyTorch's kernels on the CPU take them: measured, and held by a
test that computes every kernel's values both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from roundlog.arithmetic import is_short
from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import VIEWS, Context, Rule, Scalar, base_name, storage
from roundlog.program import DType

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]

_ROUNDED: Mapping[str, tuple[str, ...]] = {
    "add": ("other", "alpha"),
    "sub": ("other", "alpha"),
    "rsub": ("other", "alpha"),
    "xlogy": ("self", "other"),
    "special_xlog1py": ("self", "other"),
    "pow": ("self", "exponent"),
    **dict.fromkeys(("hardshrink", "hardshrink_backward", "softshrink_backward"), ("lambd",)),
    "huber_loss": ("delta",),
    "huber_loss_backward": ("delta",),
}
"""Kernel -> its arguments that are rounded to the format of the tensors, if they are numbers. All other numbers that
are computed with are taken in FP32."""

_BY_FP32_SCALARS = frozenset(("mul", "div"))
"""Kernels whose second operand is taken in FP32, also if it is a tensor without axes."""


def _has_factor_of_a_number(given: Mapping[str, Any]) -> bool:
    other = given.get("other")
    return given.get("alpha", 1) != 1 and not (isinstance(other, torch.Tensor) and other.ndim)


_ROUNDED_BETWEEN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "add": ("the product of both numbers as one", _has_factor_of_a_number),
    "sub": ("the product of both numbers as one", _has_factor_of_a_number),
    "rsub": ("the product of both numbers as one", _has_factor_of_a_number),
    "addr": ("a + torch.outer(b, c)", lambda given: True),
    "addmv": ("a + torch.mv(b, c)", lambda given: given.get("alpha", 1) != 1 or given.get("beta", 1) != 1),
    "renorm": ("", lambda given: True),
    "logit": ("", lambda given: given.get("eps") is not None),
    "logit_backward": ("", lambda given: given.get("eps") is not None),
    "index_add": ("the source times alpha", lambda given: given.get("alpha", 1) != 1),
    "div": ("", lambda given: bool(given.get("rounding_mode")) and isinstance(given.get("other"), torch.Tensor)),
}
"""Kernel -> (what to write instead, beside .float(); whether arguments make it round between its operations, other
factors than one or numbers on which a choice depends among them)."""


_BRINGING_TOGETHER = frozenset(
    ("cat", "where", "rsub", "huber_loss", "huber_loss_backward", "hardshrink_backward", "softshrink_backward")
)
"""Kernels that bring their operands to one dtype, and are not marked as pointwise."""


def common_dtype(op: Any, tensors: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The dtype to which PyTorch brings all operands of a pointwise kernel first: that of the tensors with axes, if
    there are any. None for any other kernel. tensors: its operands, of any shape."""
    if torch.Tag.pointwise not in getattr(op, "tags", ()) and base_name(op) not in _BRINGING_TOGETHER:
        return None
    floats = [x for x in tensors if x.is_floating_point()]
    with_axes = [x for x in floats if x.ndim] or floats
    return reduce(torch.promote_types, (x.dtype for x in with_axes)) if with_axes else None


def rounds_number(op: Any, argument: str) -> bool:
    """Whether a kernel rounds an argument of this name, if it is a number, to the format of its tensors."""
    return argument in _ROUNDED.get(base_name(op), ())


def rounds_numbers(op: Any) -> bool:
    """Whether a kernel rounds some of the numbers that it may be given."""
    return base_name(op) in _ROUNDED


def takes_in_fp32(op: Any, argument: str) -> bool:
    """Whether a kernel takes an argument of this name in FP32, if it is a tensor without axes beside one with axes."""
    return argument == "other" and base_name(op) in _BY_FP32_SCALARS


def by_name(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a kernel by their names."""
    return {**{one.name: given for one, given in zip(op._schema.arguments, args, strict=False)}, **kwargs}


def rounded(number: Any, dtype: torch.dtype) -> Any:
    """A number in a format, as Python's; anything else as it is."""
    if type(number) not in (int, float):
        return number
    return float(torch.tensor(number, dtype=dtype))


def with_rounded_numbers(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments, with Python's numbers as a kernel takes them beside tensors of a short dtype."""
    names = [one.name for one in op._schema.arguments]

    def taken(name: str, given: Any) -> Any:
        return rounded(given, dtype) if rounds_number(op, name) else given

    positional = tuple(taken(name, given) for name, given in zip(names, args, strict=False))
    return positional, {name: taken(name, given) for name, given in kwargs.items()}


def refuse_rounding_between(op: Any, given: Mapping[str, Any]) -> None:
    """Raises CaptureError for a kernel on short numbers that rounds them, or numbers beside them, on the way, so that a
    program would compute something else. given: arguments by name, tensors as tensors."""
    if not isinstance(op, OpOverload) or base_name(op) not in _ROUNDED_BETWEEN:
        return
    instead, applies = _ROUNDED_BETWEEN[base_name(op)]
    dtypes = {x.dtype for x in tree_leaves(dict(given)) if isinstance(x, torch.Tensor) and is_short(x.dtype)}
    if dtypes and applies(given):
        dtype = str(dtypes.pop()).removeprefix("torch.")
        raise CaptureError(
            f"aten.{base_name(op)} on numbers of {dtype} rounds between its operations: convert them by .float() "
            + (f"before, or write {instead}" if instead else "before")
        )


_MOVING = frozenset(
    (
        *("clone", "lift_fresh_copy", "contiguous", "_to_copy", "copy", "cat", "roll", "flip", "repeat"),
        *("constant_pad_nd", "slice_backward", "slice_scatter", "diagonal_scatter", "select_backward", "gather"),
        *("index_select", "embedding", "index.Tensor", "_unsafe_index.Tensor", "scatter.value", "scatter.src"),
        *("masked_scatter", "full", "full_like", "zeros_like", "empty_like", "new_zeros", "new_empty"),
        *("new_empty_strided", "zeros", "ones", "empty", "empty_permuted", "scalar_tensor"),
        *("arange", "eye", "eye.m"),
    )
)
"""Operators whose rules give some of the numbers that they are given, or constants, of whatever dtype."""

_ROUNDING_ONCE = frozenset(
    (
        *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "mul.Tensor", "mul.Scalar"),
        *("div.Tensor", "div.Scalar", "neg", "abs", "floor", "relu", "maximum", "minimum", "eq", "ne", "lt"),
        *("le", "gt", "ge", "mm", "bmm", "mv", "dot", "sum", "amax", "amin", "convolution"),
        *("convolution_backward", "addmm", "baddbmm"),
    )
)
"""Operators whose rules are one operator of a program, that rounds the exact value to the format of its inputs."""

_UNIFORM = frozenset(("rand", "rand_like", "uniform_", "exponential_"))


def short_dtypes(node: fx.Node) -> set[torch.dtype]:
    """Formats of fewer than 32 bits among what a graph node takes and gives."""
    values = (one.meta.get("val") for one in (node, *node.all_input_nodes))
    return {x.dtype for x in tree_leaves(list(values)) if isinstance(x, torch.Tensor) and is_short(x.dtype)}


def adds_a_row(bias: torch.Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) -> bool:
    """Whether `addmm` of short numbers is one product, in which the bias, the same for every row, is one more term.
    PyTorch adds it to sums in FP32, and rounds once. bias: as it is traced."""
    return bias.shape[-2:-1] in ((), (1,)) and alpha == 1 and beta == rounded(beta, bias.dtype)


def applied(c: Context, name: str, rule: Rule, options: Mapping[str, Any], value: Callable[[fx.Node], Any]) -> Any:
    """A rule's result for the node of the context. name: of its operator, with the overload. options: its keyword
    arguments. value: gives the value of a graph node. Raises CaptureError where PyTorch does something else than
    computing in FP32 and rounding once."""
    node = c.node
    if not short_dtypes(node):
        args, kwargs = fx.node.map_arg((node.args, options), value)
        return rule(c, *args, **kwargs)
    base = name.partition(".")[0]
    refuse_rounding_between(node.target, fx.node.map_arg(by_name(node.target, node.args, options), _traced))
    if base in _UNIFORM:
        raise CaptureError("draws numbers of less than 32 bits, which may be 1: draw in float32, and convert them")
    if base.endswith("_") and not base.startswith("_"):
        name, base = name.replace("_.", ".", 1), base[:-1]
    operands = _Operands(c, node, base, value)
    if operands.stay(name):
        args, kwargs = fx.node.map_arg((node.args, options), operands.promoted)
        return _declared(c, node, rule(c, *args, **kwargs))
    if (dtype := options.get("dtype")) is not None and is_short(dtype):
        operands.need_dtype(dtype)
        options = {**options, "dtype": torch.float32}
    taken, options = fx.node.map_arg((node.args, options), operands.widened)
    args, kwargs = operands.with_rounded_numbers(taken, options)
    return _declared(c, node, rule(c, *args, **kwargs))


def _traced(node: fx.Node) -> Any:
    return node.meta.get("val")


class _Operands:
    """Operands of one operator."""

    def __init__(self, c: Context, node: fx.Node, base: str, value: Callable[[fx.Node], Any]) -> None:
        self._c, self._node, self._base, self._value = c, node, base, value
        self._tensors = [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)]
        self._common = self._common_dtype()
        """The dtype to which PyTorch brings all operands of a pointwise operator first; None for any other operator."""

    def _common_dtype(self) -> DType | None:
        dtype = common_dtype(self._node.target, [x.meta["val"] for x in self._tensors])
        return None if dtype is None else storage(dtype)

    def stay(self, name: str) -> bool:
        """Whether the rule is applied to the short numbers themselves."""
        known = {name, self._base}
        if self._base in ("where", "cat") or known & _MOVING or known & VIEWS:
            return True
        if not known & _ROUNDING_ONCE or self._common == DType.F32:
            return False
        if self._common is None and len({x.meta["val"].dtype for x in self._tensors}) != 1:
            return False
        return not self._has_more() and not (takes_in_fp32(self._node.target, "other") and self._is_number(1))

    def _has_more(self) -> bool:
        """Whether there is more to be computed than one operator of a program does: a factor, a bias, a conversion."""
        node, base = self._node, self._base
        if base.startswith("convolution"):
            # PyTorch adds a bias before it rounds.
            return base == "convolution" and node.args[2] is not None
        if base in ("addmm", "baddbmm"):
            given: dict[str, Any] = fx.node.map_arg(by_name(node.target, node.args, node.kwargs), _traced)
            return not adds_a_row(given["self"], beta=given.get("beta", 1), alpha=given.get("alpha", 1))
        if base == "sum":
            return "dtype" in node.kwargs and node.kwargs["dtype"] is not None
        factor = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
        return base in ("add", "sub") and bool(factor != 1)

    def need_dtype(self, dtype: torch.dtype) -> None:
        """Raises CaptureError unless numbers are of the dtype that PyTorch is asked to convert them to."""
        if any(x.meta["val"].is_floating_point() and x.meta["val"].dtype != dtype for x in self._tensors):
            raise CaptureError(f"converts to {dtype} while it computes: convert by .to({dtype}) before")

    def _is_number(self, position: int) -> bool:
        """Whether an argument is a number: Python's, or a tensor without axes beside one with axes."""
        if position >= len(self._node.args):
            return False
        given = self._node.args[position]
        if not isinstance(given, fx.Node) or not isinstance(given.meta["val"], torch.Tensor):
            return True
        others = [x for x in self._tensors if x is not given]
        return given.meta["val"].ndim == 0 and any(x.meta["val"].ndim for x in others)

    def promoted(self, source: fx.Node) -> Any:
        """An operand's value, in the common dtype if it is a number of another one."""
        found, common = self._value(source), self._common
        if common is None or not isinstance(found, Value) or self._c.dtype(found) == DType.BOOL:
            return found
        return self._c.builder.convert(found, common)

    def widened(self, source: fx.Node) -> Any:
        """An operand's value in FP32, after PyTorch's conversion to the common dtype."""
        found = self._value(source)
        if not isinstance(found, Value):
            return found
        if self._common is not None and not self._is_taken_in_fp32(source):
            found = self.promoted(source)
        return self._c.builder.convert(found, DType.F32) if self._c.dtype(found).is_short else found

    def _is_taken_in_fp32(self, source: fx.Node) -> bool:
        """Whether the kernel takes an operand in FP32, whatever the common dtype is."""
        target, given = self._node.target, by_name(self._node.target, self._node.args, self._node.kwargs)
        names = [name for name, one in given.items() if one is source]
        if not isinstance(source.meta.get("val"), torch.Tensor):
            # A number that was taken out of a tensor is one of Python's.
            return not any(rounds_number(target, name) for name in names)
        return any(takes_in_fp32(target, name) for name in names) and self._is_number(1)

    def with_rounded_numbers(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Arguments, with Python's numbers as PyTorch takes them."""
        if self._common is None or not self._common.is_short:
            return args, kwargs
        return with_rounded_numbers(self._node.target, args, kwargs, self._common.torch_dtype)


def _declared(c: Context, node: fx.Node, result: Any) -> Any:
    """Results in the dtypes that PyTorch gives them."""
    traced = node.meta.get("val")
    if isinstance(result, (tuple, list)):
        kinds = traced if isinstance(traced, (tuple, list)) else [traced] * len(result)
        return tuple(_of_kind(c, one, kind) for one, kind in zip(result, kinds, strict=False))
    return _of_kind(c, result, traced)


def _of_kind(c: Context, result: Any, kind: Any) -> Any:
    if not isinstance(result, Value) or not isinstance(kind, torch.Tensor) or not c.dtype(result).is_float:
        return result
    if kind.dtype == torch.float64 or not kind.is_floating_point():
        return result  # refused by its dtype later
    return c.builder.convert(result, storage(kind.dtype))


def in_fp32(table: Table) -> Table:
    """A table for `make_fx` whose functions see short numbers widened to FP32, and whose results get the dtypes that
    the operator gives. Operators that PyTorch itself composes of others are left as they are, and views."""
    return {op: _widened(op, function) if _is_kernel(op) else function for op, function in table.items()}


_PRODUCTS = frozenset((_aten.mv.default, _aten.dot.default, _aten.baddbmm.default))
"""Operators that are taken apart in FP32 only: of short numbers, their rules make one product, rounded once."""


def _is_kernel(op: Any) -> bool:
    """Whether PyTorch computes an operator by one kernel, whose results are its own memory."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable or op._schema.name == "aten::_to_copy":
        return False
    if any(returned.alias_info is not None for returned in op._schema.returns):
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _widened(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        if not any(_is_short(leaf) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        if op in _PRODUCTS:
            return NotImplemented
        refuse_rounding_between(op, by_name(op, args, kwargs))
        wide, options = tree_map(_wide, _as_kernel_takes(op, args, kwargs))
        result = function(*wide, **options)
        if result is NotImplemented:
            return result
        leaves, form = tree_flatten(result)
        declared = [getattr(leaf, "dtype", None) for leaf in tree_leaves(_given_by(op, args, kwargs))]
        if op in _OF_INPUTS:
            declared = [getattr(args[place], "dtype", None) for place in _OF_INPUTS[op]]
        return tree_unflatten([_as(one, dtype) for one, dtype in zip(leaves, declared, strict=True)], form)

    return apply


def _as_kernel_takes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments, with single numbers rounded where the kernel rounds them to the format of the tensors beside them."""
    dtype = common_dtype(op, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
    if dtype is None or not is_short(dtype):
        return args, kwargs

    def taken(thing: Any) -> Any:
        is_number = isinstance(thing, torch.Tensor) and not thing.ndim and thing.dtype == torch.float32
        return thing.to(dtype) if is_number else thing

    return tree_map(taken, with_rounded_numbers(op, args, kwargs, dtype))


def _is_short(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and is_short(thing.dtype)


def _wide(thing: Any) -> Any:
    return thing.to(torch.float32) if _is_short(thing) else thing


_OF_INPUTS = {_aten.native_group_norm_backward.default: (1, 4, 4)}
"""Operators whose tensors without numbers have other dtypes than PyTorch's results -> arguments that have these."""


def _as(result: Any, dtype: torch.dtype | None) -> Any:
    """A result in a dtype."""
    if not isinstance(result, torch.Tensor) or dtype is None or result.dtype == dtype:
        return result
    return result.to(dtype)


def _given_by(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """The results of an operator, without numbers."""
    (mode, *_) = (leaf.fake_mode for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor))
    with _disable_current_modes(), mode:
        return op(*args, **kwargs)


def norms() -> Table:
    """Normalisation of short numbers. PyTorch's kernels on the CPU keep the mean and the reciprocal deviation in FP32
    where the weights, or the running statistics, are FP32, as under autocast, and in the format of the numbers
    otherwise. Its tensors without numbers say the second in both cases."""
    kinds = (_aten.native_layer_norm.default, _aten.native_group_norm.default, _aten.native_batch_norm.default)
    return {op: _norm(op) for op in kinds}


def _norm(op: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: torch.Tensor, *rest: Any) -> Any:
        if not is_short(x.dtype):
            return NotImplemented
        wide = [one.float() if isinstance(one, torch.Tensor) else one for one in rest]
        y, mean, rstd = op(x.float(), *wide)
        for own, written in zip(rest, wide, strict=True):
            # Running statistics, which batch norm writes.
            if op is _aten.native_batch_norm.default and own is not written and isinstance(own, torch.Tensor):
                own.copy_(written)
        tensors = [one for one in rest if isinstance(one, torch.Tensor)]
        kept = torch.float32 if any(one.dtype == torch.float32 for one in tensors) else x.dtype
        return y.to(x.dtype), mean.to(kept), rstd.to(kept)

    return apply
