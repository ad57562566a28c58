"""Sums over the batch whose terms lie on several ranks (docs/numerics.md, "Ranks").

Every rank adds up its own terms in FP64, and sends the owners of the elements what they need of that: each owner
rounds its own share. Elements that the bound leaves in doubt are queried, and the rounded shares are gathered. Many
sums go together, since a message costs more than what is in most of them.

All ranks answer every query of an owner, so they query in turns: for the double-double sums of everybody's terms
first, and for exact integers where even those straddle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from roundlog.arithmetic.exact_sums import RunningSums
from roundlog.execution.ranks.group import Ranks, bytes_of
from roundlog.execution.ranks.orders import RankRounding
from roundlog.execution.slicing import summation, terms_of
from roundlog.kernels import superaccumulator
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact, Summation
from roundlog.operators.bounds import Bound, FullBound
from roundlog.operators.registry import Attributes, Tensors, Types, operands
from roundlog.operators.summation import F32, Index, Measures, ReadPart, round_running
from roundlog.program import Program, TensorType
from roundlog.rounding import Window
from roundlog.rounding.resolve import AT_ONCE, in_doubt


@dataclass(frozen=True)
class BatchTerms:
    """This rank's terms of a sum over the batch."""

    operator: Summation
    attributes: Attributes
    read: ReadPart
    """Reads this rank's slices of the inputs for one part, by its number: called again and again."""
    parts: int
    """Parts of this rank, as many as keep the bound."""
    of_whole: int
    """Terms of the whole sum."""
    parts_of_whole: int
    """Parts of all ranks."""

    def approximate(self) -> tuple[torch.Tensor, Measures]:
        """The approximation of these terms, and their measures."""
        return self.operator.add_parts(self._operands, self.parts, self.attributes)

    def sums(self, elements: Index) -> RunningSums:
        """Double-double sums of these terms, at these elements of the output."""
        return self.operator.sums_of_parts(self._on_cpu, self.parts, self.attributes, elements)

    def exact(self, elements: Index) -> Index:
        """Exact sums of these terms, at these elements of the output."""
        return self.operator.exact_of_parts(self._on_cpu, self.parts, self.attributes, elements)

    def _operands(self, number: int) -> list[torch.Tensor]:
        return operands(self.operator, self.read(number))

    def _on_cpu(self, number: int) -> list[torch.Tensor]:
        return [x.cpu() for x in self._operands(number)]


class _Query(IntEnum):
    """Next question of a rank to the others."""

    NOTHING = 0
    """Nothing more: it has rounded its shares."""
    SUMS = 1
    """Double-double sums of some elements."""
    EXACT = 2
    """Exact sums of some elements."""


_WIDTH = {_Query.NOTHING: 0, _Query.SUMS: 3, _Query.EXACT: superaccumulator.LIMBS + 1}
"""Numbers in the answer about one element."""


class ElementQueries:
    """The questions of all ranks about some sums. Elements are counted over all of these sums, one after another."""

    def __init__(self, ranks: Ranks, sums: Sequence[BatchTerms], sizes: Sequence[int]) -> None:
        """sizes: of the sums' outputs, in elements."""
        self._ranks, self._sums = ranks, sums
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
        self._ahead = np.empty(0, np.int64)
        self._answers: list[Index] = []

    def ask_ahead(self, wanted: Sequence[Index]) -> None:
        """Asks at once about what this rank is likely to need of every sum: ascending indices of its elements. All
        ranks call it, once."""
        of_all = [start + elements for start, elements in zip(self._starts, wanted, strict=False)]
        # Hostile data may leave everything in doubt: the rest is asked for later, a part at a time.
        self._ahead = np.concatenate(of_all)[:AT_ONCE]
        self._answers = self._turn(_Query.SUMS, self._ahead)[1]

    def sums(self, number: int, elements: Index) -> RunningSums:
        """Double-double sums of these elements of a sum."""
        chosen = elements + self._starts[number]
        place = np.searchsorted(self._ahead, chosen)
        if len(chosen) and place[-1] < len(self._ahead) and np.array_equal(self._ahead[place], chosen):
            answers = [answer.reshape(3, -1)[:, place] for answer in self._answers]
        else:
            answers = [answer.reshape(3, -1) for answer in self._turn(_Query.SUMS, chosen)[1]]
        found = RunningSums(len(chosen))
        for answer in answers:
            found.add(*answer.view(np.float64))
        return found

    def exact(self, number: int, elements: Index, format: Format) -> F32:
        """Exact sums of these elements of a sum, rounded."""
        _, answers = self._turn(_Query.EXACT, elements + self._starts[number])
        exact = superaccumulator.new_sums(len(elements))
        for answer in answers:
            superaccumulator.add_sums(exact, answer.reshape(exact.shape))
        return superaccumulator.rounded(exact, format)

    def answer_to_the_end(self) -> None:
        """Answers the other ranks' questions until they have none left."""
        asked = True
        while asked:
            asked, _ = self._turn(_Query.NOTHING, np.empty(0, np.int64))

    def _turn(self, question: _Query, chosen: Index) -> tuple[bool, list[Index]]:
        """One turn: every rank asks, and all answer. Returns whether anybody has asked anything, and every rank's
        answer to this one, int64, bit for bit."""
        ranks = self._ranks
        asked = ranks.numbers(int(question), len(chosen))
        if not any(count for _, count in asked):
            return any(kind != _Query.NOTHING for kind, _ in asked), [np.empty(0, np.int64)] * ranks.size
        elements = ranks.gather_all(torch.from_numpy(chosen), [count for _, count in asked])
        answers = [
            [torch.from_numpy(self._answer(_Query(kind), of.numpy())).reshape(-1)]
            for (kind, _), of in zip(asked, elements, strict=True)
        ]
        got = ranks.to_owners(answers, [_WIDTH[question] * len(chosen)] * ranks.size)
        return True, [answer.numpy() for answer in got]

    def _answer(self, question: _Query, elements: Index) -> Index:
        """Sums of this rank's terms at these elements."""
        if question == _Query.NOTHING or not len(elements):
            return np.empty(0, np.int64)
        by_sum = np.split(elements, np.searchsorted(elements, self._starts[1:-1]))
        asked = [(self._sums[number], some - self._starts[number]) for number, some in enumerate(by_sum) if len(some)]
        if question == _Query.EXACT:
            return np.concatenate([terms.exact(some) for terms, some in asked])
        sums = [terms.sums(some) for terms, some in asked]
        return np.concatenate([np.stack([one.total, one.errors, one.magnitude]) for one in sums], axis=1).view(np.int64)


