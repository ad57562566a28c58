"""Sums over the batch whose terms lie on several ranks (docs/numerics.md, "Ranks").

Every rank adds up its own terms in FP64, and sends the owners of the elements what they need of that: each owner rounds
its own share. What the bound leaves in doubt is asked of all ranks, and the rounded shares are gathered. Many sums go
together, since a message costs more than what is in most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.execution.microbatch.slicing_rules import summation, terms_of
from roundlog.execution.ranks.asking import Asking, Owned, Terms
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.rounding import RankRounding
from roundlog.operators import Inexact
from roundlog.operators.bound import Bound, FullBound
from roundlog.operators.summation import Measures, ReadPart
from roundlog.program import Program, TensorType
from roundlog.rounding import Window
from roundlog.rounding.resolve import in_doubt

RoundShare = Callable[[Inexact, int, int], torch.Tensor]
"""Rounds the elements first <= i < last of a sum, given as an operator without inputs."""


@dataclass(frozen=True, slots=True)
class BatchSum:
    """A sum over the batch, and this rank's terms of it."""

    output: TensorType
    terms: Terms
    round_share: RoundShare
    reader: int | None = None
    """The only rank that reads it; None: every rank does."""

    def share(self, ranks: Ranks, rank: int) -> tuple[int, int]:
        """(first, last): the elements first <= i < last that a rank owns. A single reader owns them all."""
        if self.reader is None:
            return ranks.share(self.output.numel, rank)
        return 0, self.output.numel if rank == self.reader else 0

    def of_reader(self, ranks: Ranks, share: torch.Tensor) -> torch.Tensor:
        """The sum on its single reader, whose share is all of it; elsewhere a tensor of its shape without memory."""
        shape = self.output.shape
        return share.reshape(shape) if ranks.rank == self.reader else torch.empty((), device=share.device).expand(shape)

    def is_by_element(self, x: torch.Tensor) -> bool:
        """Whether a measure has one number for every element of the output."""
        return self.terms.operator.by_element and x.numel() == self.output.numel


def batch_sum(
    program: Program,
    index: int,
    read: ReadPart,
    parts: int,
    parts_of_whole: int,
    rounding: RankRounding,
    reader: int | None,
) -> BatchSum:
    """The sum over the batch that operator `index` is. read, parts, parts_of_whole: as those of `Terms`. reader: as
    that of `BatchSum`."""
    node = program.nodes[index]
    of_whole = terms_of(node, [program.nodes[value].type for value in node.inputs])

    def round_share(operator: Inexact, first: int, last: int) -> torch.Tensor:
        window = Window((node.type.numel,), 0, first, last)
        return rounding.own(index, operator, (), node.attributes, window)

    return BatchSum(
        node.type, Terms(summation(node), node.attributes, read, parts, of_whole, parts_of_whole), round_share, reader
    )


