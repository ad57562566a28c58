"""The vectors that the contracts' arithmetic is held against are what the oracle gives today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


SCRIPTS = ["make_arithmetic_vectors.py", "make_format_vectors.py", "make_tensor_core_vectors.py"]


@pytest.mark.slow_but("make_arithmetic_vectors.py")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_vector_files_are_what_their_script_writes(script: str) -> None:
    check = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
