"""Sums over the batch whose terms lie on several ranks (docs/numerics.md, "Ranks").

Every rank adds up its own terms in FP64, and sends the owners of the elements what they need of that: each owner
rounds its own share. Elements that the bound leaves in doubt are queried, and the rounded shares are gathered. Many
sums go together, since a message costs more than what is in most of them.

All ranks answer every query of an owner, by exact integers, so they query in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.execution.ranks.group import Ranks, bytes_of
from roundlog.kernels import superaccumulator
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact, Summation
from roundlog.operators.bounds import Bound, FullBound
from roundlog.operators.registry import Attributes, Tensors, operands
from roundlog.operators.summation import F32, Index, Measures, ReadPart
from roundlog.program import TensorType
from roundlog.rounding.resolve import AT_ONCE, in_doubt

RoundShare = Callable[[Inexact, int, int], torch.Tensor]
"""Rounds the elements first <= i < last of a sum, given as an operator without inputs."""


@dataclass(frozen=True, slots=True)
class BatchSum:
    """A sum over the batch, and this rank's terms of it."""

    output: TensorType
    format: Format
    operator: Summation
    attributes: Attributes
    read: ReadPart
    """Reads this rank's slices of the inputs for one part, by its number: called again and again."""
    parts: int
    """Parts of this rank, as many as keep the bound."""
    terms: int
    """Terms of the whole sum."""
    round_share: RoundShare
    reader: int | None = None
    """The only rank that reads the sum; None: every rank does."""

    def approximate(self) -> tuple[torch.Tensor, Measures]:
        """Return the approximation of this rank's terms, and their measures."""
        return self.operator.add_parts(self._operands, self.parts, self.attributes)

    def exact(self, elements: Index) -> Index:
        """Return exact sums of this rank's terms, at these elements of the output."""
        return self.operator.exact_of_parts(self._on_cpu, self.parts, self.attributes, elements)

    def _operands(self, number: int) -> list[torch.Tensor]:
        return operands(self.operator, self.read(number))

    def _on_cpu(self, number: int) -> list[torch.Tensor]:
        return [x.cpu() for x in self._operands(number)]

    def share(self, ranks: Ranks, rank: int) -> tuple[int, int]:
        """Return (first, last): a rank owns the elements first <= i < last. A single reader owns them all."""
        if self.reader is None:
            return ranks.share(self.output.numel, rank)
        return 0, self.output.numel if rank == self.reader else 0

    def is_by_element(self, x: torch.Tensor) -> bool:
        """Return whether a measure has one number for every element of the output."""
        return self.operator.by_element and x.numel() == self.output.numel


class ElementQueries:
    """The questions of all ranks about some sums. Elements are counted over all of these sums, one after another."""

    def __init__(self, ranks: Ranks, sums: Sequence[BatchSum]) -> None:
        self._ranks, self._sums = ranks, sums
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum([one.output.numel for one in sums])])
        self._ahead, self._answers = np.empty(0, np.int64), superaccumulator.new_sums(0)

    def ask_ahead(self, wanted: Sequence[Index]) -> None:
        """Ask at once about what this rank is likely to need of every sum: ascending indices of its elements. All
        ranks call it, once."""
        of_all = [start + elements for start, elements in zip(self._starts, wanted, strict=False)]
        # Hostile data may leave everything in doubt: the rest is asked for later, a part at a time.
        self._ahead = np.concatenate(of_all)[:AT_ONCE]
        _, self._answers = self._turn(self._ahead)

    def exact(self, number: int, elements: Index, format: Format) -> F32:
        """Return exact sums of these elements of a sum, at least one, rounded."""
        chosen = elements + self._starts[number]
        place = np.searchsorted(self._ahead, chosen)
        if place[-1] < len(self._ahead) and np.array_equal(self._ahead[place], chosen):
            return superaccumulator.rounded(self._answers[place], format)
        return superaccumulator.rounded(self._turn(chosen)[1], format)

    def answer_to_the_end(self) -> None:
        """Answer the other ranks' questions until they have none left."""
        while self._turn(np.empty(0, np.int64))[0]:
            pass

    def _turn(self, chosen: Index) -> tuple[bool, Index]:
        """Let every rank ask, and all answer. Return whether anybody has asked anything, and the sums of all ranks'
        terms at the elements that this one asks about."""
        ranks, sums = self._ranks, superaccumulator.new_sums(len(chosen))
        counts = [count for (count,) in ranks.numbers(len(chosen))]
        if not any(counts):
            return False, sums
        answers = [
            [torch.from_numpy(self._answer(of.numpy())).view(-1)]
            for of in ranks.gather_all(torch.from_numpy(chosen), counts)
        ]
        for answer in ranks.to_owners(answers, [sums.size] * ranks.size):
            superaccumulator.add_sums(sums, answer.numpy().reshape(sums.shape))
        return True, sums

    def _answer(self, elements: Index) -> Index:
        """Return exact sums of this rank's terms at these elements."""
        by_sum = np.split(elements, np.searchsorted(elements, self._starts[1:-1]))
        asked = [(self._sums[number], some - self._starts[number]) for number, some in enumerate(by_sum) if len(some)]
        return np.concatenate([superaccumulator.new_sums(0), *(one.exact(some) for one, some in asked)])