class Owned(Inexact):
    """The elements of a sum that one rank owns, as an operator without inputs."""

    name = "owned by a rank"

    def __init__(
        self, queries: ElementQueries, number: int, terms: BatchTerms, y: torch.Tensor, bound: Bound, first: int
    ) -> None:
        """number: of the sum, among those that are asked about. y: f64[n], the approximations; first: the first
        element's index in the whole sum."""
        self._queries, self._number, self._terms = queries, number, terms
        self._y, self._bound, self._first = y, bound, first

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        return declared

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self._y

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self._bound

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        chosen = elements.numpy() + self._first
        sums = self._queries.sums(self._number, chosen)
        # Every rank has added up its parts, whose errors are among the others, and so has this one what they gave.
        terms = self._terms.of_whole + 2 * self._terms.parts_of_whole
        return round_running(sums, terms, format, chosen, lambda some: self._queries.exact(self._number, some, format))


RoundShare = Callable[[Inexact, int, int], torch.Tensor]
"""Rounds the elements first <= i < last of a sum, given as an operator without inputs."""


@dataclass(frozen=True, slots=True)
class BatchSum:
    """A sum over the batch, and this rank's terms of it."""

    output: TensorType
    format: Format
    terms: BatchTerms
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
        return share.reshape(shape) if ranks.rank == self.reader else share.new_empty(()).expand(shape)

    def is_by_element(self, x: torch.Tensor) -> bool:
        """Whether a measure has one number for every element of the output."""
        return self.terms.operator.by_element and x.numel() == self.output.numel


def batch_sum(
    program: Program,
    index: int,
    format: Format,
    read: ReadPart,
    parts: int,
    parts_of_whole: int,
    rounding: RankRounding,
    reader: int | None,
) -> BatchSum:
    """The sum over the batch that operator `index` is. read, parts, parts_of_whole: as those of `BatchTerms`. format,
    reader: as those of `BatchSum`."""
    node = program.nodes[index]
    of_whole = terms_of(node, [program.nodes[value].type for value in node.inputs])

    def round_share(operator: Inexact, first: int, last: int) -> torch.Tensor:
        window = Window((node.type.numel,), 0, first, last)
        return rounding.own(index, operator, (), node.attributes, format, window)

    return BatchSum(
        node.type,
        format,
        BatchTerms(summation(node), node.attributes, read, parts, of_whole, parts_of_whole),
        round_share,
        reader,
    )


def sums_over(ranks: Ranks, sums: Sequence[BatchSum]) -> list[torch.Tensor]:
    """The sums of all ranks' terms, rounded, of the outputs' shapes. Where only another rank
    reads a sum, its numbers mean nothing. All ranks call it, with the same sums."""
    queries = ElementQueries(ranks, [one.terms for one in sums], [one.output.numel for one in sums])
    owned: list[Owned | None] = []
    wanted = []
    for number, (one, found) in enumerate(zip(sums, _sent_to_owners(ranks, sums), strict=True)):
        operator: Owned | None = None
        doubtful = np.empty(0, np.int64)
        if found is not None:
            first, _ = one.share(ranks, ranks.rank)
            operator = Owned(queries, number, one.terms, *found, first)
            doubtful = first + in_doubt(operator, (), {}, one.format)
        owned.append(operator)
        wanted.append(doubtful)
    queries.ask_ahead(wanted)
    shares = []
    for one, owns in zip(sums, owned, strict=True):
        first, last = one.share(ranks, ranks.rank)
        if owns is None or first == last:
            shares.append(torch.empty(0, dtype=one.output.dtype.torch_dtype, device=ranks.device))
        else:
            shares.append(one.round_share(owns, first, last))
    queries.answer_to_the_end()
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
    """The whole sums; every rank gives its shares. They go as bytes, since sums may be of several dtypes."""

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
