"""Compiled loops are those of the sources that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from roundlog import kernels

ROUND = (
    "import numpy as np; from roundlog.kernels.deciding import ends; print(ends(np.ones(1), np.zeros(1), 1.0)[0][0])"
)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_constant_in_another_file_makes_loops_compiled_anew(chosen: bool, tmp_path: Path) -> None:
    """chosen: whether the cache is where the user wants it."""
    package, cache = tmp_path / "roundlog", tmp_path / "cache"
    copied = shutil.copytree(Path(kernels.__file__).parent, package / "kernels", ignore=lambda *_: ["__pycache__"])
    (package / "__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(tmp_path)} | ({"NUMBA_CACHE_DIR": str(cache)} if chosen else {})

    def rounded() -> str:
        return subprocess.run(
            [sys.executable, "-c", ROUND], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    def compiled() -> set[Path]:
        return set((cache if chosen else copied).rglob("deciding._ends*.nbc"))

    assert rounded() == "1.0"
    first = compiled()
    assert len(first) == 1
    # Taken from the cache.
    assert rounded() == "1.0"
    assert compiled() == first
    marking = copied / "marking.py"
    marking.write_text(marking.read_text().replace("TWO_UNITS = 2.0 * 2.0**-53", "TWO_UNITS = 0.5"))
    assert rounded() == "0.5"
