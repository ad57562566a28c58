"""Parts of PyTorch that no trace can follow, most since they decide in Python by the value of a tensor, written anew.

They are put in place for a trace only. The comparison with the user's own step runs PyTorch's."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    statically_known_false,
    statically_known_true,
)
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.arithmetic import formats
from roundlog.capture.errors import CaptureError, is_of_torch, place_of_call
from roundlog.capture.python_state import REPLACED, Counter, UnseenText, followed, load_compiler, with_logged
from roundlog.capture.tracing.decisions import decided, noted, passing


@contextmanager
def rewritten(*, is_short: bool = False) -> Iterator[None]:
    """While this is active, the functions of this file stand in the place of PyTorch's. is_short: whether the model has
    numbers of fewer than 32 bits."""
    load_compiler()
    with ExitStack() as stack:
        for owner, name, function in (
            *_of_masks(is_short),
            *REPLACED,
            (AveragedModel, "update_parameters", _update_parameters),
            (_BatchNorm, "forward", _batch_norm),
            (torch, "ctc_loss", _ctc_loss),
            (torch._VF, "stft", _stft),
            (torch._VF, "lstm", _lstm),
            (torch, "tensor", _tensor),
            (torch, "from_numpy", _from_numpy),
            *((module, "to_dlpack", _to_dlpack) for module in (torch, torch.utils.dlpack)),
            (torch.SymBool, "__bool__", _truth),
            (SymNode, "guard_bool", _guard),
            (torch.SymFloat, "__float__", _noted(torch.SymFloat.__float__)),
            (torch.SymInt, "__int__", _noted(torch.SymInt.__int__)),
            *((kind, name, _shown) for kind in (torch.SymFloat, torch.SymInt) for name in ("__str__", "__format__")),
            *((torch.SymFloat, name, _unless_known(getattr(torch.SymFloat, name), name)) for name in _OF_FLOATS),
            *((torch.SymInt, name, _unless_counted(getattr(torch.SymInt, name), name)) for name in _COUNTED),
            *((math, name, _asking(name)) for name in _TESTS),
            (torch.SymFloat, "__array_ufunc__", _by_numpy),
            *(
                (kind, name, with_logged(of_kind(getattr(kind, name)), name))
                for kind, of_kind in ((torch.SymFloat, _unless_known), (torch.SymInt, lambda method: method))
                for name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__")
            ),
            (torch.Tensor, "__format__", _formatted_tensor),
            (torch.autocast, "__init__", _make_autocast),
            (torch.autocast, "__enter__", _enter_autocast),
        ):
            stack.enter_context(_replaced(owner, name, function))
        yield


@contextmanager
def _replaced(owner: Any, name: str, function: object) -> Iterator[None]:
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


_truth_of_torch = torch.SymBool.__bool__


def _truth(value: torch.SymBool) -> bool:
    """A check of what `.item()` gave passes, as one of a tensor does."""
    # A relation that holds for every number, as of the sizes of two tensors by one mask, is no question.
    for known, always in ((statically_known_true, True), (statically_known_false, False)):
        if known(value):
            return always
    frame = sys._getframe(1)
    answer = passing(frame)
    # PyTorch itself asks about sizes: whatever it does then, a program has shapes that are known.
    if answer is None and not is_of_torch(frame.f_code.co_filename):
        answer = decided(value)
    if answer is not None:
        return answer
    if any(part in frame.f_code.co_filename.replace("\\", "/") for part in _DECOMPOSITIONS):
        return _guard(value.node, "a decomposition", 0)
    with noted():
        return bool(_truth_of_torch(value))  # type: ignore[no-untyped-call]


_guard_of_torch = SymNode.guard_bool


def _guard(asked: SymNode, file: str, line: int) -> bool:
    """PyTorch's own code asks whether there are any of the rows that a mask chooses, to go a shorter way to the same
    numbers where there are none or one (dropout, logsumexp, gradients of products): it goes the way for many."""
    try:
        return bool(_guard_of_torch(asked, file, line))
    except GuardOnDataDependentSymNode:
        symbols, known = asked.expr.free_symbols, asked.shape_env
        if not file or known is None or not symbols <= known.size_like:  # asked by Python, or not about sizes
            raise
        return bool(asked.expr.xreplace(dict.fromkeys(symbols, sympy.Integer(_MANY))))


_DECOMPOSITIONS = ("torch/_decomp/", "torch/_refs/")
"""Folders of PyTorch's own functions that take operators apart."""

