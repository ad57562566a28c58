"""The simulation of what audits pay: its rules are the contract's, and its page shows what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_coalitions import End, Rule, drawn
from audit_coalitions import report as report_on_coalitions
from simulate_audits import (
    Market,
    break_even,
    copier,
    fines,
    follower,
    honest,
    idler,
    latecomer,
    market_of,
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
    assert latecomer(market, False) < 0, "nothing is left behind the shares"
    assert follower(market, False) > 0 > follower(market, True), "open audits pay whoever is fast"


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


def test_the_page_shows_what_the_script_prints(market: Market) -> None:
    options = parser().parse_args([])
    page = PAGE.read_text()
    of_coalitions = report_on_coalitions(market.fee, market.trainer_bond, market.bond, options.coalitions)
    for line in (*report(market, options.months, options.ether), *of_coalitions):
        assert line in page, f"docs/economics.md is old, run scripts/simulate_audits.py: {line}"


def test_no_coalition_takes_back_what_an_honest_auditor_was_promised() -> None:
    """By the rule before, most did, and many gained by it."""
    assert {one.end for one in drawn(5000)} == set(End)
    for one in drawn(5000):
        promised, paid = one.promised(Rule.PLACES), one.honest(Rule.PLACES)
        assert all(paid[place] >= wei for place, wei in promised.items()), one
        assert one.gain(Rule.PLACES) <= 0, one
        assert sum(one.fees(Rule.PLACES).values()) <= one.fee
    assert max(one.gain(Rule.SHARED) / one.fee for one in drawn(5000)) > 0.9