class Owned(Inexact):
    """The elements of a sum that one rank owns, as an operator without inputs."""

    name = "owned by a rank"

    def __init__(self, queries: ElementQueries, number: int, y: torch.Tensor, bound: Bound, first: int) -> None:
        """number: of the sum, among those that are asked about. y: f64[n], the approximations; first: the first
        element's index in the whole sum."""
        self._queries, self._number = queries, number
        self._y, self._bound, self._first = y, bound, first

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self._y

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self._bound

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        return torch.from_numpy(self._queries.exact(self._number, elements.numpy() + self._first, format))


def sums_over(ranks: Ranks, sums: Sequence[BatchSum]) -> list[torch.Tensor]:
    """Return the sums of all ranks' terms, rounded, of the outputs' shapes. Where only another rank reads a sum, its
    numbers mean nothing. All ranks call it, with the same sums."""
    queries = ElementQueries(ranks, sums)
    owned: list[Owned | None] = []
    wanted = []
    for number, (one, found) in enumerate(zip(sums, _reduce_to_owners(ranks, sums), strict=True)):
        first, _ = one.share(ranks, ranks.rank)
        owned.append(None if found is None else Owned(queries, number, *found, first))
        nothing = np.empty(0, np.int64)
        wanted.append(nothing if owned[-1] is None else first + in_doubt(owned[-1], (), {}, one.format))
    queries.ask_ahead(wanted)
    shares = []
    for one, owns in zip(sums, owned, strict=True):
        first, last = one.share(ranks, ranks.rank)
        if owns is None or first == last:
            shares.append(torch.empty(0, dtype=one.output.dtype.torch_dtype, device=ranks.device))
        else:
            shares.append(one.round_share(owns, first, last))
    queries.answer_to_the_end()
    shared = [number for number, one in enumerate(sums) if one.reader is None]
    gathered = _gather(ranks, [sums[number] for number in shared], [shares[number] for number in shared])
    whole = dict(zip(shared, gathered, strict=True))
    for number, (one, share) in enumerate(zip(sums, shares, strict=True)):
        if one.reader is not None:
            # Elsewhere than on its reader, a tensor of its shape without memory.
            shape = one.output.shape
            whole[number] = share.reshape(shape) if ranks.rank == one.reader else share.new_empty(()).expand(shape)
    return [whole[number] for number in range(len(sums))]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what one rank owns: this rank's numbers, which become those of all."""

    numbers: torch.Tensor
    """Contiguous, of eight bytes each."""
    join: Callable[..., torch.Tensor]
    """Joins two ranks' numbers."""


