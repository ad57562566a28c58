"""The story `operator`: every kind of fraud, by a trainer and by a challenger, ends exactly where it was committed.

A sample is played on every run; the rest is marked slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from io import StringIO
from itertools import product

import pytest
from rich.console import Console
from tiebreak.contract.enums import Side
from tiebreak.devnet.launcher import find_anvil
from tiebreak_demo.adversary.frauds import FraudKind
from tiebreak_demo.adversary.trainings import TRAININGS
from tiebreak_demo.disputes import SIDES, Bench, play_one, prepare
from tiebreak_demo.report import Dispute
from tiebreak_demo.scene import Scene
from tiebreak_demo.screen import Screen

CHAINS = ("embedded", "anvil")
Case = tuple[str, int, Side, FraudKind]
"""Chain, number of the training, who lies, about what."""

SAMPLE: set[Case] = {
    ("embedded", 0, Side.TRAINER, FraudKind.GRADIENT),
    ("anvil", 1, Side.CHALLENGER, FraudKind.GRADIENT),
    ("embedded", 1, Side.CHALLENGER, FraudKind.STORED),
    ("anvil", 0, Side.TRAINER, FraudKind.STORED),
    ("anvil", 0, Side.TRAINER, FraudKind.LOADED),
    ("embedded", 1, Side.TRAINER, FraudKind.ROW),
    ("anvil", 1, Side.TRAINER, FraudKind.RATE),
    ("anvil", 1, Side.TRAINER, FraudKind.ROUNDING),
    ("anvil", 0, Side.CHALLENGER, FraudKind.MASK),
    ("anvil", 0, Side.TRAINER, FraudKind.FUNCTION),
    ("embedded", 1, Side.CHALLENGER, FraudKind.PROGRAM),
    ("anvil", 2, Side.TRAINER, FraudKind.ACTIVATION),
    ("embedded", 2, Side.CHALLENGER, FraudKind.CONVERSION),
    ("embedded", 2, Side.TRAINER, FraudKind.MASTER),
    ("anvil", 2, Side.TRAINER, FraudKind.CONVERSION),
    ("anvil", 2, Side.CHALLENGER, FraudKind.GRADIENT),
    ("anvil", 3, Side.TRAINER, FraudKind.ACCUMULATOR),
    ("embedded", 3, Side.CHALLENGER, FraudKind.ACCUMULATOR),
    ("embedded", 3, Side.TRAINER, FraudKind.LAST_ROUNDING),
    ("embedded", 3, Side.TRAINER, FraudKind.GROUP_ORDER),
    ("anvil", 3, Side.CHALLENGER, FraudKind.GROUP_ORDER),
    ("embedded", 3, Side.TRAINER, FraudKind.FP32_SUMS),
}

IN_SEGMENTS = {
    FraudKind.GRADIENT,
    FraudKind.ACCUMULATOR,
    FraudKind.LAST_ROUNDING,
    FraudKind.GROUP_ORDER,
    FraudKind.FP32_SUMS,
}
"""Frauds about a sum whose running results are searched."""


def marked(case: Case) -> object:
    chain, training, liar, kind = case
    name = f"{chain}-{TRAININGS[training].name}-{liar.name.lower()}-{kind.name.lower()}"
    return pytest.param(*case, id=name, marks=() if case in SAMPLE else pytest.mark.long)


CASES = [
    marked((chain, number, liar, kind))
    for chain, (number, training), liar in product(CHAINS, enumerate(TRAININGS), SIDES)
    for kind in training.kinds
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Bench]:
    return cache(lambda number: prepare(TRAININGS[number], tmp_path_factory.mktemp("bench")))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scene]]:
    with ExitStack() as stack:

        def started(chain: str) -> Scene:
            if chain == "anvil" and find_anvil() is None:
                pytest.skip("anvil is not installed: run npm ci")
            return stack.enter_context(Scene(tmp_path_factory.mktemp(chain), kind=chain))

        yield cache(started)


@pytest.fixture
def shown() -> StringIO:
    return StringIO()


@pytest.fixture
def screen(shown: StringIO) -> Screen:
    return Screen(Console(file=shown, width=100))


def failed(dispute: Dispute) -> list[tuple[str, object, object]]:
    return [(check.text, check.expected, check.observed) for check in dispute.checks if not check.holds]


def test_the_sample_has_everything_at_least_once() -> None:
    for seen, all_there_are in zip(
        zip(*SAMPLE, strict=True), (CHAINS, range(len(TRAININGS)), SIDES, FraudKind), strict=True
    ):
        assert set(seen) == set(all_there_are)
    by_trainers = {kind for _, _, liar, kind in SAMPLE if liar is Side.TRAINER}
    assert by_trainers >= set(FraudKind) - {FraudKind.MASK, FraudKind.PROGRAM}


@pytest.mark.slow
@pytest.mark.parametrize(("chain", "training", "liar", "kind"), CASES)
def test_the_game_ends_where_the_lie_is_and_the_honest_party_wins(
    chain: str,
    training: int,
    liar: Side,
    kind: FraudKind,
    bench: Callable[[int], Bench],
    scene: Callable[[str], Scene],
    screen: Screen,
) -> None:
    found = play_one(scene(chain), screen, bench(training), kind, liar)
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
def test_a_game_that_ends_elsewhere_is_noticed(
    bench: Callable[[int], Bench], scene: Callable[[str], Scene], screen: Screen, shown: StringIO
) -> None:
    right = bench(1)
    fraud = right.frauds[FraudKind.ROW]
    # Not where it is: one element further on.
    elsewhere = replace(right, frauds={FraudKind.ROW: replace(fraud, element=fraud.element + 1)})
    found = play_one(scene("embedded"), screen, elsewhere, FraudKind.ROW, Side.TRAINER)
    assert [text for text, _, _ in failed(found)] == ["the game has ended where the lie is"]
    assert not found.ended_as_it_should
    assert found.found is not None and found.found.element == fraud.element
    assert "the game has ended where the lie is" in shown.getvalue()
