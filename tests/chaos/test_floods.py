"""A small flood in simulated time, by the script that anyone runs with a thousand games."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiebreak.devnet.launcher import find_anvil

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "simulate_floods.py"


@pytest.mark.skipif(find_anvil() is None, reason="anvil is not installed: run npm ci")
@pytest.mark.timeout(500)
def test_twenty_games_at_once_cost_no_honest_party_anything(tmp_path: Path) -> None:
    words = ["--games", "20", "--block", "12", "--clock", "86400", "--replay", "60", "--json", str(tmp_path / "out")]
    found = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    floods = json.loads((tmp_path / "out").read_text())["floods"]
    assert [flood["scene"] for flood in floods] == ["honest trainer", "honest challenger"]
    for flood in floods:
        assert flood["right"] and flood["honest_loss"] == 0 and flood["games_lost"] == 0
        assert 0 < flood["delay"] <= flood["bound"]
    # The queue was needed: more games than are played at a time.
    assert floods[0]["puppets"] == 20 and floods[0]["most_live"] == 16
    assert floods[0]["closest"] > 43_200
