"""Elementary functions of one FP32 number, correctly rounded."""

from __future__ import annotations

from collections.abc import Callable

import torch

from roundlog.arithmetic import FULL_BITS, round_function
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import elementary
from roundlog.kernels.marking import AmbiguousPart, mark_flat
from roundlog.kernels.scratch import empty, scratch
from roundlog.kernels.threads import one_by_one
from roundlog.operators.bounds import Ambiguous, Bound, RelativeBound
from roundlog.operators.registry import (
    Attributes,
    Inexact,
    Tensors,
    Types,
    need_attributes,
    need_inputs,
    register,
)
from roundlog.program import DType, TensorType

RELATIVE_BOUND = 2.0**-49
"""Error that a vendor's FP64 function may have: 8 ulp. SLEEF and MKL promise 1 ulp (their high-accuracy variants, which
PyTorch uses), CUDA's math library at most 2 for these; glibc is below 1 except erf at 1. For sin and cos they promise
it of every argument, however large: by Payne and Hanek's reduction. Of the loops that stand in for them on the CPU
(`roundlog.kernels.elementary`) it is proven."""

ABSOLUTE_BOUND = 2.0**-1000
"""Magnitude below which FP64 itself underflows, far below anything that FP32 can see."""


_BLOCK = 1 << 16
"""Elements that are widened, computed and rounded while they are in the cache."""


class ElementaryFunction(Inexact):
    function: Callable[..., torch.Tensor]
    """Takes the FP64 argument, and `out` as torch's functions do."""

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes)
        return inputs[0]

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return type(self).function(inputs[0].to(torch.float64))

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return RelativeBound(RELATIVE_BOUND, ABSOLUTE_BOUND)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x = inputs[0]
        if x.device.type != "cpu" or not x.numel():
            return super().certify(inputs, attributes, scale)
        rounded = empty(x.shape, torch.float32)
        source, out, factor = x.reshape(-1), rounded.view(-1).numpy(), interval_factor(scale)
        if self.name in elementary.FUNCTIONS:
            near = elementary.mark_function(
                self.name, source.numpy(), factor, out, relative=RELATIVE_BOUND, absolute=ABSOLUTE_BOUND
            )
            return rounded, Ambiguous.collect(near)
        found: list[AmbiguousPart] = []

        def block(number: int) -> None:
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, len(source))
            y = scratch("y", last - first)
            y.copy_(source[first:last])
            type(self).function(y, out=y)
            target = out[first:last]
            found.append(
                mark_flat(
                    y.numpy(), None, factor, target, first=first, relative=RELATIVE_BOUND, absolute=ABSOLUTE_BOUND
                )
            )

        # Such a function costs about eight times what reading its argument does.
        one_by_one(block, -(-len(source) // _BLOCK), 8 * len(source))
        return rounded, Ambiguous.collect(found)

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, bits: int = FULL_BITS
    ) -> torch.Tensor:
        x = inputs[0]
        chosen = x.reshape(-1)[elements.to(x.device)].cpu().numpy()
        return torch.from_numpy(round_function(self.name, chosen, bits))


def _define(name: str, doc: str, function: Callable[..., torch.Tensor]) -> None:
    class Defined(ElementaryFunction):
        __doc__ = doc

    Defined.__name__ = Defined.__qualname__ = name.title()
    Defined.name, Defined.function = name, staticmethod(function)
    register(Defined)


_define("exp", "exp(x): e to the power of x, FP32.", torch.exp)
_define("expm1", "expm1(x): e to the power of x, less one, FP32.", torch.expm1)
_define("log", "log(x): the natural logarithm, FP32; x > 0.", torch.log)
_define("log1p", "log1p(x): the natural logarithm of 1 + x, FP32; x > -1.", torch.log1p)
_define("tanh", "tanh(x): the hyperbolic tangent, FP32.", torch.tanh)
_define("erf", "erf(x): the error function, FP32.", torch.erf)
_define("sin", "sin(x): the sine of x radians, FP32.", torch.sin)
_define("cos", "cos(x): the cosine of x radians, FP32.", torch.cos)
