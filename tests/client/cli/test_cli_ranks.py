"""Commands by ranks: the root of one process, whatever becomes of the ranks; and a role that others help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from roundlog.examples.digits import digits
from roundlog.training.job import Job

from tests.client.cli.cli_world import Chain, Run, Trained, refused
from tests.engine.ranks.rank_processes import free_port, seconds_to_stop

ALONE = [sys.executable, "-P", "-m", "tiebreak"]


def by_hand(
    commands: Sequence[Sequence[object]],
    starts: Sequence[Sequence[str]] | None = None,
    settings: Sequence[Mapping[str, str]] | None = None,
) -> list[Any]:
    """Starts one rank a command, without a launcher. starts: what starts `tiebreak` on each rank. settings: further
    variables of each rank."""
    port, size = str(free_port()), len(commands)
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [*start, *map(str, command)],
            env={
                **os.environ,
                **shared,
                **own,
                "RANK": str(rank),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, (command, start, own) in enumerate(
            zip(commands, starts or [ALONE] * size, settings or [{}] * size, strict=True)
        )
    ]


def ended(processes: list[Any], seconds: float = 240) -> list[tuple[int, str, str]]:
    """(exit code, standard output, standard error) of every process."""
    try:
        return [(lambda said, one=one: (one.returncode, *said))(one.communicate(timeout=seconds)) for one in processes]
    finally:
        for one in processes:
            one.kill()
            one.wait()


def train(job: Path, run: Path) -> list[object]:
    return ["train", job, "--run", run, "--json"]


@pytest.mark.slow
def test_three_ranks_of_torchrun_audit_what_two_have_trained(run: Run, trained: Trained, tmp_path: Path) -> None:
    """And so does one process."""

    def by_torchrun(ranks: int, *words: object) -> Any:
        # After `--`, since Python 3.11 takes `--run` for one of torchrun's own options.
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run(
            [*launcher, "--no-python", "--", *ALONE, *map(str, words), "--json"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    made = tmp_path / "trained"
    assert by_torchrun(2, "train", trained.job, "--run", made)["checkpoint_root"] == "0x" + trained.root.hex()
    audit = ["audit", trained.job, "--log", made / "log", "--claim", made, "--verify-log", "all"]
    for found in (
        by_torchrun(3, *audit, "--run", tmp_path / "by ranks"),
        json.loads(run(*audit, "--run", tmp_path / "alone", "--json").stdout),
    ):
        assert found["agrees"] is True and found["log"] == "right" and found["findings"] == []
    for name in ("roots", "roots.sums"):
        assert (made / name).read_bytes() == (trained.run / name).read_bytes()


def recorded(run: Path) -> int:
    """Intervals that a run has on record."""
    return (run / "roots").stat().st_size // 32 if (run / "roots").exists() else 0


@pytest.mark.slow
def test_a_run_whose_rank_was_killed_carries_on_with_another_number(tmp_path: Path, run: Run) -> None:
    victim = 1
    Job.from_task(lambda: digits(steps=60, interval=1)).write(tmp_path / "job")
    made = tmp_path / "trained"
    processes = by_hand([train(tmp_path / "job", made)] * 3)
    while recorded(made) < 2 and all(one.poll() is None for one in processes):
        time.sleep(0.01)
    processes[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for rank, (code, out, err) in enumerate(ended(processes)):
        if rank != victim:
            assert (code, out) == (1, ""), err
            message = json.loads(err.splitlines()[-1])["error"]["message"]
            # Without a launcher, the store lies with rank 0, which can be missed by either.
            assert message.startswith(f"rank {victim} (process {processes[victim].pid} on "), err
            assert message.endswith("run the same command again, with any number of ranks, to carry on."), err
    assert time.monotonic() - killed < seconds_to_stop()
    done = recorded(made)
    assert 2 <= done < 60
    (code, out, err), _ = ended(by_hand([train(tmp_path / "job", made)] * 2))
    assert code == 0, err
    found = json.loads(out)
    assert found["resumed_from"] >= done
    alone = json.loads(run(*train(tmp_path / "job", tmp_path / "alone")).stdout)
    assert found["checkpoint_root"] == alone["checkpoint_root"]


BROKEN = """
from roundlog.training import rank_runs

def fails(device, products):
    raise rank_runs.MachineError("this process flushes subnormal numbers to zero")

rank_runs.check_machine = fails
"""


@pytest.mark.slow
def test_a_rank_with_another_job_is_named_by_all(trained: Trained, tmp_path: Path) -> None:
    Job.from_task(lambda: digits(steps=5, interval=1)).write(tmp_path / "other")
    run = tmp_path / "trained"
    for code, _, err in ended(by_hand([train(trained.job, run), train(tmp_path / "other", run)])):
        assert code == 1
        assert ") has another job (" in err and "give every rank the same job" in err


def test_an_environment_without_a_rank_is_refused(run: Run, tmp_path: Path) -> None:
    refused(run(*train(tmp_path / "job", tmp_path), env={"WORLD_SIZE": "2"}), "RANK is not there")


@pytest.mark.slow
def test_a_helper_that_cannot_compute_is_named_before_a_role_does_anything(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a person is called once, by rank 0: a game may wait for it."""
    changed = [ALONE[0], "-c", f"{BROKEN}\nfrom tiebreak.cli.app import main\nmain()"]
    places = ["--store", tmp_path / "store", "--dir", tmp_path / "trainer", "--notify", f"tee -a {tmp_path / 'alerts'}"]
    for name, value in chain.environment().items():
        monkeypatch.setenv(name, value)
    key = chain.environment(1)["TIEBREAK_PRIVATE_KEY"]
    words = ["trainer", "run", "--job", 1, "--json", *places]
    processes = by_hand([words, words], [ALONE, changed], [{"TIEBREAK_PRIVATE_KEY": key}, {}])
    for code, out, err in ended(processes):
        assert (code, out) == (1, ""), err
        message = json.loads(err.splitlines()[-1])["error"]["message"]
        assert message.startswith(f"rank 1 (process {processes[1].pid} on ")
        assert "cannot take part: this process flushes subnormal numbers to zero" in message
    assert not (tmp_path / "trainer").exists()
    alert = (tmp_path / "alerts").read_text()
    assert alert.count("role-ended") == 1 and f"rank 1 (process {processes[1].pid} on " in alert


def test_what_takes_one_process_refuses_to_be_several(run: Run, tmp_path: Path) -> None:
    ranks = {"WORLD_SIZE": "2", "RANK": "1"}
    for words, command in (
        (("referee", "run"), "tiebreak referee run"),
        (("job", "collect", 1, "--model", tmp_path / "model"), "tiebreak job collect"),
        (("auditor", "run", "--job", 1, "--workers", 2), "tiebreak auditor run --workers"),
    ):
        refused(run(*words, env=ranks), f"{command} runs in one process, and torchrun", "start it alone", code=2)