def sums_over(ranks: Ranks, sums: Sequence[BatchSum], bits: int) -> list[torch.Tensor]:
    """The sums of all ranks' terms, rounded to so many bits: FP32, of the outputs' shapes. Where only another rank
    reads a sum, its numbers mean nothing. All ranks call it, with the same sums."""
    asking = Asking(ranks, [one.terms for one in sums], [one.output.numel for one in sums])
    owned: list[Owned | None] = []
    wanted = []
    for number, (one, found) in enumerate(zip(sums, _sent_to_owners(ranks, sums), strict=True)):
        operator: Owned | None = None
        doubtful = np.empty(0, np.int64)
        if found is not None:
            first, _ = one.share(ranks, ranks.rank)
            operator = Owned(asking, number, one.terms, *found, first)
            doubtful = first + in_doubt(operator, (), {}, bits)
        owned.append(operator)
        wanted.append(doubtful)
    asking.ask_ahead(wanted)
    shares = []
    for one, owns in zip(sums, owned, strict=True):
        first, last = one.share(ranks, ranks.rank)
        if owns is None or first == last:
            shares.append(torch.empty(0, device=ranks.device))
        else:
            shares.append(one.round_share(owns, first, last))
    asking.answer_to_the_end()
    of_all = [(one, share) for one, share in zip(sums, shares, strict=True) if one.reader is None]
    gathered = iter(_gathered(ranks, *zip(*of_all, strict=True)) if of_all else ())
    return [
        next(gathered) if one.reader is None else one.of_reader(ranks, share)
        for one, share in zip(sums, shares, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what one rank owns: this rank's numbers, which become those of all."""

    numbers: torch.Tensor
    """Contiguous, of eight bytes each."""
    join: Callable[..., torch.Tensor]
    """Joins two ranks' numbers."""


def _sent_to_owners(ranks: Ranks, sums: Sequence[BatchSum]) -> Iterator[tuple[torch.Tensor, Bound] | None]:
    """The approximations, f64[n], and the bound of the n elements that this rank owns, of every sum; None if another
    rank reads the sum."""
    messages: list[list[torch.Tensor]] = [[] for _ in range(ranks.size)]
    own: list[list[_Part]] = []
    for one in sums:
        y, measures = one.terms.approximate()
        own.append([])
        for rank in range(ranks.size) if one.reader is None else (one.reader,):
            share = slice(*one.share(ranks, rank))
            by_element = [True, *map(one.is_by_element, measures)]
            parts = [x.reshape(-1)[share] if cut else x for x, cut in zip((y, *measures), by_element, strict=True)]
            if rank != ranks.rank:
                messages[rank] += [part.reshape(-1) for part in parts]
                continue
            least = one.terms.operator.least
            for position, (part, cut) in enumerate(zip(parts, by_element, strict=True)):
                # The approximation comes first, and adds up. What every owner gets is sent on while this is joined.
                join = torch.minimum if position - 1 in least else torch.add
                own[-1].append(_Part(part if cut else part.clone(memory_format=torch.contiguous_format), join))
    del y, measures, parts
    _join(ranks, messages, [part for parts in own for part in parts])
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


def _join(ranks: Ranks, messages: Sequence[Sequence[torch.Tensor]], own: Sequence[_Part]) -> None:
    """Joins what this rank owns with what all others have of it, in place. messages: what this rank has of what each of
    the others owns. All ranks call it."""
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
    """(number of a part, its elements) that lie in a range of all parts, one behind the other."""
    for number, part in enumerate(parts):
        if start < len(part) and start + width > 0 and len(part):
            yield number, part[max(start, 0) : max(start + width, 0)]
        start -= len(part)


def _bound_of_share(ranks: Ranks, one: BatchSum, measures: Measures, y: torch.Tensor) -> Bound:
    """The bound of the whole sum, for the elements that this rank owns, whose approximations are y."""
    operator, terms = one.terms.operator, one.terms.of_whole
    first, last = one.share(ranks, ranks.rank)
    if not operator.by_element:
        return FullBound(operator.bound_of(measures, terms).of_range(first, y))
    of_elements = [x if x.shape == y.shape else x.expand(one.output.shape).reshape(-1)[first:last] for x in measures]
    return operator.bound_of(tuple(of_elements), terms)


def _gathered(ranks: Ranks, sums: Sequence[BatchSum], shares: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The whole sums, of which every rank gives its shares."""
    sizes = [[stop - start for start, stop in (one.share(ranks, rank) for one in sums)] for rank in range(ranks.size)]
    of_ranks = ranks.gather_all(torch.cat([share.reshape(-1) for share in shares]), [sum(one) for one in sizes])
    pieces = [of_rank.split(of_sums) for of_rank, of_sums in zip(of_ranks, sizes, strict=True)]
    return [torch.cat(of_one).reshape(one.output.shape) for *of_one, one in zip(*pieces, sums, strict=True)]
