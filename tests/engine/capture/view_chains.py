"""Random chains of views of one tensor, with writes in place through them.

What a seed gives depends on shapes alone, so that PyTorch and a captured program go the same way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SHAPE = (6, 4)
"""Shape of the tensor that a chain starts from."""

WRITES_A_CHAIN = 3

DRAWS = 400
"""Random numbers of a chain, at most."""


class Chance:
    """Choices by numbers that were drawn before the step: a step makes no generators of Python's."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)

    def randrange(self, stop: int) -> int:
        return int(self.random() * stop)

    def randint(self, first: int, last: int) -> int:
        return first + self.randrange(last - first + 1)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.randrange(len(items))]

    def sample(self, items: Sequence[Any], count: int) -> list[Any]:
        left = list(items)
        return [left.pop(self.randrange(len(left))) for _ in range(count)]


def chain(seed: int) -> Callable[[Tensor], Tensor]:
    """A function of a tensor of SHAPE: it copies it, writes into views of the copy, and reads views and copy."""

    draws = random.Random(seed)
    numbers = tuple(draws.random() for _ in range(DRAWS))

    def function(x: Tensor) -> Tensor:
        chance = Chance(numbers)
        whole = _copy(chance, x)
        views = [whole]
        for _ in range(WRITES_A_CHAIN):
            view = chance.choice(views)
            for _ in range(chance.randint(1, 3)):
                view = _view(chance, view)
                views.append(view)
            _write(chance, view, x)
        # PyTorch differentiates through one of several views of one operator only if no write follows.
        read = [whole, _piece(chance, chance.choice(views)), *(chance.choice(views) for _ in range(2))]
        weights = [torch.arange(1.0, view.numel() + 1, dtype=x.dtype).reshape(view.shape) for view in read]
        return torch.stack([(view * view * weight).sum() for view, weight in zip(read, weights, strict=True)]).sum()

    return function


def _copy(chance: Chance, x: Tensor) -> Tensor:
    """In memory row by row, column by column, or as a part of something larger."""
    kind = chance.choice(["plain", "transposed", "part", "column"])
    if kind == "transposed":
        return x.t().clone()
    if kind == "part":
        return torch.cat([x, x])[2:8]
    return x.reshape(-1).clone().view(2, 3, 4) if kind == "column" else x.clone()


def _view(chance: Chance, x: Tensor) -> Tensor:
    """A view that PyTorch allows for this shape."""
    rank = x.ndim
    kinds = ["unsqueeze", "view_as", "alias", "squeeze", "as_strided"]
    if rank:
        kinds += ["select", "slice", "slice", "steps", "unfold", "narrow", "flatten", "swap"]
    if rank > 1:
        kinds += ["transpose", "movedim", "diagonal", "permute", "select_of_transpose", "mT"]
    kind = chance.choice(kinds)
    dim = chance.randrange(rank) if rank else 0
    size = x.shape[dim] if rank else 1
    match kind:
        case "unsqueeze":
            return x.unsqueeze(chance.randint(0, rank))
        case "view_as":
            return x.view_as(x)
        case "alias":
            return x.detach() if chance.random() < 0.1 else x[...]
        case "squeeze":
            return x.squeeze()
        case "select":
            return x.select(dim, chance.randint(-size, size - 1)) if size else x
        case "slice":
            first = chance.randint(0, max(size - 1, 0))
            return x[(slice(None),) * dim + (slice(first, chance.randint(first, size) + 1),)]
        case "steps":
            return x[(slice(None),) * dim + (slice(chance.randint(0, 1), None, chance.randint(2, 3)),)]
        case "narrow":
            return x.narrow(dim, 0, chance.randint(0, size))
        case "unfold":
            width = chance.randint(1, size) if size else 0
            return x.unfold(dim, width, chance.randint(1, 3)) if size else x
        case "flatten":
            return x.view(-1) if x.is_contiguous() else x.flatten(0, 0)
        case "swap":
            return x.swapaxes(0, -1)
        case "transpose":
            return x.transpose(chance.randrange(rank), chance.randint(-rank, rank - 1))
        case "mT":
            return x.mT
        case "movedim":
            return x.movedim(chance.randrange(rank), chance.randrange(rank))
        case "permute":
            return x.permute(chance.sample(range(rank), rank))
        case "diagonal":
            return x.diagonal(chance.randint(-1, 1), 0, chance.choice([1, -1]))
        case "select_of_transpose":
            return x.transpose(0, 1)[chance.randrange(x.shape[1])] if x.shape[1] else x
        case _:
            return _strided(chance, x)


def _piece(chance: Chance, x: Tensor) -> Tensor:
    """One of several views that one operator gives."""
    if not x.ndim:
        return x
    dim = chance.randrange(x.ndim)
    pieces = [x.chunk(2, dim), x.split(2, dim), x.unbind(dim), x.tensor_split(2, dim)]
    return chance.choice(chance.choice(pieces) or (x,))


def _strided(chance: Chance, x: Tensor) -> Tensor:
    """A view by as_strided of the elements that the tensor has."""
    spread = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    if not x.numel() or not x.is_contiguous():
        return torch.as_strided(x, x.shape, x.stride())
    rows, step = chance.randint(1, 3), chance.randint(1, 4)
    columns = chance.randint(1, 3)
    start = chance.randint(0, 2)
    if start + (rows - 1) * step + columns - 1 > spread:
        return torch.as_strided(x, (x.numel(),), (1,))
    # Rows overlap where the step is shorter than a row; where columns lie apart, the view is the transposed one.
    if chance.random() < 0.3:
        return torch.as_strided(x, (columns, rows), (1, step), x.storage_offset() + start)
    return torch.as_strided(x, (rows, columns), (step, 1), x.storage_offset() + start)


def _write(chance: Chance, view: Tensor, x: Tensor) -> None:
    source = (x.sum() * 0.1 + torch.arange(view.numel(), dtype=x.dtype)).reshape(view.shape)
    rank, size = view.ndim, view.shape[0] if view.ndim else 0
    kinds = ["fill", "add", "mul", "copy", "masked_fill", "clamp", "relu", "zero", "neg", "assign", "addcmul"]
    if rank and size:
        kinds += ["index_put", "index_add", "scatter", "index_fill", "index_copy"]
    place = torch.tensor([chance.randrange(size)]) if rank and size else torch.tensor([0])
    match chance.choice(kinds):
        case "fill":
            view.fill_(0.5)
        case "add":
            view.add_(source, alpha=2)
        case "mul":
            view.mul_(-1.5)
        case "copy":
            view.copy_(source)
        case "masked_fill":
            view.masked_fill_(view.detach() > 0.2, 0.25)
        case "clamp":
            view.clamp_(-0.4, 0.3)
        case "relu":
            torch.relu_(view)
        case "zero":
            view.zero_()
        case "neg":
            view.neg_()
        case "assign":
            view[...] = source * 0.5
        case "addcmul":
            view.addcmul_(source, source, value=0.01)
        case "index_put":
            view.index_put_((place,), source[:1] + 1)
        case "index_add":
            view.index_add_(0, place, source[:1] + 1)
        case "index_fill":
            view.index_fill_(0, place, 0.75)
        case "index_copy":
            view.index_copy_(0, place, source[:1] - 1)
        case "scatter":
            view.scatter_(0, torch.zeros((1, *view.shape[1:]), dtype=torch.int64) + place, 0.75)
