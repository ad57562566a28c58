"""Sums over the batch whose terms lie on several ranks (docs/numerics.md, "Ranks").

Every rank adds up its own terms in FP64. A reduce-scatter brings the sums of all to the owners of the elements, each of
whom rounds its own share. What the bound leaves in doubt is asked of all ranks: for the double-double sums of their
terms first, and for exact integers where even those straddle. The rounded shares are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
import torch

from roundlog.arithmetic import FULL_BITS
from roundlog.arithmetic.sums import RunningSums
from roundlog.execution.microbatch.summing import summation
from roundlog.execution.ranks.group import Ranks
from roundlog.kernels import superaccumulator
from roundlog.operators import Inexact, Summation
from roundlog.operators.bound import Bound, FullBound
from roundlog.operators.registry import Attributes, Tensors, Types
from roundlog.operators.summation import EXACT_SUMS, Index, Measures
from roundlog.program import Node, TensorType

RoundShare = Callable[[Inexact, int, int], torch.Tensor]
"""Rounds the elements first <= i < last of a sum, given as an operator without inputs."""


def sum_over(
    ranks: Ranks, node: Node, terms: int, parts: Sequence[list[torch.Tensor]], round_share: RoundShare, count: int
) -> torch.Tensor:
    """The sum, rounded, of all ranks' terms: FP32, of the node's type. All ranks call it.

    node: of the whole program, a Summation. terms: of the whole sum. parts: this rank's slices of the inputs, in as
    many parts as keep the bound. count: of the parts of all ranks."""
    operator = summation(node)
    y, measures = _sum_of(operator, node.attributes, parts)
    numel, device = node.type.numel, y.device
    first, last = ranks.share(numel)
    mine = _joined(ranks.shares_to_owners(y.reshape(-1)))
    del y
    bound = _bound_of_share(ranks, operator, measures, terms, node.type, mine)
    owned = _Owned(ranks, operator, node.attributes, (terms, count), parts, mine, bound, first)
    if last > first:
        rounded = round_share(owned, first, last)
    else:
        rounded = torch.empty(0, dtype=torch.float32, device=device)
    owned.answer_to_the_end()
    return ranks.gather_shares(rounded, numel).reshape(node.type.shape)


def _sum_of(
    operator: Summation, attributes: Attributes, parts: Sequence[list[torch.Tensor]]
) -> tuple[torch.Tensor, Measures]:
    total, measures = operator.part(parts[0], attributes)
    for part in parts[1:]:
        y, more = operator.part(part, attributes)
        total.add_(y)
        operator.join(measures, more)
    return total, measures


def _joined(of_ranks: Sequence[torch.Tensor], join: Callable[..., torch.Tensor] = torch.add) -> torch.Tensor:
    """What all ranks have, joined in their order, in the place of the first one's."""
    found = of_ranks[0]
    for more in of_ranks[1:]:
        join(found, more, out=found)
    return found


def _bound_of_share(
    ranks: Ranks, operator: Summation, measures: Measures, terms: int, output: TensorType, mine: torch.Tensor
) -> Bound:
    """The bound of the whole sum, for the elements that this rank owns."""
    first, last = ranks.share(output.numel)

    def of_share(measure: torch.Tensor, rank: int) -> torch.Tensor:
        """What the owner of a share needs of a measure."""
        flat = measure.reshape(-1)
        return flat[slice(*ranks.share(output.numel, rank))] if is_of_elements(measure) else flat

    def is_of_elements(measure: torch.Tensor) -> bool:
        return operator.by_element and measure.numel() == output.numel

    messages = [
        torch.cat([of_share(one, rank).contiguous().view(torch.uint8) for one in measures])
        for rank in range(ranks.size)
    ]
    received = ranks.to_owners(messages, [len(messages[ranks.rank])] * ranks.size)
    joined, start = [], 0
    for position, measure in enumerate(measures):
        own = of_share(measure, ranks.rank)
        stop = start + own.numel() * own.element_size()
        # Copied, to where numbers may lie.
        of_ranks = [message[start:stop].clone().view(own.dtype) for message in received]
        found = _joined(of_ranks, torch.minimum if position in operator.least else torch.add)
        if not is_of_elements(measure):
            found = found.reshape(measure.shape)
            if operator.by_element:
                found = found.expand(output.shape).reshape(-1)[first:last]
        joined.append(found)
        start = stop
    bound = operator.bound_of(tuple(joined), terms)
    if operator.by_element:
        return bound
    return FullBound(bound.at(torch.arange(first, last, device=mine.device), mine))