_MANY = 1_000_003
"""A number of rows that is no other size. One for all masks: where rows of two meet, lowering says so."""


def _noted(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def asked(value: Any) -> Any:
        with noted():
            return method(value)

    return asked


def _shown(value: object, specification: str = "") -> str:
    """A plain function: a bound one gets no number where Python takes it for a method."""
    return UnseenText("?")


def _up(number: float) -> float:
    """The least number of FP32 that is not less."""
    near = np.float32(number)
    return float(np.nextafter(near, np.float32(math.inf)) if near < number else near)


def _down(number: float) -> float:
    return -_up(-number)


_COUNTED = {"__lt__": _up, "__ge__": _up, "__le__": _down, "__gt__": _down}
"""Comparison of a number of FP32 -> how the other one is rounded, so that the answer stays the same."""

_OF_FLOATS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__neg__", "__abs__", "__pow__")


def _unless_counted(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A comparison of what `.item()` gives, that a number may be given to which steps change: as by tensors."""

    def compared(value: Any, *others: Any) -> Any:
        if name in _COUNTED and type(others[0]) is Counter:
            return getattr(_tensor_of(value), name)(others[0].called(_COUNTED[name], others))
        return method(value, *others)

    return compared


def _unless_known(method: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """An operation of what `.item()` gives whose result PyTorch does not take for known, as it does that a number
    equals itself: it may be NaN."""

    def computed(value: torch.SymFloat, *others: Any) -> Any:
        result = method(value, *others)
        symbol = getattr(getattr(result, "node", None), "expr", None)
        is_known = isinstance(result, bool | float) or (symbol is not None and not symbol.free_symbols)
        if is_known and all(isinstance(other, bool | int | float | torch.SymFloat | torch.SymInt) for other in others):
            with noted():
                raise CaptureError(
                    "the step compares or combines a number that it computes with itself, or with zero"
                    f"{place_of_call()}: ask by torch.isnan, or compute with the tensor itself"
                )
        return result

    return _unless_counted(computed, name)


_TESTS = ("isnan", "isinf", "isfinite")


def _asking(name: str) -> Callable[..., Any]:
    """`math.isnan` and the like, of what `.item()` gives too."""
    own, of_torch = followed(getattr(math, name)), getattr(torch, name)

    def ask(value: Any) -> Any:
        return of_torch(_tensor_of(value)) if type(value) is torch.SymFloat else own(value)

    return ask


def _by_numpy(value: torch.SymFloat, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Numpy's, likewise."""
    if function.__name__ not in _TESTS or method != "__call__" or kwargs:
        return NotImplemented
    return getattr(torch, function.__name__)(_tensor_of(value))


def _tensor_of(number: Any) -> torch.Tensor:
    return torch.scalar_tensor(number)


def _update_parameters(averaged: AveragedModel, model: nn.Module) -> None:
    """The first update copies, later ones average: both are computed, and one is chosen."""
    if averaged.use_buffers:
        own = list(chain(averaged.module.parameters(), averaged.module.buffers()))
        theirs = list(chain(model.parameters(), model.buffers()))
    else:
        own, theirs = list(averaged.parameters()), list(model.parameters())
    pairs = [(a.detach(), b.detach()) for a, b in zip(own, theirs, strict=False)]
    count = averaged.n_averaged
    moved = [a.clone() for a, _ in pairs]
    if averaged.multi_avg_fn is not None:
        for dtype in dict.fromkeys(a.dtype for a, _ in pairs):
            chosen = [number for number, (a, _) in enumerate(pairs) if a.dtype == dtype]
            averaged.multi_avg_fn(tuple(moved[n] for n in chosen), tuple(pairs[n][1] for n in chosen), count)
    else:
        average = averaged.avg_fn or get_swa_avg_fn()
        moved = [average(a, b, count) for a, b in pairs]
    for (a, b), later in zip(pairs, moved, strict=True):
        a.copy_(torch.where(count == 0, b, later))
    if not averaged.use_buffers:
        for ours, their in zip(averaged.module.buffers(), model.buffers(), strict=True):
            ours.detach().copy_(their.detach())
    averaged.n_averaged += 1


_batch_norm_of_torch = _BatchNorm.forward


def _batch_norm(layer: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    """Batch norm whose running statistics, without a momentum, are means over all batches: their weight is a tensor."""
    tracked = layer.num_batches_tracked
    if layer.momentum is not None or not layer.training or not layer.track_running_stats or tracked is None:
        return _batch_norm_of_torch(layer, x)
    layer._check_input_dim(x)
    axes = [0, *range(2, x.dim())]
    with torch.no_grad():
        tracked.add_(1)
        weight = 1.0 / tracked
        for running, new in ((layer.running_mean, x.mean(axes)), (layer.running_var, x.var(axes))):
            assert running is not None
            running.copy_((1.0 - weight) * running + weight * new)
    return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)


_ctc_loss_of_torch = torch.ctc_loss
_NONE, _MEAN = 0, 1


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """PyTorch puts lengths that are numbers of Python into a tensor by itself, where no trace sees it."""
    of_torch: Any = functools.partial(
        _ctc_loss_of_torch, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity=zero_infinity
    )
    if reduction != _MEAN or isinstance(target_lengths, torch.Tensor):
        return of_torch(reduction=reduction)  # type: ignore[no-any-return]
    losses: torch.Tensor = of_torch(reduction=_NONE)
    return (losses / torch.tensor(target_lengths, dtype=losses.dtype).clamp(min=1.0)).mean()


_lstm_of_torch = torch._VF.lstm


def _lstm(x: torch.Tensor, *others: Any) -> Any:
    if formats.is_short(x.dtype) or torch.is_autocast_enabled("cpu"):  # one kernel, whose roundings no trace can see
        raise CaptureError(
            f"an LSTM computes in bfloat16{place_of_call()}, where PyTorch has one kernel for all of it: call "
            "nn.LSTMCell step by step, or keep its weights in float32 and call it with .float() before, under "
            'torch.autocast("cpu", enabled=False) and torch.backends.mkldnn.flags(enabled=False)'
        )
    return _lstm_of_torch(x, *others)


_stft_of_torch = torch._VF.stft  # type: ignore[attr-defined]


def _stft(
    x: torch.Tensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: torch.Tensor | None,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
    *align_to_window: bool | None,
) -> torch.Tensor:
    """PyTorch turns the axes of the transform in place, which complex numbers do not have here."""
    is_complex = x.is_complex() or (window is not None and window.is_complex())
    if is_complex or return_complex is None or any(align_to_window):
        asked = (x, n_fft, hop_length, win_length, window, normalized, onesided, return_complex)
        return _stft_of_torch(*asked, *align_to_window)  # type: ignore[no-any-return]
    frames = x.unfold(-1, n_fft, n_fft // 4 if hop_length is None else hop_length)
    length = n_fft if win_length is None else win_length
    if window is not None or length < n_fft:
        shown = x.new_ones(length) if window is None else window
        left = (n_fft - length) // 2
        frames = frames * F.pad(shown, (left, n_fft - length - left))
    transform = torch.fft.fft if onesided is False else torch.fft.rfft
    found = transform(frames, norm="ortho" if normalized else "backward").transpose(-1, -2)
    return found if return_complex else torch.view_as_real(found)


_make_autocast_of_torch = torch.autocast.__init__
_enter_autocast_of_torch = torch.autocast.__enter__


def _make_autocast(
    region: torch.autocast, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, **options: Any
) -> None:
    """PyTorch switches an autocast of a card off where there is none, so that the step would be another one here. And
    `make_fx` has new regions keep no casts of weights, where those of a run do unless they are told not to."""
    if enabled and torch.device(device_type).type != "cpu":
        _refuse_autocast(f'is for device_type "{device_type}"', 'on the CPU: give it device_type="cpu"')
    options.setdefault("cache_enabled", True)
    _make_autocast_of_torch(region, device_type, dtype, enabled, **options)


def _enter_autocast(region: torch.autocast) -> Any:
    if region._enabled and region.device != "cpu":
        _refuse_autocast(f'is for device_type "{region.device}"', 'on the CPU: give it device_type="cpu"')
    if region._enabled and region.fast_dtype != torch.bfloat16:
        dtype = str(region.fast_dtype).removeprefix("torch.")
        _refuse_autocast(f"computes in {dtype}", "in BF16: give it dtype=torch.bfloat16")
    return _enter_autocast_of_torch(region)  # type: ignore[no-untyped-call]


def _refuse_autocast(what: str, instead: str) -> None:
    with noted():
        raise CaptureError(f"torch.autocast {what}{place_of_call()}, and a step is captured {instead}")


def _of_masks(is_short: bool) -> Iterator[tuple[Any, str, object]]:
    """Function by which transformers asks whether it may look at a mask's values, to leave out a mask that masks
    nothing. In FP32 it makes no difference; where sums are rounded to BF16, it decides where they are: such a mask's
    values decide between two paths, unless they are known."""
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_tracing", None)
    if asked is None:
        return

    def is_tracing(tensor: Any = None) -> Any:
        short = is_short or torch.is_autocast_enabled("cpu")
        return asked(tensor) and not (short and isinstance(tensor, FakeTensor))

    yield masks, "is_tracing", is_tracing


_format_of_torch = torch.Tensor.__format__


def _formatted_tensor(tensor: torch.Tensor, specification: str) -> str:
    if isinstance(tensor, FakeTensor):
        return _shown(tensor)
    return str(_format_of_torch(tensor, specification))  # type: ignore[no-untyped-call]


_tensor_of_torch = torch.tensor


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """PyTorch asks every tensor in a list for its number, and makes a tensor without a gradient of them. It knows
    nothing of numbers that are followed."""
    leaves = tree_leaves(data)
    if any(type(leaf) is Counter for leaf in leaves):
        is_float = dtype == torch.float32 or (
            dtype is None and any(type(getattr(leaf, "value", leaf)) is float for leaf in leaves)
        )
        data = tree_map(functools.partial(_without_counter, is_float), data)
        if isinstance(data, torch.Tensor):
            return data.requires_grad_() if options.get("requires_grad") else data
        leaves = tree_leaves(data)
    if not isinstance(data, (list, tuple)) or not any(isinstance(leaf, FakeTensor) for leaf in leaves):
        return _tensor_of_torch(data, dtype=dtype, **options)
    if not all(isinstance(leaf, (torch.Tensor, bool, int, float)) and _is_number(leaf) for leaf in leaves):
        return _tensor_of_torch(data, dtype=dtype, **options)
    found = _stacked(data)
    found = found if dtype is None else found.to(dtype)
    return found.requires_grad_() if options.get("requires_grad") else found


_from_numpy_of_torch = torch.from_numpy


def _from_numpy(array: Any) -> torch.Tensor:
    """A tensor: arrays of numpy.random are traced tensors already."""
    return array if isinstance(array, FakeTensor) else _from_numpy_of_torch(array)


def _to_dlpack(tensor: torch.Tensor) -> Any:
    return tensor.__dlpack__()


def _without_counter(is_float: bool, leaf: Any) -> Any:
    """A number that is followed as a tensor of its own, if the tensor that is made is one of floats, or as it is."""
    if type(leaf) is not Counter:
        return leaf
    column = leaf.column if is_float and type(leaf.value) in (int, float) else None
    return leaf.itself() if column is None else column.clone()


def _is_number(leaf: object) -> bool:
    return not isinstance(leaf, torch.Tensor) or leaf.ndim == 0


def _stacked(data: Any) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        parts = [_stacked(part) for part in data]
        kind = functools.reduce(torch.promote_types, (part.dtype for part in parts))
        return torch.stack([part.to(kind) for part in parts])
    return data.detach() if isinstance(data, torch.Tensor) else _tensor_of_torch(data)
