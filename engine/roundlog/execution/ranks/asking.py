"""Questions of an owner about the elements of sums over the batch that the bound leaves in doubt.

All ranks answer each, so they ask in turns: for the double-double sums of everybody's terms first, and for exact
integers where even those straddle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from roundlog.arithmetic import FULL_BITS
from roundlog.arithmetic.exact_sums import RunningSums
from roundlog.execution.ranks.group import Ranks
from roundlog.kernels import superaccumulator
from roundlog.operators import Inexact, Summation
from roundlog.operators.bound import Bound
from roundlog.operators.registry import Attributes, Tensors, Types
from roundlog.operators.summation import F32, Index, Measures, ReadPart, round_running
from roundlog.program import TensorType
from roundlog.rounding.resolve import AT_ONCE


@dataclass(frozen=True)
class Terms:
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
        return self.operator.add_parts(self.read, self.parts, self.attributes)

    def sums(self, elements: Index) -> RunningSums:
        """Double-double sums of these terms, at these elements of the output."""
        return self.operator.sums_of_parts(self._on_cpu, self.parts, self.attributes, elements)

    def exact(self, elements: Index) -> Index:
        """Exact sums of these terms, at these elements of the output."""
        return self.operator.exact_of_parts(self._on_cpu, self.parts, self.attributes, elements)

    def _on_cpu(self, number: int) -> list[torch.Tensor]:
        return [x.cpu() for x in self.read(number)]


class _Question(IntEnum):
    """Next question of a rank to the others."""

    NOTHING = 0
    """Nothing more: it has rounded its shares."""
    SUMS = 1
    """Double-double sums of some elements."""
    EXACT = 2
    """Exact sums of some elements."""


_WIDTH = {_Question.NOTHING: 0, _Question.SUMS: 3, _Question.EXACT: superaccumulator.LIMBS + 1}
"""Numbers in the answer about one element."""


class Asking:
    """The questions of all ranks about some sums. Elements are counted over all of these sums, one after another."""

    def __init__(self, ranks: Ranks, sums: Sequence[Terms], sizes: Sequence[int]) -> None:
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
        self._answers = self._turn(_Question.SUMS, self._ahead)[1]

    def sums(self, number: int, elements: Index) -> RunningSums:
        """Double-double sums of these elements of a sum."""
        chosen = elements + self._starts[number]
        place = np.searchsorted(self._ahead, chosen)
        if len(chosen) and place[-1] < len(self._ahead) and np.array_equal(self._ahead[place], chosen):
            answers = [answer.reshape(3, -1)[:, place] for answer in self._answers]
        else:
            answers = [answer.reshape(3, -1) for answer in self._turn(_Question.SUMS, chosen)[1]]
        found = RunningSums(len(chosen))
        for answer in answers:
            found.add(*answer.view(np.float64))
        return found

    def exact(self, number: int, elements: Index, bits: int) -> F32:
        """Exact sums of these elements of a sum, rounded."""
        _, answers = self._turn(_Question.EXACT, elements + self._starts[number])
        exact = superaccumulator.new_sums(len(elements))
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
        if not any(count for _, count in asked):
            return any(kind != _Question.NOTHING for kind, _ in asked), [np.empty(0, np.int64)] * ranks.size
        elements = ranks.gather_all(torch.from_numpy(chosen), [count for _, count in asked])
        answers = [
            [torch.from_numpy(self._answer(_Question(kind), of.numpy())).reshape(-1)]
            for (kind, _), of in zip(asked, elements, strict=True)
        ]
        got = ranks.to_owners(answers, [_WIDTH[question] * len(chosen)] * ranks.size)
        return True, [answer.numpy() for answer in got]

    def _answer(self, question: _Question, elements: Index) -> Index:
        """Sums of this rank's terms at these elements."""
        if question == _Question.NOTHING or not len(elements):
            return np.empty(0, np.int64)
        by_sum = np.split(elements, np.searchsorted(elements, self._starts[1:-1]))
        asked = [(self._sums[number], some - self._starts[number]) for number, some in enumerate(by_sum) if len(some)]
        if question == _Question.EXACT:
            return np.concatenate([terms.exact(some) for terms, some in asked])
        sums = [terms.sums(some) for terms, some in asked]
        return np.concatenate([np.stack([one.total, one.errors, one.magnitude]) for one in sums], axis=1).view(np.int64)


class Owned(Inexact):
    """The elements of a sum that one rank owns, as an operator without inputs."""

    name = "owned by a rank"

    def __init__(self, asking: Asking, number: int, terms: Terms, y: torch.Tensor, bound: Bound, first: int) -> None:
        """number: of the sum, among those that are asked about. y: f64[n], the approximations; first: the first
        element's index in the whole sum."""
        self._asking, self._number, self._terms = asking, number, terms
        self._y, self._bound, self._first = y, bound, first

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
        sums = self._asking.sums(self._number, chosen)
        # Every rank has added up its parts, whose errors are among the others, and so has this one what they gave.
        terms = self._terms.of_whole + 2 * self._terms.parts_of_whole
        return round_running(sums, terms, bits, chosen, lambda some: self._asking.exact(self._number, some, bits))
