"""The page about operators is what the registry and the rules say."""

import subprocess
import sys
from pathlib import Path


def test_the_page_about_operators_is_fresh() -> None:
    script = Path(__file__).parents[2] / "scripts" / "make_operator_docs.py"
    found = subprocess.run([sys.executable, str(script), "--check"], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr or "run python scripts/make_operator_docs.py"
