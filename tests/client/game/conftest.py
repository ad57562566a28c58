"""Random programs are those of the engine's tests."""

import sys
from pathlib import Path

import pytest
import roundlog.execution.executor

for room in ("operators", "microbatch", "adjudication"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine" / room))


@pytest.fixture(autouse=True)
def _machine_checked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every executor looks at its machine first, for most of a second."""
    monkeypatch.setattr(roundlog.execution.executor, "check_machine", lambda device: None)
