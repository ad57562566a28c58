"""Markets drawn at random end, and no honest party in them that looks in time has lost anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_market import RandomMarket


@pytest.mark.parametrize("seed", [4, 5, 110])
def test_nobody_honest_loses_in_a_random_market(seed: int, tmp_path: Path) -> None:
    """Of `random_market`, any seed can be given."""
    market = RandomMarket(seed, tmp_path)
    market.play()
    assert market.violations() == [], market.describe()
