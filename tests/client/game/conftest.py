"""Fixtures that all tests of games share."""

import pytest
import roundlog.execution.executor


@pytest.fixture(autouse=True)
def _machine_checked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every executor looks at its machine first, for most of a second."""
    monkeypatch.setattr(roundlog.execution.executor, "check_machine", lambda device, products: None)
