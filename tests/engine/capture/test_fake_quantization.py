"""Training that knows of a quantization to come: what PyTorch's operators for it give is what a program gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.ao.quantization import FakeQuantize, MinMaxObserver

from tests.engine.capture.calls import linear_through

SCALE, ZERO = torch.tensor([0.05]), torch.tensor([3], dtype=torch.int32)

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda y: torch.fake_quantize_per_tensor_affine(y, 0.05, 3, -8, 7),
    "tensors": lambda y: torch.fake_quantize_per_tensor_affine(y, SCALE, ZERO, -8, 7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_rounded_as_pytorch_rounds_them(kind: str) -> None:
    linear_through(lambda x: KINDS[kind](torch.tanh(x)) + x)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_module_that_is_switched_on_or_off_is_followed(enabled: bool) -> None:
    quantize = FakeQuantize(MinMaxObserver, quant_min=0, quant_max=15)
    quantize(torch.linspace(-1, 1, 6))
    quantize.disable_observer()
    quantize.enable_fake_quant(enabled)
    linear_through(torch.nn.Sequential(torch.nn.Tanh(), quantize))
