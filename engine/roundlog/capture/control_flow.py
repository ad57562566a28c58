"""Python decisions inside a traced step: those about constants are taken, those about computed values are refused with
a hint at what to do."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from roundlog.capture.constants import Constants

_DECIDING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)

_HINTS = (
    ("torch/distributions/", "", "", "pass validate_args=False to the distribution"),
    ("", "_detect_is_causal_mask", "", "pass is_causal=True or is_causal=False beside the mask"),
    ("", "", "layerdrop", "set the model's layerdrop to 0"),
    ("", "_compute_mask_indices", "", "switch off the model's SpecAugment (apply_spec_augment=False)"),
    ("", "", "mask_time_prob", "switch off the model's SpecAugment (apply_spec_augment=False)"),
    (
        "torch/nn/utils/rnn.py",
        "",
        "",
        "packed sequences are not supported: run the layer on padded ones and mask the loss",
    ),
)
"""(part of a file's path, a function's name, part of a line, what to do)."""


class KnownValues(TorchDispatchMode):
    """While a step is traced: a tensor that depends on no parameter, no data and no random number can be looked at, by
    `if`, `.item()` or `torch.equal`."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DECIDING and kwargs in (None, {}):
            values = [_value(x) for x in args]
            if all(value is not None for value in values):
                with _disable_current_modes():
                    return func(*values)
        return func(*args, **(kwargs or {}))


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a traced tensor holds, if that is known."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)  # type: ignore[arg-type]
    node = getattr(getattr(slot, "proxy", None), "node", None)
    if mode is None or not isinstance(node, fx.Node):
        return None
    constants = Constants(mode.tracer.root, mode.tracer.graph)
    with _disable_current_modes():
        value = constants.evaluate(node) if node in constants else None
    return value if isinstance(value, torch.Tensor) else None


def hint_of(error: BaseException) -> str | None:
    """What to do about code that cannot be traced, where that is known."""
    for path, function, line in _frames(error):
        for in_path, name, in_line, hint in _HINTS:
            if in_path in path and name in ("", function) and in_line in line:
                return hint
    return None


def _frames(error: BaseException) -> Iterator[tuple[str, str, str]]:
    """(file, function, line) from the outermost call to the innermost."""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, code.co_name, linecache.getline(code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
