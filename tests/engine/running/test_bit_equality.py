"""One root on every machine: every task, several hardware profiles, fresh processes, with the log and without."""

import hashlib
import os
import subprocess
import sys

import pytest
from processes import PROFILES, finish, start
from roundlog.job import Job
from tasks import TASKS

DIFFERS = """
import hashlib, torch
torch.manual_seed(0)
a, b, x = torch.randn(64, 333, dtype=torch.float64), torch.randn(333, 64, dtype=torch.float64), torch.randn(20000)
print(hashlib.sha256((a @ b).numpy().tobytes() + torch.log1p(x.abs().double()).numpy().tobytes()).hexdigest())
"""


def test_the_profiles_really_are_different_machines() -> None:
    """Else this file would prove nothing: plain FP64 PyTorch must differ between at least two of them."""
    hashes = set()
    for profile in PROFILES.values():
        result = subprocess.run(
            [sys.executable, "-c", DIFFERS], env={**os.environ, **profile}, check=True, capture_output=True, text=True
        )
        hashes.add(result.stdout.strip())
    if len(hashes) == 1:
        pytest.skip("on this machine all hardware profiles give the same FP64 bits: nothing to compare")


@pytest.mark.parametrize("name", TASKS)
def test_every_machine_gets_the_same_root_and_the_same_log(name: str, tmp_path) -> None:
    Job.from_task(TASKS[name]()).write(tmp_path / "job")
    trainer = finish(start("native", "train", tmp_path / "job", tmp_path / "trainer"))
    log = tmp_path / "trainer" / "log"
    audits = [
        start(profile, "audit twice", tmp_path / "job", tmp_path / profile, log, 0.5)
        for profile in ("old", "avx2", "sse")
    ]
    # Another machine as the trainer, too.
    again = start("old", "train", tmp_path / "job", tmp_path / "other")
    for audit in audits:
        assert finish(audit) == {"root": trainer["root"], "findings": []}
    assert finish(again)["root"] == trainer["root"]


def test_a_log_and_a_state_have_the_same_bytes_every_time(tmp_path) -> None:
    Job.from_task(TASKS["conv"]()).write(tmp_path / "job")
    digests = []
    for run in ("a", "b"):
        finish(start("native", "train", tmp_path / "job", tmp_path / run))
        files = sorted(p for p in (tmp_path / run).rglob("*") if p.suffix in (".rlog", ".safetensors"))
        digests.append([(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files])
    assert digests[0] == digests[1]
    assert len(digests[0]) == 6
