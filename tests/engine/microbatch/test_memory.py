"""Memory that micro-batches save: logistic regression is one contraction over the batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.microbatch import memory_taken

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux's /proc")
def test_a_batch_that_is_summed_part_by_part_takes_no_more_than_planned(tmp_path: Path) -> None:
    batch = 1 << 16
    found = {}
    for count in (1, 16):
        # In processes of their own: what a step leaves behind would hide what the next one takes.
        script = [sys.executable, "-m", memory_taken.__name__, str(batch), str(count)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
        done = subprocess.run(script, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
        planned, found[count] = json.loads(done.stdout)
        assert found[count] <= planned
    # The batch alone is 128 MiB; what libraries and panels take, 20 to 40, does not shrink.
    assert found[1] > 4 * 512 * batch
    assert found[16] < found[1] / 2
