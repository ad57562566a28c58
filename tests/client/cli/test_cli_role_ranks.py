"""`trainer run` and `auditor run` by ranks: one party, whatever becomes of the processes that help it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_world import Chain, Run, Trained, refused
from roundlog.examples.digits import digits
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from test_cli_ranks import ALONE, BROKEN, by_hand, ended
from tiebreak.chain.accounts import devnet_account
from tiebreak.chain.records import JobStatus

REFEREE = devnet_account(3).address


@pytest.fixture
def job(run: Run, chain: Chain, trained: Trained, tmp_path: Path) -> int:
    return post(run, chain, trained.job, tmp_path)


def post(run: Run, chain: Chain, directory: Path, tmp_path: Path) -> int:
    words = ("job", "create", directory, "--reward", "0.5ether", "--clock", "6h", "--referee", REFEREE)
    result = run(*words, "--store", tmp_path / "store", "--json", env=chain.environment(0))
    assert result.exit_code == 0, result.stderr
    return int(json.loads(result.stdout)["job"])


def role(name: str, job: int, tmp_path: Path) -> list[object]:
    """The command of a role, with a directory that is its own."""
    places = ["--store", tmp_path / "store", "--dir", tmp_path / name]
    return [name, "run", "--job", job, "--poll", 0.05, *places, "--json"]


def until(condition: Callable[[], bool], processes: list[Any], seconds: float = 120) -> None:
    """Waits for something that a role does; none of its processes may end before."""
    deadline = time.monotonic() + seconds
    while not condition():
        if any(one.poll() is not None for one in processes) or time.monotonic() > deadline:
            raise AssertionError(ended([*map(stopped, processes)], 10))
        time.sleep(0.05)


def stopped(process: Any) -> Any:
    process.kill()
    return process


def start(
    monkeypatch: pytest.MonkeyPatch, chain: Chain, account: int, words: list[object], starts: Any = None
) -> list[Any]:
    """Two ranks, of which only the first has a key."""
    for name, value in chain.environment().items():
        monkeypatch.setenv(name, value)
    key = chain.environment(account)["TIEBREAK_PRIVATE_KEY"]
    return by_hand([words, words], starts, [{"TIEBREAK_PRIVATE_KEY": key}, {}])


def finish(chain: Chain, job: int) -> None:
    now, deadline = chain.game.node.now(), chain.game.job(job).claim.challenge_deadline
    chain.game.node.advance_time(deadline + 1 - now)


def test_a_trainer_and_an_auditor_of_two_ranks_each_do_what_one_process_does(
    chain: Chain, trained: Trained, job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(monkeypatch, chain, 1, role("trainer", job, tmp_path))
    until(lambda: chain.game.job(job).status is JobStatus.CLAIMED, trainer)
    assert chain.game.job(job).claim.checkpoint_root == trained.root
    auditor = start(monkeypatch, chain, 2, role("auditor", job, tmp_path))
    until(lambda: chain.game.job(job).attestations == 1, auditor)
    finish(chain, job)
    for processes in (trainer, auditor):
        (code, out, err), (other, silent, said) = ended(processes)
        assert (code, other, silent) == (0, 0, ""), err + said
        assert "goes on alone" not in out and json.loads(out.splitlines()[-1])["finished"] is True
        # The claim was audited as a whole, and every step was helped with.
        assert said.splitlines() == ["rank 1 has helped with 4 steps"]
    assert chain.game.job(job).status is JobStatus.FINAL
