"""Markets drawn at random end, and no honest party in them that looks in time has lost anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.random_market import HONEST, RandomMarket

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [114, 8, 130])
def test_nobody_honest_loses_in_a_random_market(seed: int, tmp_path: Path) -> None:
    """Three seeds of `random_market`, which takes any."""
    market = RandomMarket(seed, tmp_path)
    market.play()
    assert market.violations() == [], market.describe()


def test_a_loss_of_somebody_honest_would_be_noticed(tmp_path: Path) -> None:
    market = RandomMarket(114, tmp_path)
    assert market.is_blind
    sleeper = next(party for party in market.parties if party.name == "auditor")
    sleeper.kind, sleeper.make = HONEST, market.party("auditor", "sealing").make
    market.play()
    assert any(found.startswith("auditor, honest, has -") for found in market.violations()), market.describe()
