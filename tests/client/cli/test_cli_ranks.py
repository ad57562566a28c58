"""`train` and `audit` by ranks: the root of one process, whatever becomes of the ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import roundlog.training
import torch
from roundlog.execution.ranks import Launch
from roundlog.training.options import RunOptions
from tiebreak.cli.ranks import RankGroup

from tests.client.cli.cli_world import Run, Trained, refused
from tests.e2e.world import small_job
from tests.engine.ranks.rank_processes import free_port, seconds_to_stop

ALONE = [sys.executable, "-P", "-m", "tiebreak"]


def by_hand(commands: Sequence[Sequence[object]]) -> list[Any]:
    """Starts one rank a command, without a launcher."""
    shared = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return [
        subprocess.Popen(
            [*ALONE, *map(str, command)], env={**os.environ, **shared, "RANK": str(rank)}, text=True, **pipes
        )
        for rank, command in enumerate(commands)
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


@pytest.mark.long
def test_three_ranks_of_torchrun_audit_what_two_have_trained(run: Run, trained: Trained, tmp_path: Path) -> None:
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
    by_two = by_torchrun(2, "train", trained.job, "--run", made)
    assert (by_two["checkpoint_root"], by_two["ranks"]) == ("0x" + trained.root.hex(), 2)
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
    small_job(steps=60, interval=1).write(tmp_path / "job")
    made, victim = tmp_path / "trained", 1
    processes = by_hand([train(tmp_path / "job", made)] * 3)
    while recorded(made) < 2 and all(one.poll() is None for one in processes):
        time.sleep(0.01)
    processes[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for rank, (code, out, err) in enumerate(ended(processes)):
        if rank != victim:
            assert (code, out) == (1, ""), err
            message = json.loads(err.splitlines()[-1])["error"]["message"]
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


def group_of(rank: int, local_rank: int, monkeypatch: pytest.MonkeyPatch) -> tuple[RankGroup, list[str]]:
    """One of several processes, and the devices on which it agrees with the others."""
    chosen: list[str] = []

    class Alike:
        def __init__(self) -> None:
            self.rank, self.size, self.device = rank, 8, torch.device("cpu")

    def agrees(ranks: Alike, *given: object) -> None:
        chosen.append(str(given[-1]))
        ranks.device = torch.device(chosen[-1])

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    # The room's face keeps what it has loaded, and the command line asks the face.
    monkeypatch.setattr(roundlog.training, "agree", agrees)
    launch = Launch(rank, 8, "10.0.0.1", 29500, "tiebreak/none/0", is_host=False, local_rank=local_rank)
    return RankGroup(cast(Any, Alike()), launch), chosen


def test_a_role_runs_on_the_device_of_its_place_alone_and_with_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    group, chosen = group_of(0, 2, monkeypatch)
    options = RunOptions(device="cuda", keep_every=7)
    assert not group.helps(1 << 30, options)
    found = group.on_device(options)
    assert found is not None and chosen == ["cuda:2"]
    assert (found.device, found.keep_every) == (torch.device("cuda:2"), 7)
    # One process alone has what was chosen.
    assert RankGroup(None).on_device(options) is options


@pytest.mark.slow
def test_only_rank_0_needs_what_the_trainer_has_written(trained: Trained, tmp_path: Path) -> None:
    """The others may be on other machines."""
    shared = ["audit", trained.job, "--json", "--run", tmp_path]
    words = [[*shared, "--log", place / "log", "--claim", place] for place in (trained.run, tmp_path / "none")]
    (code, out, err), (other, silent, _) = ended(by_hand(words))
    assert (code, other, silent) == (0, 0, ""), err
    assert json.loads(out)["agrees"] is True and json.loads(out)["log"] == "right"


def test_an_environment_without_a_rank_is_refused(run: Run, tmp_path: Path) -> None:
    for words in (train(tmp_path / "job", tmp_path), ["trainer", "run", "--job", 1]):
        refused(run(*words, env={"WORLD_SIZE": "2"}), "RANK is not there")


def test_what_takes_one_process_refuses_to_be_several(run: Run, tmp_path: Path) -> None:
    ranks = {"WORLD_SIZE": "2", "RANK": "1"}
    for words, command in (
        (("referee", "run"), "tiebreak referee run"),
        (("job", "collect", 1, "--model", tmp_path / "model"), "tiebreak job collect"),
        (("auditor", "run", "--job", 1, "--workers", 2), "tiebreak auditor run --workers"),
    ):
        refused(run(*words, env=ranks), f"{command} runs in one process, and torchrun", "start it alone", code=2)
