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

from roundlog.execution.microbatch.summing import summation, terms_of
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
    exchange = _Exchange(ranks)
    own = [exchange.add(one) for one in sums]
    exchange.end()
    for one, of_one in zip(sums, own, strict=True):
        if not of_one:
            yield None
            continue
        total, *of_all = (part.numbers for part in of_one)
        yield total, _bound_of_share(ranks, one, tuple(of_all), total)


SENT_AT_ONCE = 4 << 20
"""Bytes that a rank sends to all others at a time, while it joins those before with its own. A sum with one reader
comes to it from every rank: as a whole, that would take memory that grows with their number."""


class _Exchange:
    """An exchange of sums: what this rank owns is joined with what all others have of it, in place, while they send and
    this one adds up the next sums."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._width = max(SENT_AT_ONCE // (8 * (ranks.size - 1)), 1)
        self._messages: list[list[torch.Tensor]] = [[] for _ in range(ranks.size)]
        """What this rank has of what each of the others owns, and has not sent."""
        self._own: list[_Part] = []
        """What it owns of these sums."""
        self._nbytes = 0
        """Of these sums, as every rank counts them."""
        self._under_way: tuple[Callable[[], list[torch.Tensor]], list[_Part]] | None = None
        """What waits for all that others have of these parts."""

    def add(self, one: BatchSum) -> list[_Part]:
        """Adds up this rank's terms of a sum. Returns its own parts, which are those of all ranks' sum at the end; none
        if another rank reads it. All ranks call it, with the same sums."""
        ranks = self._ranks
        y, measures = one.terms.approximate()
        own: list[_Part] = []
        for rank in range(ranks.size) if one.reader is None else (one.reader,):
            share = slice(*one.share(ranks, rank))
            by_element = [True, *map(one.is_by_element, measures)]
            parts = [x.reshape(-1)[share] if cut else x for x, cut in zip((y, *measures), by_element, strict=True)]
            if rank != ranks.rank:
                self._messages[rank] += [part.reshape(-1) for part in parts]
                continue
            least = one.terms.operator.least
            for position, (part, cut) in enumerate(zip(parts, by_element, strict=True)):
                # The approximation comes first, and adds up. What every owner gets is sent on while this is joined.
                join = torch.minimum if position - 1 in least else torch.add
                own.append(_Part(part if cut else part.clone(memory_format=torch.contiguous_format), join))
        self._own += own
        self._nbytes += sum(x.nbytes for x in (y, *measures))
        if self._nbytes >= SENT_AT_ONCE:
            del y, measures, parts
            self._send()
        return own

    def end(self) -> None:
        """Sends what is left, and waits for all that is under way."""
        self._send()
        self._join()

    def _send(self) -> None:
        messages, self._messages = self._messages, [[] for _ in range(self._ranks.size)]
        own, self._own = self._own, []
        self._nbytes = 0
        mine = [part.numbers.view(-1) for part in own]
        lengths = [sum(map(len, mine if rank == self._ranks.rank else parts)) for rank, parts in enumerate(messages)]
        for start in range(0, max(lengths), self._width):
            outgoing = [[x.view(torch.int64) for _, x in _within(parts, start, self._width)] for parts in messages]
            coming = min(max(lengths[self._ranks.rank] - start, 0), self._width)
            come = self._ranks.begin_to_owners(
                outgoing, [0 if rank == self._ranks.rank else coming for rank in range(self._ranks.size)]
            )
            self._join()
            self._under_way = come, [_Part(x, own[i].join) for i, x in _within(mine, start, self._width)]

    def _join(self) -> None:
        """Joins what is under way."""
        if self._under_way is None:
            return
        (come, own), self._under_way = self._under_way, None
        # Nothing comes from this rank itself.
        received = [numbers for numbers in come() if len(numbers)]
        place = 0
        for part in own:
            stop = place + len(part.numbers)
            for numbers in received:
                part.join(part.numbers, numbers[place:stop].view(part.numbers.dtype), out=part.numbers)
            place = stop


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
