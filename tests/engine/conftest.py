"""What all tests of the engine begin with."""

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Tests share small machines; more threads change speed and never results. A test may set more for itself."""
    torch.set_num_threads(1)
