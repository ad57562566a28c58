"""The simulation of what audits pay: its rules are the contract's, and its page shows what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate_audits import (
    Market,
    break_even,
    copier,
    fines,
    follower,
    honest,
    idler,
    market_of,
    months,
    parser,
    report,
    split,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "economics.md"


@pytest.fixture
def market() -> Market:
    return market_of(parser().parse_args([]))


@pytest.mark.parametrize("fine", [0, 1, 2, 3, 4, 5, 7, 10**15 + 1, 2**130 + 3])
@pytest.mark.parametrize("spent", [0, 1, 10**14, 2**140])
def test_the_shares_of_a_fine_are_the_contracts(fine: int, spent: int) -> None:
    shares = split(fine, spent)
    assert shares.gas + shares.half + shares.quarter + shares.burnt == fine
    assert shares.gas == min(spent, fine // 4)
    rest = fine - shares.gas
    assert (shares.half, shares.quarter) == (rest // 2, rest // 4) and shares.burnt * 4 >= rest


def test_the_example_terms_pay_honest_work_and_nothing_else_blindly(market: Market) -> None:
    assert honest(market, False, True) > 0, "an honest auditor lives on fees alone"
    assert honest(market, True, True) > honest(market, False, True), "to find a fraud pays more than to find none"
    assert idler(market, False) < 0 and idler(market, True) < 0, "junk pays nobody"
    assert copier(market, True) < -market.bond, "a leaked root that is wrong costs the bond"
    assert follower(market, False) > 0 and follower(market, True) == 0, "open audits pay whoever waits"


def test_a_leaked_root_pays_exactly_below_the_break_even(market: Market) -> None:
    rate = break_even(market)
    assert 0 < rate < 1

    def mean(frauds: float) -> float:
        return (1 - frauds) * copier(market, False) + frauds * copier(market, True)

    assert mean(rate * 0.99) > 0 > mean(rate * 1.01)


def test_colluders_never_get_a_caught_fraud_for_nothing(market: Market) -> None:
    for attesters in range(40):
        assert min(fines(market, attesters).values()) >= market.trainer_bond // 4
    more = [min(fines(market, attesters).values()) for attesters in range(40)]
    assert more == sorted(more), "attestations of theirs make it dearer, or leave it as it is"


def test_months_are_the_same_on_every_machine_and_grow_with_fraud(market: Market) -> None:
    assert months(market, 0.05, 50) == months(market, 0.05, 50)
    assert len(set(months(market, 0.0, 50))) == 1, "without fraud nothing is left to chance"
    means = [sum(months(market, rate, 400)) for rate in (0.0, 0.05, 0.2)]
    assert means == sorted(means)


def test_the_page_shows_what_the_script_prints(market: Market) -> None:
    options = parser().parse_args([])
    page = PAGE.read_text()
    for line in report(market, options.months, options.ether):
        assert line in page, f"docs/economics.md is old, run scripts/simulate_audits.py: {line}"
