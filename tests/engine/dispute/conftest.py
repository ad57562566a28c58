"""Random programs are those of the tests of micro-batches, and hostile ones those of the adjudicator's."""

import sys
from pathlib import Path

import pytest
from roundlog.dispute import FabricatedValues

for room in ("operators", "microbatch", "adjudication"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / room))


@pytest.fixture(scope="session")
def secret(tmp_path_factory: pytest.TempPathFactory) -> FabricatedValues:
    return FabricatedValues(tmp_path_factory.mktemp("secret"))
