"""The honest run that the tests of this room audit."""

import pytest

from tests.engine.segment_audits.published_runs import Trained, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"))
