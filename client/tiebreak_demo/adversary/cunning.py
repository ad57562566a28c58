"""Dispute trees of a run with lies that are bent inside of sums, too, so that they defend the lies there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from roundlog.adjudication import CHAIN_LIMIT, ExactSum, GroupChain, IntegerSum, RunningResult, in_float32, wrap
from roundlog.adjudication import binary32 as ieee
from roundlog.dispute import RunningResults
from tiebreak.contract.enums import Side
from tiebreak.game.moves import Output, Place, Tree
from tiebreak.roles.engine import DisputeTrees

_ONE = 0x3F800000
"""The FP32 number 1."""


def cunning(trees: DisputeTrees, side: Side) -> DisputeTrees:
    """Trees with bent running results. If a lie is the sum of many terms, the running results are shifted from the
    middle on, so that a trainer's end at its claim and a challenger's at a wrong value."""
    return cast(DisputeTrees, _CunningTrees(trees, side))


class _CunningTrees:
    def __init__(self, honest: DisputeTrees, side: Side) -> None:
        self._honest, self._side = honest, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def at_hand(self, place: Place) -> Tree | None:
        return self._bent(place, self._honest.at_hand(place))

    def tree(self, place: Place) -> Tree | None:
        return self._bent(place, self._honest.tree(place))

    def _bent(self, place: Place, tree: Tree | None) -> Tree | None:
        if tree is None or len(place) < 3:
            return tree
        return cast(Output, _CunningOutput(cast(Output, tree), self._side))


class _CunningOutput:
    def __init__(self, honest: Output, side: Side) -> None:
        self._honest, self._side = honest, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def running(self, element: int, claimed: int) -> RunningResults:
        found = self._honest.running(element, claimed)
        last, dtype = found.partials[-1], self._honest.descriptor.dtype
        wanted = in_float32(dtype, claimed if self._side is Side.TRAINER else claimed ^ 1)
        claimed = in_float32(dtype, claimed)
        if not isinstance(last, ExactSum | IntegerSum | GroupChain):
            return found
        middle = len(found.partials) // 2
        if isinstance(last, GroupChain):
            chain = _chain(last, wanted)
            return RunningResults([chain if i >= middle else partial for i, partial in enumerate(found.partials)])
        if isinstance(last, ExactSum) and (last.special or not ieee.is_finite(wanted)):
            wanted = claimed if self._side is Side.TRAINER else _ONE if claimed != _ONE else ieee.NAN
            lie = ExactSum(_whole(last, wanted)) if ieee.is_finite(wanted) else ExactSum(0, wanted)
            return RunningResults([lie if i >= middle else partial for i, partial in enumerate(found.partials)])
        off = _whole(last, wanted) - last.total
        bent = [_moved(partial, off) if i >= middle else partial for i, partial in enumerate(found.partials)]
        return RunningResults(bent)


def _whole(kind: ExactSum | IntegerSum, bits: int) -> int:
    """The running total that finishes to these bits, of a number its FP32 pattern."""
    return ieee.scaled(bits) << 149 if isinstance(kind, ExactSum) else wrap(bits)


def _chain(kind: GroupChain, wanted: int) -> GroupChain:
    """A running result that finishes to an FP32 pattern."""
    if ieee.is_nan(wanted):
        return replace(kind, sum=0, total=ieee.NAN)
    if ieee.is_finite(wanted):
        return replace(kind, sum=ieee.scaled(wanted), total=0)
    return replace(kind, sum=(1 - CHAIN_LIMIT) if wanted & ieee.SIGN else CHAIN_LIMIT - 1, total=0)


def _moved(partial: RunningResult, off: int) -> RunningResult:
    assert isinstance(partial, ExactSum | IntegerSum)
    total = partial.total + off
    return ExactSum(total) if isinstance(partial, ExactSum) else IntegerSum(wrap(total))