class _Question(IntEnum):
    """Next question of a rank to the others."""

    NOTHING = 0
    """Nothing more: it has rounded its share."""
    SUMS = 1
    """Double-double sums of some elements."""
    EXACT = 2
    """Exact sums of some elements."""


class _Owned(Inexact):
    """The elements of a sum that one rank owns, as an operator without inputs. Each question about them is answered by
    all ranks together, so they ask in turns until none of them has a question left."""

    name = "owned by a rank"

    def __init__(
        self,
        ranks: Ranks,
        operator: Summation,
        attributes: Attributes,
        terms_and_parts: tuple[int, int],
        parts: Sequence[list[torch.Tensor]],
        y: torch.Tensor,
        bound: Bound,
        first: int,
    ) -> None:
        self._ranks, self._operator, self._of_sum = ranks, operator, attributes
        self._terms, self._count = terms_and_parts
        self._parts, self._y, self._bound, self._first = parts, y, bound, first
        self._on_cpu: list[list[torch.Tensor]] | None = None

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        return declared

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self._y

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self._bound

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, bits: int = FULL_BITS
    ) -> torch.Tensor:
        chosen = elements.numpy() + self._first
        _, answers = self._turn(_Question.SUMS, chosen)
        sums = RunningSums(len(chosen))
        for answer in answers:
            sums.add(*answer.view(np.float64).reshape(3, len(chosen)))
        # Every rank has added up its parts, whose errors are among the others, and so has this one what they gave.
        values, undecided = sums.rounded(self._terms + 2 * self._count, bits)
        (rest,) = np.nonzero(undecided)
        for start in range(0, len(rest), EXACT_SUMS):
            some = rest[start : start + EXACT_SUMS]
            values[some] = self._exactly(chosen[some], bits)
        return torch.from_numpy(values)

    def _exactly(self, chosen: Index, bits: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        _, answers = self._turn(_Question.EXACT, chosen)
        exact = superaccumulator.new_sums(len(chosen))
        for answer in answers:
            superaccumulator.add_sums(exact, answer.reshape(exact.shape))
        return superaccumulator.rounded(exact, bits)

    def answer_to_the_end(self) -> None:
        """Answers the other ranks' questions until they have none left."""
        asked = True
        while asked:
            asked, _ = self._turn(_Question.NOTHING, np.empty(0, np.int64))

    def _turn(self, question: _Question, chosen: Index) -> tuple[bool, list[Index]]:
        """One turn: every rank asks, and all answer. Returns whether anybody has asked anything, and every rank's
        answer to this one, int64, bit for bit."""
        ranks = self._ranks
        asked = ranks.numbers(int(question), len(chosen))
        if all(kind == _Question.NOTHING for kind, _ in asked):
            return False, []
        elements = ranks.gather_all(torch.from_numpy(chosen), [count for _, count in asked])
        answers = [
            torch.from_numpy(self._answer(_Question(kind), of.numpy())).reshape(-1)
            for (kind, _), of in zip(asked, elements, strict=True)
        ]
        width = {_Question.NOTHING: 0, _Question.SUMS: 3, _Question.EXACT: superaccumulator.LIMBS + 1}[question]
        got = ranks.to_owners(answers, [width * len(chosen)] * ranks.size)
        return True, [answer.numpy() for answer in got]

    def _answer(self, question: _Question, elements: Index) -> Index:
        """Sums of this rank's terms at these elements of the whole sum."""
        if question == _Question.NOTHING or not len(elements):
            return np.empty(0, np.int64)
        if self._on_cpu is None:
            self._on_cpu = [[x.cpu() for x in part] for part in self._parts]
        if question == _Question.EXACT:
            exact = superaccumulator.new_sums(len(elements))
            for part in self._on_cpu:
                self._operator.accumulate(part, self._of_sum, elements, exact)
            return exact
        sums = RunningSums(len(elements))
        for part in self._on_cpu:
            sums.add(*self._operator.sums(part, self._of_sum, elements))
        return np.stack([sums.total, sums.errors, sums.magnitude]).view(np.int64)
