"""Lets the tests of the campaign import its modules, and those of the simulator, as `python FILE` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
