"""Sums over the batch whose terms lie on several ranks (docs/numerics.md, "Ranks").

Every rank adds up its own terms in FP64, and sends the owners of the elements what they need of that: each owner rounds
its own share. What the bound leaves in doubt is asked of all ranks, and the rounded shares are gathered. Many sums go
together, since a message costs more than what is in most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from roundlog.execution.microbatch.summing import summation, terms_of
from roundlog.execution.ranks.agreement import Agreement
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


def sums_over(ranks: Ranks, sums: Sequence[BatchSum], bits: int, agreement: Agreement) -> list[torch.Tensor]:
    """The sums of all ranks' terms, rounded to so many bits: FP32, of the outputs' shapes. Where only another rank
    reads a sum, its numbers mean nothing. All ranks call it, with the same sums. agreement: is told what is sent and
    received."""
    asking = Asking(ranks, [one.terms for one in sums], [one.output.numel for one in sums])
    owned, wanted = [], []
    for number, (y, bound) in enumerate(_sent_to_owners(ranks, sums)):
        first, _ = ranks.share(sums[number].output.numel)
        operator = Owned(asking, number, sums[number].terms, y, bound, first)
        owned.append(operator)
        wanted.append(first + in_doubt(operator, (), {}, bits))
    asking.ask_ahead(wanted)
    shares = []
    for one, operator in zip(sums, owned, strict=True):
        first, last = ranks.share(one.output.numel)
        shares.append(one.round_share(operator, first, last) if last > first else torch.empty(0))
    asking.answer_to_the_end()
    of_all = [number for number, one in enumerate(sums) if one.reader is None]
    found = dict(zip(of_all, _gathered(ranks, sums, shares, of_all, agreement), strict=True))
    of_one = [number for number, one in enumerate(sums) if one.reader is not None]
    found |= dict(zip(of_one, _sent_to_readers(ranks, sums, shares, of_one, agreement), strict=True))
    return [found[number] for number in range(len(sums))]


def _sent_to_owners(ranks: Ranks, sums: Sequence[BatchSum]) -> Iterator[tuple[torch.Tensor, Bound]]:
    """The approximations, f64[n], and the bound of the n elements that this rank owns, of every sum."""
    messages: list[list[torch.Tensor]] = [[] for _ in range(ranks.size)]
    kinds: list[list[tuple[torch.Size, torch.dtype]]] = []
    for one in sums:
        y, measures = one.terms.approximate()
        for rank, message in enumerate(messages):
            share = slice(*ranks.share(one.output.numel, rank))
            parts = [y.reshape(-1)[share]]
            parts += [x.reshape(-1)[share] if one.is_by_element(x) else x for x in measures]
            message += [part.reshape(-1).view(torch.uint8) for part in parts]
            if rank == ranks.rank:
                kinds.append([(part.shape, part.dtype) for part in parts])
    received = ranks.to_owners(messages, [sum(map(len, messages[ranks.rank]))] * ranks.size)
    del messages, message, y, measures, parts
    start = 0
    for one, kinds_of_one in zip(sums, kinds, strict=True):
        joined = []
        for position, (shape, dtype) in enumerate(kinds_of_one):
            stop = start + shape.numel() * dtype.itemsize
            # Copied, to where numbers may lie.
            of_ranks = [message[start:stop].clone().view(dtype).view(shape) for message in received]
            # The approximation comes first, and adds up.
            join = torch.minimum if position - 1 in one.terms.operator.least else torch.add
            joined.append(_joined(of_ranks, join))
            start = stop
        y, *measures_of_all = joined
        yield y, _bound_of_share(ranks, one, tuple(measures_of_all), y)


def _joined(of_ranks: Sequence[torch.Tensor], join: Callable[..., torch.Tensor]) -> torch.Tensor:
    """All ranks' tensors joined in their order, in the place of the first one."""
    found = of_ranks[0]
    for more in of_ranks[1:]:
        join(found, more, out=found)
    return found


def _bound_of_share(ranks: Ranks, one: BatchSum, measures: Measures, y: torch.Tensor) -> Bound:
    """The bound of the whole sum, for the elements that this rank owns, whose approximations are y."""
    operator, terms = one.terms.operator, one.terms.of_whole
    first, last = ranks.share(one.output.numel)
    if not operator.by_element:
        return FullBound(operator.bound_of(measures, terms).of_range(first, y))
    of_elements = [x if x.shape == y.shape else x.expand(one.output.shape).reshape(-1)[first:last] for x in measures]
    return operator.bound_of(tuple(of_elements), terms)


def _gathered(
    ranks: Ranks, sums: Sequence[BatchSum], shares: Sequence[torch.Tensor], chosen: Sequence[int], agreement: Agreement
) -> Iterator[torch.Tensor]:
    """The chosen sums as a whole, on every rank. Each gives its shares."""
    if not chosen:
        return
    sizes = [[_share_of(ranks, sums[number], rank) for number in chosen] for rank in range(ranks.size)]
    mine = torch.cat([shares[number].reshape(-1) for number in chosen])
    of_ranks = ranks.gather_all(mine, [sum(one) for one in sizes])
    pieces = [of_rank.split(of_sums) for of_rank, of_sums in zip(of_ranks, sizes, strict=True)]
    for number, *of_one in zip(chosen, *pieces, strict=True):
        yield agreement.received(torch.cat(of_one).reshape(sums[number].output.shape))


def _sent_to_readers(
    ranks: Ranks, sums: Sequence[BatchSum], shares: Sequence[torch.Tensor], chosen: Sequence[int], agreement: Agreement
) -> Iterator[torch.Tensor]:
    """The chosen sums as a whole, each on the rank that reads it; on the others a tensor of its shape."""
    if not chosen:
        return
    own = [number for number in chosen if sums[number].reader == ranks.rank]
    sizes = [[_share_of(ranks, sums[number], rank) for number in own] for rank in range(ranks.size)]
    messages = [
        [torch.empty(0), *(shares[number].reshape(-1) for number in chosen if sums[number].reader == rank)]
        for rank in range(ranks.size)
    ]
    of_ranks = ranks.to_owners(messages, [sum(one) for one in sizes])
    for rank, (message, received) in enumerate(zip(messages, of_ranks, strict=True)):
        for piece in message:
            agreement.sent(rank, piece)
        agreement.received_from(rank, received)
    pieces = [of_rank.split(of_sums) for of_rank, of_sums in zip(of_ranks, sizes, strict=True)]
    found = dict(zip(own, (torch.cat(of_one) for of_one in zip(*pieces, strict=True)), strict=True))
    for number in chosen:
        output = sums[number].output
        # It takes no memory.
        nothing = torch.empty(()).expand(output.shape)
        yield found[number].reshape(output.shape) if number in found else nothing


def _share_of(ranks: Ranks, one: BatchSum, rank: int) -> int:
    first, last = ranks.share(one.output.numel, rank)
    return last - first
