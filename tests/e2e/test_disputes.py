"""The story `operator`: every kind of fraud, by a trainer and by a challenger, ends exactly where it was committed.

A sample with every kind is marked slow; the rest is marked long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from io import StringIO

import pytest
from rich.console import Console
from tiebreak.contract.enums import Side
from tiebreak_demo.adversary.frauds import FraudKind
from tiebreak_demo.adversary.trainings import TRAININGS
from tiebreak_demo.disputes import SIDES, Bench, play_one, prepare
from tiebreak_demo.report import Dispute
from tiebreak_demo.scene import Scene
from tiebreak_demo.screen import Screen

SAMPLE = {
    (0, Side.TRAINER): {FraudKind.GRADIENT, FraudKind.STORED, FraudKind.LOADED, FraudKind.FUNCTION},
    (0, Side.CHALLENGER): {FraudKind.MASK},
    (1, Side.TRAINER): {FraudKind.ROW, FraudKind.RATE, FraudKind.ROUNDING},
    (1, Side.CHALLENGER): {FraudKind.GRADIENT, FraudKind.STORED, FraudKind.PROGRAM},
    (2, Side.TRAINER): {FraudKind.ACTIVATION, FraudKind.MASTER},
    (2, Side.CHALLENGER): {FraudKind.CONVERSION},
    (3, Side.TRAINER): {FraudKind.ACCUMULATOR, FraudKind.LAST_ROUNDING, FraudKind.FP32_SUMS},
    (3, Side.CHALLENGER): {FraudKind.GROUP_ORDER},
}
"""By number of the training and who lies."""

IN_SEGMENTS = {
    FraudKind.GRADIENT,
    FraudKind.ACCUMULATOR,
    FraudKind.LAST_ROUNDING,
    FraudKind.GROUP_ORDER,
    FraudKind.FP32_SUMS,
}
"""Frauds about a sum whose running results are searched."""

CASES = [
    pytest.param(
        number,
        liar,
        kind,
        id=f"{training.name}-{liar.name.lower()}-{kind.name.lower()}",
        marks=pytest.mark.slow if kind in SAMPLE[number, liar] else pytest.mark.long,
    )
    for number, training in enumerate(TRAININGS)
    for liar in SIDES
    for kind in training.kinds
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Bench]:
    return cache(lambda number: prepare(TRAININGS[number], tmp_path_factory.mktemp("bench")))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("scene"), kind="auto") as found:
        yield found


def failed(dispute: Dispute) -> list[tuple[str, object, object]]:
    return [(check.text, check.expected, check.observed) for check in dispute.checks if not check.holds]


@pytest.mark.parametrize(("training", "liar", "kind"), CASES)
def test_the_game_ends_where_the_lie_is_and_the_honest_party_wins(
    training: int, liar: Side, kind: FraudKind, bench: Callable[[int], Bench], scene: Scene
) -> None:
    found = play_one(scene, Screen(Console(file=StringIO())), bench(training), kind, liar)
    assert failed(found) == [] and len(found.checks) >= 9 - (kind is FraudKind.STORED)
    assert found.found == found.told and (found.found.element is None) == (kind is FraudKind.STORED)
    assert found.winner == liar.other.name.lower() and found.liar == liar.name.lower()
    by_time = liar is Side.CHALLENGER and kind is not FraudKind.STORED and kind not in IN_SEGMENTS
    assert found.by == ("time" if by_time else "proof")
    # Depth of the dispute, and the cost of every level.
    gas = found.gas_by_level
    assert all(gas[level] > 0 for level in ("CHECKPOINT", "STEP", "OPERATOR"))
    assert (gas["CHUNK"] > 0) == (kind is not FraudKind.STORED)
    assert (gas["PARTIAL"] > 0) == (found.segment is not None) == (kind in IN_SEGMENTS)
    assert (gas["PROOF"] > 0) == (not by_time)
    assert sum(gas.values()) < found.gas and found.rounds < found.transactions
    assert found.verdict == ("FINAL" if liar is Side.CHALLENGER else "REJECTED")


@pytest.mark.slow
def test_a_game_that_ends_elsewhere_is_noticed(bench: Callable[[int], Bench], scene: Scene) -> None:
    right, shown = bench(1), StringIO()
    fraud = right.frauds[FraudKind.ROW]
    # Not where it is: one element further on.
    elsewhere = replace(right, frauds={FraudKind.ROW: replace(fraud, element=fraud.element + 1)})
    found = play_one(scene, Screen(Console(file=shown, width=100)), elsewhere, FraudKind.ROW, Side.TRAINER)
    assert [text for text, _, _ in failed(found)] == ["the game has ended where the lie is"]
    assert not found.ended_as_it_should
    assert found.found is not None and found.found.element == fraud.element
    assert "the game has ended where the lie is" in shown.getvalue()
