"""Elementary functions of one FP32 number, correctly rounded."""

from __future__ import annotations

from collections.abc import Callable

import torch

from roundlog.arithmetic import round_function
from roundlog.arithmetic.formats import interval_factor
from roundlog.definitions import Family, of_family
from roundlog.kernels import elementary
from roundlog.kernels.marking import AmbiguousPart, mark_flat
from roundlog.kernels.scratch import empty, scratch
from roundlog.kernels.threads import one_by_one
from roundlog.number_format import FLOAT32, Format
from roundlog.operators.bounds import Ambiguous, Bound, RelativeBound
from roundlog.operators.registry import (
    Attributes,
    Inexact,
    Tensors,
    Types,
    enter,
)
from roundlog.program import TensorType

ABSOLUTE_BOUND = 2.0**-1000
"""Magnitude below which FP64 itself underflows, far below anything that FP32 can see."""


_BLOCK = 1 << 16
"""Elements that are widened, computed and rounded while they are in the cache."""


class ElementaryFunction(Inexact):
    """An elementary function, by a function of PyTorch's of the FP64 argument, which takes `out`, too."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self._function = function

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        return inputs[0]

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        # PyTorch's functions give a transposed input's value transposed; what rounds it takes it element after element.
        return self._function(inputs[0].to(torch.float64)).contiguous()

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return RelativeBound(self.definition.relative_error, ABSOLUTE_BOUND)

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        x = inputs[0]
        if x.device.type != "cpu" or not x.numel():
            return super().certify(inputs, attributes, scale)
        rounded, relative = empty(x.shape, torch.float32), self.definition.relative_error
        source, out, factor = x.reshape(-1), rounded.view(-1).numpy(), interval_factor(scale)
        if self.name in elementary.FUNCTIONS:
            near = elementary.mark_function(
                self.name, source.numpy(), factor, out, relative=relative, absolute=ABSOLUTE_BOUND
            )
            return rounded, Ambiguous.collect(near)
        found: list[AmbiguousPart] = []

        def block(number: int) -> None:
            first, last = number * _BLOCK, min((number + 1) * _BLOCK, len(source))
            y = scratch("y", last - first)
            y.copy_(source[first:last])
            self._function(y, out=y)
            target = out[first:last]
            found.append(
                mark_flat(y.numpy(), None, factor, target, first=first, relative=relative, absolute=ABSOLUTE_BOUND)
            )

        # Such a function costs about eight times what reading its argument does.
        one_by_one(block, -(-len(source) // _BLOCK), 8 * len(source))
        return rounded, Ambiguous.collect(found)

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        x = inputs[0]
        chosen = x.reshape(-1)[elements.to(x.device)].cpu().numpy()
        return torch.from_numpy(round_function(self.name, chosen, format))


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
}

for _definition in of_family(Family.FUNCTION):
    enter(ElementaryFunction(KERNELS[_definition.name]), _definition)
