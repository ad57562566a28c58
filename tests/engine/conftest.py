"""Its place puts this folder on the import path: the tests below it share `oracle`."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests share small machines; more threads change speed and never results."""
    torch.set_num_threads(1)
