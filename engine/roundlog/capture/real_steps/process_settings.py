"""Settings of the process while a step is taken by PyTorch, or traced: fused kernels, autocast, oneDNN, threads,
garbage collection, PyTorch's log."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributions import Distribution
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundlog.capture.draws import drawn_by_torch
from roundlog.capture.errors import CaptureError


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
def plainly() -> Iterator[None]:
    """Switches off what computes several operators as one (compiled and scripted functions, fused attention), and the
    checks of `torch.distributions`, which look at values and change nothing. Python's random numbers are drawn by
    torch."""
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with (
            torch.compiler.set_stance("force_eager"),
            torch._dynamo.config.patch(error_on_nested_fx_trace=False),
            torch.jit.optimized_execution(False),  # type: ignore[attr-defined]
            sdpa_kernel(SDPBackend.MATH),
            drawn_by_torch(),
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
def quietly() -> Iterator[None]:
    """Silences PyTorch's log of failures of fake tensors, which it writes with tracebacks before it raises them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled
