"""The cases of every operator are those that its kernel is tested with."""

import sys
from pathlib import Path

for room in ("operators", "microbatch", "running"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / room))
