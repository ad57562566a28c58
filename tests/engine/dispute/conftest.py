"""Fixtures that all tests of disputes share."""

import pytest
from roundlog.dispute import FabricatedValues


@pytest.fixture(scope="session")
def secret(tmp_path_factory: pytest.TempPathFactory) -> FabricatedValues:
    return FabricatedValues(tmp_path_factory.mktemp("secret"))
