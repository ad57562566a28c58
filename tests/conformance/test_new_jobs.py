"""Jobs that are captured now, larger than those that are kept: the second verifier comes to the trainer's root."""

from __future__ import annotations

from pathlib import Path

import pytest
import roundlog
from roundlog import Job, Task, Trainer
from roundlog.examples.digits import digits
from roundlog.examples.gpt import gpt

from tests.conformance.test_second_verifier import RIGHT, WRONG, verify

TEXT = Path(__file__).resolve().parents[2] / "docs" / "tour.md"


def small_gpt(precision: str) -> Task:
    """Two layers of width 32, with dropout."""
    return gpt(data=TEXT, steps=2, interval=1, batch_size=4, context=16, width=32, precision=precision)


TASKS = {
    "digits": (lambda: digits(steps=4, interval=2), "exact"),
    "gpt": (lambda: small_gpt("fp32"), "exact"),
    "gpt in BF16": (lambda: small_gpt("bf16"), "exact"),
    "gpt as tensor cores add": (lambda: small_gpt("bf16"), "hopper"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_it_comes_to_the_trainers_root(name: str, tmp_path: Path) -> None:
    make, arithmetic = TASKS[name]
    with roundlog.portable():
        job = Job.from_task(make, arithmetic=arithmetic)
    job.write(tmp_path / "job")
    root = "0x" + Trainer(job, tmp_path / "run").run().checkpoint_root.hex()
    done = verify(tmp_path / "job", "--claim", root)
    assert (done.returncode, done.stderr) == (RIGHT, "")
    assert verify(tmp_path / "job", "--claim", "0x" + 64 * "1").returncode == WRONG
