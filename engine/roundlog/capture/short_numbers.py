"""Single numbers beside tensors of BF16 and FP16, as PyTorch's kernels on the CPU take them, one by one: measured,
and held by a test that computes every kernel's values both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError

_ROUNDED: Mapping[str, tuple[str, ...]] = {
    "add": ("other", "alpha"),
    "sub": ("other", "alpha"),
    "rsub": ("other", "alpha"),
    "fmod": ("other",),
    "remainder": ("self", "other"),
    "xlogy": ("self", "other"),
    "special_xlog1py": ("self", "other"),
    "pow": ("self", "exponent"),
    "hardshrink": ("lambd",),
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
    "addbmm": ("a + torch.bmm(b, c).sum(0)", lambda given: True),
    "add": ("the product of both numbers as one", _has_factor_of_a_number),
    "sub": ("the product of both numbers as one", _has_factor_of_a_number),
    "rsub": ("the product of both numbers as one", _has_factor_of_a_number),
    "addr": ("a + torch.outer(b, c)", lambda given: True),
    "addmv": ("a + torch.mv(b, c)", lambda given: given.get("alpha", 1) != 1 or given.get("beta", 1) != 1),
    "renorm": ("", lambda given: True),
    "logit": ("", lambda given: given.get("eps") is not None),
    "logit_backward": ("", lambda given: given.get("eps") is not None),
    "index_add": ("the source times alpha", lambda given: given.get("alpha", 1) != 1),
    "floor_divide": ("", lambda given: isinstance(given.get("other"), torch.Tensor)),
    "div": ("", lambda given: bool(given.get("rounding_mode")) and isinstance(given.get("other"), torch.Tensor)),
}
"""Kernel -> (what to write instead, beside .float(); whether arguments make it round between its operations, other
factors than one or numbers on which a choice depends among them)."""


_BRINGING_TOGETHER = frozenset(("cat", "where", "rsub", "huber_loss", "huber_loss_backward"))
"""Kernels that bring their operands to one dtype, and are not marked as pointwise."""


def kernel_name(op: Any) -> str:
    """The name of a kernel, without the overload and the mark of one that writes in place."""
    name: str = op._schema.name.removeprefix("aten::")
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name


def common_dtype(op: Any, tensors: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The dtype to which PyTorch brings all operands of a pointwise kernel first: that of the tensors with axes, if
    there are any. None for any other kernel. tensors: its operands, of any shape."""
    if torch.Tag.pointwise not in getattr(op, "tags", ()) and kernel_name(op) not in _BRINGING_TOGETHER:
        return None
    floats = [x for x in tensors if x.is_floating_point()]
    with_axes = [x for x in floats if x.ndim] or floats
    return reduce(torch.promote_types, (x.dtype for x in with_axes)) if with_axes else None


def rounds_number(op: Any, argument: str) -> bool:
    """Whether a kernel rounds an argument of this name, if it is a number, to the format of its tensors."""
    return argument in _ROUNDED.get(kernel_name(op), ())


def rounds_numbers(op: Any) -> bool:
    """Whether a kernel rounds some of the numbers that it may be given."""
    return kernel_name(op) in _ROUNDED


def takes_in_fp32(op: Any, argument: str) -> bool:
    """Whether a kernel takes an argument of this name in FP32, if it is a tensor without axes beside one with axes."""
    return argument == "other" and kernel_name(op) in _BY_FP32_SCALARS


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
    if not isinstance(op, OpOverload) or kernel_name(op) not in _ROUNDED_BETWEEN:
        return
    instead, applies = _ROUNDED_BETWEEN[kernel_name(op)]
    dtypes = {x.dtype for x in tree_leaves(dict(given)) if isinstance(x, torch.Tensor) and is_short(x.dtype)}
    if dtypes and applies(given):
        dtype = str(dtypes.pop()).removeprefix("torch.")
        raise CaptureError(
            f"aten.{kernel_name(op)} on numbers of {dtype} rounds between its operations: convert them by .float() "
            + (f"before, or write {instead}" if instead else "before")
        )
