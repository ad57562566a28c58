"""The vectors that the contracts' arithmetic is held against are what the oracle gives today."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_vector_files_are_what_their_script_writes() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "make_arithmetic_vectors.py"), "--check"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
