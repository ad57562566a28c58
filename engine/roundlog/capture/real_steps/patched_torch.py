"""Changes of PyTorch and of the process while a step is taken, or traced: fused kernels, autocast, oneDNN, threads,
garbage collection, PyTorch's log; and parts of PyTorch that no trace can follow, written anew for the time of a trace.
The comparison with the user's own step runs PyTorch's."""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as checkpoint
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.arithmetic import is_short
from roundlog.capture.draws import drawn_by_torch
from roundlog.capture.errors import CaptureError, place_of_call


def refuse_autocast(where: str, devices: Iterable[str]) -> None:
    """Raises CaptureError if autocast is on for one of these devices, which no job would know of."""
    if any(torch.is_autocast_enabled(device) for device in devices):
        raise CaptureError(
            f"torch.autocast is left on {where}: switch it off there (torch.set_autocast_enabled, or the end of its "
            '`with`), and put `with torch.autocast("cpu", dtype=torch.bfloat16):` inside the loss, around all of it'
        )


def plain_model(model: nn.Module) -> nn.Module:
    """The model itself, if it is wrapped by `torch.compile`."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


@contextmanager
def without_onednn() -> Iterator[None]:
    """Switches oneDNN off, whose recurrent layers are one operator."""
    was_enabled = torch._C._get_mkldnn_enabled()
    # torch.backends.mkldnn.flags would set other options too, and warn of them.
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


@contextmanager
def eager_torch() -> Iterator[None]:
    """Switches off what computes several operators as one (compiled and scripted functions, fused attention), and the
    checks of `torch.distributions`, which look at values and change nothing; refuses LSTMs in BF16. Python's random
    numbers are drawn by torch."""
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with (
            torch.compiler.set_stance("force_eager"),
            torch._dynamo.config.patch(error_on_nested_fx_trace=False),
            torch.jit.optimized_execution(False),  # type: ignore[attr-defined]
            sdpa_kernel(SDPBackend.MATH),
            drawn_by_torch(),
            mock.patch.object(torch._VF, "lstm", _lstm),
            _with_all_masks(),
        ):
            yield
    finally:
        Distribution.set_default_validate_args(checks)


@contextmanager
def _with_all_masks() -> Iterator[None]:
    """Has transformers keep a mask that masks nothing: it looks at a mask's values, where a program cannot."""
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_tracing", None)
    if asked is None:
        yield
        return
    masks.is_tracing = lambda tensor=None: True  # type: ignore[union-attr]
    try:
        yield
    finally:
        masks.is_tracing = asked  # type: ignore[union-attr]


@contextmanager
def noting_threads(threads: list[threading.Thread]) -> Iterator[None]:
    """Appends the threads that are started meanwhile, but for those of the engine's kernels."""
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if not thread.name.startswith("roundlog-kernel"):
            threads.append(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def without_collection() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off, which would look again and again at all nodes that there are."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def silent_fake_tensors() -> Iterator[None]:
    """Silences PyTorch's log of failures of fake tensors, which it writes with tracebacks before it raises them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def traced_torch() -> Iterator[None]:
    """Replace these parts of PyTorch."""
    with ExitStack() as stack:
        for owner, name, function in (
            (nn.Module, "_apply", _convert),
            (torch, "tensor", _tensor),
            (torch.Tensor, "__format__", _formatted_tensor),
            *((kind, name, _shown) for kind in (torch.SymFloat, torch.SymInt) for name in ("__str__", "__format__")),
            (torch.autocast, "__init__", _make_autocast),
            (torch.autocast, "__enter__", _enter_autocast),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        stack.enter_context(without_checkpoints())
        yield
    torch.clear_autocast_cache()


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Keep what checkpoints compute, in place of computing it again."""
    with (
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _kept),
        mock.patch.object(checkpoint, "CheckpointFunction", _Kept),
    ):
        yield


def _kept(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


class _Kept:
    """In place of a checkpoint that computes again: what it computes is kept."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _convert(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    if any(function(x) is not x for x in (*module.parameters(), *module.buffers())):
        raise CaptureError(f"the step converts a module, {type(module).__name__}{place_of_call()}: convert it before")
    return module


_lstm_of_torch = torch._VF.lstm


def _lstm(x: Tensor, *others: Any) -> Any:
    if is_short(x.dtype) or torch.is_autocast_enabled("cpu"):  # one kernel, whose roundings no trace can see
        raise CaptureError(
            f"an LSTM computes in bfloat16{place_of_call()}, where PyTorch has one kernel for all of it: call "
            "nn.LSTMCell step by step, or keep its weights in float32 and call it with .float() before, under "
            'torch.autocast("cpu", enabled=False) and torch.backends.mkldnn.flags(enabled=False)'
        )
    return _lstm_of_torch(x, *others)


_tensor_of_torch = torch.tensor


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """A tensor of a list of traced numbers: PyTorch would ask each of them for its value."""
    if not isinstance(data, (list, tuple)) or not any(isinstance(x, FakeTensor) for x in tree_leaves(data)):
        return _tensor_of_torch(data, dtype=dtype, **options)
    found = _stacked(data)
    found = found if dtype is None else found.to(dtype)
    return found.requires_grad_() if options.get("requires_grad") else found


def _stacked(data: Any) -> Tensor:
    if not isinstance(data, (list, tuple)):
        return data.detach() if isinstance(data, Tensor) else _tensor_of_torch(data)
    parts = [_stacked(part) for part in data]
    kind = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.stack([part.to(kind) for part in parts])


def _shown(value: object, specification: str = "") -> str:
    """A number that the step computes, where it is printed."""
    return "?"


_format_of_torch = torch.Tensor.__format__


def _formatted_tensor(tensor: Tensor, specification: str) -> str:
    if isinstance(tensor, FakeTensor):
        return _shown(tensor)
    return str(_format_of_torch(tensor, specification))  # type: ignore[no-untyped-call]


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
    raise CaptureError(f"torch.autocast {what}{place_of_call()}, and a step is captured {instead}")


class OutVariants(TorchDispatchMode):
    """While this is active, `op(x, out=y)` is traced as `y.copy_(op(x))`, so that nothing after it has to know of
    results that are written. Raises CaptureError for a result of another shape than `out`, which PyTorch would give
    other memory to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        arguments = func._schema.arguments if isinstance(func, OpOverload) else []
        written = [options.pop(argument.name) for argument in arguments if argument.is_out]
        if not written:
            return func(*args, **options)
        # Sums and new tensors are computed in the dtype of the tensor that they are written into.
        is_new = not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, options)))
        if is_new or any(argument.name == "dtype" for argument in arguments):
            options["dtype"] = options.get("dtype") or written[0].dtype
        if is_new:
            options["device"] = written[0].device
        results = func.overloadpacket(*args, **options)  # type: ignore[attr-defined]
        for target, result in zip(written, [results] if len(written) == 1 else results, strict=True):
            if target.shape != result.shape:
                raise CaptureError(
                    f"the operator {func}{place_of_call()} writes a result of shape {list(result.shape)} into an out= "
                    f"of shape {list(target.shape)}: give it an out= of the result's shape, or take what it returns"
                )
            target.copy_(result)
        return written[0] if len(written) == 1 else tuple(written)