def _reduce_to_owners(ranks: Ranks, sums: Sequence[BatchSum]) -> Iterator[tuple[torch.Tensor, Bound] | None]:
    """Yield the approximations, f64[n], and the bound of the n elements that this rank owns, of every sum; None if
    another rank reads the sum."""
    messages: list[list[torch.Tensor]] = [[] for _ in range(ranks.size)]
    own: list[list[_Part]] = []
    for one in sums:
        y, measures = one.approximate()
        own.append([])
        for rank in range(ranks.size) if one.reader is None else (one.reader,):
            share = slice(*one.share(ranks, rank))
            by_element = [True, *map(one.is_by_element, measures)]
            parts = [x.reshape(-1)[share] if cut else x for x, cut in zip((y, *measures), by_element, strict=True)]
            if rank != ranks.rank:
                messages[rank] += [part.reshape(-1) for part in parts]
                continue
            for position, (part, cut) in enumerate(zip(parts, by_element, strict=True)):
                # The approximation comes first, and adds up. What every owner gets is sent on while this is joined.
                join = torch.minimum if position - 1 in one.operator.least else torch.add
                own[-1].append(_Part(part if cut else part.clone(memory_format=torch.contiguous_format), join))
    del y, measures, parts
    _reduce(ranks, messages, [part for parts in own for part in parts])
    messages.clear()
    for one, of_one in zip(sums, own, strict=True):
        if not of_one:
            yield None
            continue
        total, *of_all = (part.numbers for part in of_one)
        yield total, _bound_of_share(ranks, one, tuple(of_all), total)


SENT_AT_ONCE = 8 << 20
"""Bytes that a rank sends to all others at a time. A sum with one reader comes to it from every rank: as a whole, that
would take memory that grows with their number."""


def _reduce(ranks: Ranks, messages: Sequence[Sequence[torch.Tensor]], own: Sequence[_Part]) -> None:
    """Reduce-scatter in place: join the parts that this rank owns with those of all others. messages: this rank's parts
    of what each of the others owns. All ranks call it."""
    width = max(SENT_AT_ONCE // (8 * (ranks.size - 1)), 1)
    mine = [part.numbers.view(-1) for part in own]
    lengths = [sum(map(len, mine if rank == ranks.rank else parts)) for rank, parts in enumerate(messages)]
    for start in range(0, max(lengths), width):
        outgoing = [[x.view(torch.int64) for _, x in _within(parts, start, width)] for parts in messages]
        coming = min(max(lengths[ranks.rank] - start, 0), width)
        received = ranks.to_owners(outgoing, [0 if rank == ranks.rank else coming for rank in range(ranks.size)])
        del received[ranks.rank]
        place = 0
        for number, x in _within(mine, start, width):
            for other in received:
                own[number].join(x, other[place : place + len(x)].view(x.dtype), out=x)
            place += len(x)


def _within(parts: Sequence[torch.Tensor], start: int, width: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (number of a part, its elements) in a range of all parts, one behind the other."""
    for number, part in enumerate(parts):
        if start < len(part) and start + width > 0 and len(part):
            yield number, part[max(start, 0) : max(start + width, 0)]
        start -= len(part)


def _bound_of_share(ranks: Ranks, one: BatchSum, measures: Measures, y: torch.Tensor) -> Bound:
    """Return the bound of the whole sum, for the elements that this rank owns, whose approximations are y."""
    operator, terms = one.operator, one.terms
    first, last = one.share(ranks, ranks.rank)
    if not operator.by_element:
        return FullBound(operator.bound_of(measures, terms).of_range(first, y))
    of_elements = [x if x.shape == y.shape else x.expand(one.output.shape).reshape(-1)[first:last] for x in measures]
    return operator.bound_of(tuple(of_elements), terms)


def _gather(ranks: Ranks, sums: Sequence[BatchSum], shares: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All-gather whole sums of the ranks' shares, as bytes, since sums may be of several dtypes."""
    if not sums:
        return []

    def size(one: BatchSum, rank: int) -> int:
        first, last = one.share(ranks, rank)
        return (last - first) * one.output.dtype.itemsize

    sizes = [[size(one, rank) for one in sums] for rank in range(ranks.size)]
    mine = torch.cat([bytes_of(share.reshape(-1)) for share in shares])
    of_ranks = ranks.gather_all(mine, [sum(one) for one in sizes])
    pieces = [of_rank.split(of_sums) for of_rank, of_sums in zip(of_ranks, sizes, strict=True)]
    return [
        torch.cat(of_one).view(one.output.dtype.torch_dtype).reshape(one.output.shape)
        for *of_one, one in zip(*pieces, sums, strict=True)
    ]
