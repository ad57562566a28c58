"""Elements that an operator reads for an output element and a reduction index, from its descriptor alone."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.descriptors.descriptor import Descriptor, Input


def unravel(flat: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The multi-index of a flat row-major one."""
    index = []
    for size in reversed(sizes):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return tuple(reversed(index))


def index_of(descriptor: Descriptor, element: int, term: int) -> tuple[int, ...]:
    """The iteration index of an output element, followed by the reduction index of a term. Raises IndexError."""
    if not 0 <= element < descriptor.elements:
        raise IndexError(f"there is no element {element} in an output of {descriptor.elements}")
    if not 0 <= term < descriptor.terms:
        raise IndexError(f"there is no term {term} in a reduction of {descriptor.terms}")
    return unravel(element, descriptor.iteration) + unravel(term, descriptor.reduction)


def read(item: Input, index: Sequence[int], replaced: tuple[int, int] | None = None) -> int | None:
    """The flat index of the element of `item` that an index reads, or None if the read is not valid. `replaced` is
    (view axis, coordinate), for GATHER: that coordinate comes from an index tensor."""
    flat = 0
    for axis, (size, row) in enumerate(zip(item.view, item.rows, strict=True)):
        coordinate = replaced[1] if replaced and replaced[0] == axis else row.at(index)
        if coordinate is None or not 0 <= coordinate < size:
            return None
        flat = flat * size + coordinate
    return flat
