"""Max pooling over the last two axes, and its gradient over two or three."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from roundlog.capture.builder import Value
from roundlog.capture.rules.movement import pad as padded
from roundlog.capture.rules.table import Context, rule


def several(items: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """An option of every axis, which may be given once for all."""
    given = (items,) if isinstance(items, int) else tuple(items)
    return given * axes if len(given) == 1 else given


def overhang(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Elements by which the last window reaches beyond the padding: `ceil_mode` allows it if the window starts
    inside."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode or span % stride == 0:
        return 0
    outputs = -(-span // stride) + 1
    if (outputs - 1) * stride >= size + padding:
        return 0
    return (outputs - 1) * stride - span


@rule("max_pool2d_with_indices")
def max_pool(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    if c.rank(x) == 3:
        whole = max_pool(c, c.builder.reshape(x, (1, *c.shape(x))), kernel, stride, padding, dilation, ceil_mode)
        return c.squeeze(whole[0], [0]), c.squeeze(whole[1], [0])
    k, s, p, d = (several(items, 2) for items in (kernel, stride or kernel, padding, dilation))
    n, channels, height, width = c.shape(x)
    extra = [overhang(c.shape(x)[2 + a], k[a], s[a], p[a], d[a], ceil_mode) for a in (0, 1)]
    # Nothing is chosen where the windows overhang: the elements before it are larger, or as large and earlier.
    wider = padded(c, x, [0] * 4, [0, 0, *extra], float("-inf"))
    index = c.op("max_pool_index", wider, kernel=k, stride=s, padding=p, dilation=d)
    if any(extra):
        # Where an element of the wider plane stands in the plane.
        plane = c.builder.reshape(c.iota(height * width), (height, width))
        places = padded(c, plane, [0, 0], extra)
        index = c.op("take", c.builder.reshape(places, (prod(c.shape(places)),)), index)
    windows = c.shape(index)[2:]
    planes = c.builder.reshape(x, (n, channels, height * width))
    flat = c.builder.reshape(index, (n, channels, prod(windows)))
    largest = c.op("gather", planes, flat, dim=2)
    return c.builder.reshape(largest, (n, channels, *windows)), index


@rule(
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
)
def max_pool_backward(c: Context, g: Value, x: Value, *options: object) -> Value:
    """Gradient by the indices, which are the last of the options; the others do not count."""
    index = options[-1] if options else None
    assert isinstance(index, Value)
    axes = 2 if "2d" in str(c.node.target) else 3
    outer, sizes = c.shape(x)[:-axes], c.shape(x)[-axes:]
    count = prod(c.shape(g)[-axes:])
    planes, flat = (c.builder.reshape(part, (prod(outer), count)) for part in (g, index))
    back = c.op("scatter_add", planes, flat, dim=1, size=prod(sizes))
    return c.builder.reshape(back, (*outer, *sizes))


@rule("adaptive_max_pool2d")
def adaptive_max_pool(c: Context, x: Value, outputs: Sequence[int]) -> tuple[Value, Value]:
    """Maxima of windows of one size, and their indices; other sizes are taken apart before any rule sees them."""
    sizes = c.shape(x)[-2:]
    return max_pool(c, x, [size // output for size, output in zip(sizes, outputs, strict=True)])
