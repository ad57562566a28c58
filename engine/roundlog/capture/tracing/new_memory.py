"""Assignments to a tensor's `.data`, which no operator shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import place_of_call


class NoNewMemory(TorchFunctionMode):
    """While this is active, nobody gives a tensor other memory by `tensor.data = ...`, which no operator shows."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[CaptureError] = []
        """Error that was raised, whether or not the user's code has caught it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            self.refused.append(
                CaptureError(
                    f"the step assigns to a tensor's .data{place_of_call()}: write into it by .copy_() under "
                    "torch.no_grad(), or compute what is needed from it (torch.nn.utils.parametrize)"
                )
            )
            raise self.refused[-1]
        return func(*args, **(kwargs or {}))
