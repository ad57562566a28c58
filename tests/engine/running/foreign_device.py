"""A device that is not the CPU, for machines that have none: "foreign".

Its tensors keep their numbers in CPU memory behind PyTorch's back; all that the engine sees is a device of another
type. What works on the CPU by accident only does not work here: a tensor of this device cannot be turned into an array,
and cannot be mixed with one of the CPU (scalars excepted, as on CUDA). And its FP64 kernels err otherwise than the
CPU's: every result of a kernel that may round in its own way is moved by up to one unit in the last place, at random.

Call `install()` once in a process, then `with foreign():` around the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "foreign"

_ROUNDING = {
    torch.ops.aten.mm,
    torch.ops.aten.bmm,
    torch.ops.aten.convolution,
    torch.ops.aten.convolution_backward,
    torch.ops.aten.sum,
    torch.ops.aten.exp,
    torch.ops.aten.expm1,
    torch.ops.aten.log,
    torch.ops.aten.log1p,
    torch.ops.aten.tanh,
    torch.ops.aten.erf,
}
"""Kernels whose last bits nobody promises (of sums and products: where there is more than one term)."""


def install() -> None:
    """Makes the device known to PyTorch; once in a process."""
    _setup_privateuseone_for_python_backend(rename=NAME)


class Foreign(torch.Tensor):
    """A tensor of the device; `raw` holds its numbers."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Foreign:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        wrapper.raw = raw
        return wrapper

    def tolist(self) -> Any:
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Sees what is made on the device, and what is moved to it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """A mode for functions that make tensors in ways that a dispatch mode does not see."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if function is torch.tensor and device is not None and torch.device(device).type == NAME:
            return Foreign(torch.tensor(*args, **{**kwargs, "device": "cpu"}))
        if function is torch.unravel_index and isinstance(args[0], Foreign):
            return tuple(Foreign(x) for x in torch.unravel_index(args[0].raw, *args[1:], **kwargs))
        return function(*args, **kwargs)


@contextmanager
def foreign() -> Iterator[None]:
    """Lets the device be used."""
    with _Literals(), _Factories():
        yield


_noise = torch.Generator().manual_seed(0)


def _dispatch(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, Foreign)]
    device = kwargs.get("device")
    target = torch.device(device).type if device is not None else (NAME if there else "cpu")
    moves = function.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
    if there and not moves and any(x.ndim and not isinstance(x, Foreign) for x in tensors):
        raise RuntimeError(f"{function}: tensors of the CPU and of {NAME} are mixed")
    plain_args, plain_kwargs = tree_map(lambda x: x.raw if isinstance(x, Foreign) else x, (args, kwargs))
    if device is not None:
        plain_kwargs = {**plain_kwargs, "device": "cpu"}
    result = function(*plain_args, **plain_kwargs)
    if target != NAME:
        return result
    if function.overloadpacket in _ROUNDING:
        may = _inexact(function.overloadpacket, plain_args)
        result = tree_map(lambda x: _moved(x, may), result)
    owners: dict[int, Foreign] = {id(x.raw): x for x in there}

    def wrapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        # An operator in place gives back the tensor that it was given.
        owner = owners.get(id(x))
        return Foreign(x) if owner is None else owner

    return tree_map(wrapped, result)


def _inexact(kernel: Any, args: Any) -> torch.Tensor:
    """1 for a result that a kernel may have to round on its way, 0 for one whose every partial sum is an FP64 number:
    no device errs there. What is not a sum or a product is always rounded."""
    if kernel is torch.ops.aten.sum:
        x = args[0]
        axes = (args[1] if len(args) > 1 else None) or list(range(x.ndim))
        keepdim = len(args) > 2 and args[2]
        return _rounded(x.double().abs().sum(axes, keepdim), _last_place(x).amin(axes, keepdim))
    if kernel in (torch.ops.aten.mm, torch.ops.aten.bmm):
        a, b = args
        if a.shape[-1] < 2:
            return torch.zeros(())
        place = _last_place(a).amin(-1).unsqueeze(-1) + _last_place(b).amin(-2).unsqueeze(-2)
        return _rounded(kernel(a.double().abs(), b.double().abs()), place)
    return torch.ones(())


def _last_place(x: torch.Tensor) -> torch.Tensor:
    """The exponent of the last place of every significand; far above all others for 0."""
    fraction, exponent = torch.frexp(x.double())
    whole = (fraction * 2.0**53).to(torch.int64)
    return torch.where(whole != 0, torch.frexp((whole & -whole).double())[1] - 1 + exponent - 53, 2000)


def _rounded(magnitude: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """f64: 1 where terms whose magnitudes sum to this, multiples of this place, are more than 2^53 of them."""
    return (~(torch.frexp(magnitude)[1] <= place + 53) & (magnitude != 0)).double()


def _moved(x: Any, may: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.numel():
        units = torch.randint(-1, 2, x.shape, generator=_noise).to(torch.float64)
        # An infinity is one in every kernel.
        x += units * may * torch.where(x.isfinite(), x.abs(), 0) * 2.0**-53
    return x
