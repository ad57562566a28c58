"""What an auditor with less memory gains: logistic regression is one contraction over the batch."""

import json
import subprocess
import sys
from pathlib import Path

import memory_taken
import pytest


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux's /proc")
def test_a_batch_that_is_summed_part_by_part_takes_no_more_than_planned(tmp_path: Path) -> None:
    batch = 1 << 15
    found = {}
    for count in (1, 4, 16):
        # In processes of their own: what a step leaves behind would hide what the next one takes.
        script = [sys.executable, memory_taken.__file__, str(batch), str(count)]
        output = subprocess.run(script, check=True, capture_output=True, text=True, timeout=300, cwd=tmp_path).stdout
        planned, found[count] = json.loads(output)
        assert found[count] <= planned
    # The batch alone is 64 MiB; what libraries and panels take does not shrink.
    assert found[1] > 4 * 512 * batch
    assert found[16] < found[4] < 0.7 * found[1]
    assert found[16] < 0.6 * found[1]
