"""Operators that copy bits. Only gather and take look at values, and only at indices.

Max pooling is the index of the largest element: its value is then a gather, its gradient a scatter_add."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from roundlog.operators.registry import (
    Attributes,
    Direct,
    Tensors,
    Types,
    axis,
    broadcast,
    integer,
    ints,
    register,
)
from roundlog.program import ProgramError
from roundlog.program.program_text import MAX_RANK


@register("reshape")
class Reshape(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        shape = ints(attributes, "shape")
        # The rank first: the product of a stranger's 65,536 sizes takes seconds.
        if len(shape) > MAX_RANK or any(size < 0 for size in shape) or prod(shape) != inputs[0].numel:
            raise ProgramError(f"cannot view {inputs[0]} as {list(shape)}")
        return shape

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0].reshape(ints(attributes, "shape"))


@register("permute")
class Permute(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        dims = ints(attributes, "dims")
        if sorted(dims) != list(range(len(inputs[0].shape))):
            raise ProgramError(f"dims {list(dims)} do not permute the axes of {inputs[0]}")
        return tuple(inputs[0].shape[dim] for dim in dims)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0].permute(ints(attributes, "dims"))


@register("expand")
class Expand(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        shape = ints(attributes, "shape")
        if any(size < 0 for size in shape) or broadcast(inputs[0].shape, shape) != shape:
            raise ProgramError(f"{inputs[0]} does not broadcast to {list(shape)}")
        return shape

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0].expand(ints(attributes, "shape"))


@register("slice")
class Slice(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x = inputs[0]
        dim = axis(attributes, len(x.shape))
        start, stop, step = (integer(attributes, name) for name in ("start", "stop", "step"))
        if not 0 <= start <= stop <= x.shape[dim] or step < 1:
            raise ProgramError(f"slice {start}:{stop}:{step} does not fit axis {dim} of {x}")
        return (*x.shape[:dim], len(range(start, stop, step)), *x.shape[dim + 1 :])

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        start, stop, step = (integer(attributes, name) for name in ("start", "stop", "step"))
        dim = integer(attributes, "dim")
        # PyTorch adds the step to the stop in int64: a step near 2^63 would wrap round.
        step = min(step, max(stop - start, 1))
        return inputs[0][(slice(None),) * dim + (slice(start, stop, step),)]


@register("flip")
class Flip(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        axis(attributes, len(inputs[0].shape))
        return inputs[0].shape

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0].flip(integer(attributes, "dim"))


MAX_JOINED = 64
"""Inputs of one `cat`: what a contract reads of an operator is bounded. Longer lists are joined in groups."""


@register("cat")
class Cat(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        if not inputs:
            raise ProgramError("takes at least one input")
        if len(inputs) > MAX_JOINED:
            raise ProgramError(f"joins {len(inputs)} inputs, more than {MAX_JOINED}: join them in groups")
        first = inputs[0]
        dim = axis(attributes, len(first.shape))
        for kind in inputs[1:]:
            same = len(kind.shape) == len(first.shape) and all(
                a == b for d, (a, b) in enumerate(zip(kind.shape, first.shape, strict=True)) if d != dim
            )
            if not same or kind.dtype != first.dtype:
                raise ProgramError(f"cannot join {kind} to {first} along axis {dim}")
        total = sum(kind.shape[dim] for kind in inputs)
        return (*first.shape[:dim], total, *first.shape[dim + 1 :])

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return torch.cat(list(inputs), dim=integer(attributes, "dim"))


@register("pad")
class Pad(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x, fill = inputs
        low, high = ints(attributes, "low"), ints(attributes, "high")
        if fill.shape:
            raise ProgramError(f"the fill is {fill}, expected a scalar")
        if len(low) != len(x.shape) or len(high) != len(x.shape) or min((*low, *high), default=0) < 0:
            raise ProgramError(f"padding {list(low)}, {list(high)} does not fit {x}")
        return tuple(a + b + c for a, b, c in zip(low, x.shape, high, strict=True))

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, fill = inputs
        low, high = ints(attributes, "low"), ints(attributes, "high")
        shape = [a + b + c for a, b, c in zip(low, x.shape, high, strict=True)]
        result = fill.expand(shape).clone()
        result[tuple(slice(a, a + size) for a, size in zip(low, x.shape, strict=True))] = x
        return result


@register("gather")
class Gather(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x, index = inputs
        dim = axis(attributes, len(x.shape))
        if len(index.shape) != len(x.shape) or any(
            a != b for d, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if d != dim
        ):
            raise ProgramError(f"cannot gather from {x} by {index} along axis {dim}")
        return index.shape

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, index = inputs
        dim = integer(attributes, "dim")
        outside = outside_of(index, x.shape[dim])
        if outside is None:
            return torch.gather(x, dim, index)
        lines = x if x.shape[dim] else x.new_zeros(index.shape)
        output = torch.gather(lines, dim, index.masked_fill(outside, 0))
        raise OutOfRangeError(index, x.shape[dim], int(outside.reshape(-1).nonzero()[0]), output)


@register("take")
class Take(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x, index = inputs
        if not x.shape:
            raise ProgramError("takes rows of a scalar")
        return (*index.shape, *x.shape[1:])

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, index = inputs
        shape = (*index.shape, *x.shape[1:])
        outside = outside_of(index, x.shape[0])
        if outside is None:
            return x.index_select(0, index.reshape(-1)).reshape(shape)
        rows = x if x.shape[0] else x.new_zeros((1, *x.shape[1:]))
        output = rows.index_select(0, index.masked_fill(outside, 0).reshape(-1)).reshape(shape)
        if not output.numel():
            return output
        first = int(outside.reshape(-1).nonzero()[0]) * prod(x.shape[1:])
        raise OutOfRangeError(index, x.shape[0], first, output)


class OutOfRangeError(ProgramError):
    """An index leaves its axis. element: the first of the output that has no value; output: with other values for all
    those, of no meaning."""

    def __init__(self, index: torch.Tensor, size: int, element: int, output: torch.Tensor) -> None:
        self.element = element
        self.output = output
        super().__init__(f"an index from {int(index.min())} to {int(index.max())} is not in [0, {size})")


def outside_of(index: torch.Tensor, size: int) -> torch.Tensor | None:
    """Mask of the indices that are not in [0, size), or None if they all are: a stranger's indices never reach a kernel
    unchecked."""
    if not index.numel() or (int(index.min()) >= 0 and int(index.max()) < size):
        return None
    return (index < 0) | (index >= size)


@register("max_pool_index")
class MaxPoolIndex(Direct):
    def shape(self, inputs: Types, attributes: Attributes) -> tuple[int, ...]:
        x = inputs[0]
        lists = [ints(attributes, name) for name in ("kernel", "stride", "padding", "dilation")]
        if len(x.shape) != 4 or any(len(item) != 2 for item in lists):
            raise ProgramError(f"pools {x} by windows {lists}, expected four axes and pairs")
        if min(x.shape) < 1:
            raise ProgramError(f"pools {x}, which is empty")
        if max(max(item) for item in lists) >= 2**20:
            raise ProgramError("has a kernel, stride, padding or dilation of a million or more")
        sizes = []
        for a, (kernel, stride, padding, dilation) in enumerate(zip(*lists, strict=True)):
            span = x.shape[2 + a] + 2 * padding - dilation * (kernel - 1) - 1
            # Padding of at most half a window, no taps so far apart that they can miss the input from outside: then
            # every window holds at least one real element.
            missed = padding > 0 and dilation > x.shape[2 + a]
            if min(kernel, stride, dilation) < 1 or not 0 <= padding <= kernel // 2 or span < 0 or missed:
                raise ProgramError(f"the windows {lists} do not fit {x}")
            sizes.append(span // stride + 1)
        return (*x.shape[:2], *sizes)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        kernel, stride, padding, dilation = (
            list(ints(attributes, name)) for name in ("kernel", "stride", "padding", "dilation")
        )

        def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, places = F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
            return values, places

        x = inputs[0]
        values, places = largest(x)
        if not bool(values.isnan().any()):
            return places
        # PyTorch takes the last NaN of a window.
        any_nan, first_nan = largest(x.isnan().to(torch.float32))
        return torch.where(any_nan > 0, first_nan, places)
