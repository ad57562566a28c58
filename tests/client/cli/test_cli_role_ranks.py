"""`trainer run` and `auditor run` by ranks: one party, whatever becomes of the processes that help it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roundlog.examples.digits import digits
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import JobStatus
from tiebreak.transactions.keys import devnet_account

from tests.client.cli.cli_world import Chain, Run, Trained, refused
from tests.client.cli.test_cli_ranks import ALONE, BROKEN, by_hand, ended

REFEREE = devnet_account(3).address


@pytest.fixture
def job(run: Run, chain: Chain, trained: Trained, tmp_path: Path) -> int:
    return post(run, chain, trained.job, tmp_path)


def post(run: Run, chain: Chain, directory: Path, tmp_path: Path) -> int:
    words = ("job", "create", directory, "--reward", "0.5ether", "--clock", "6h", "--referee", REFEREE)
    places = ("--store", tmp_path / "store", "--dir", tmp_path / "customer")
    result = run(*words, *places, "--json", env=chain.environment(0))
    assert result.exit_code == 0, result.stderr
    return int(json.loads(result.stdout)["job"])


def role(name: str, job: int, tmp_path: Path) -> list[object]:
    """The command of a role, with a directory that is its own."""
    places = ["--store", tmp_path / "store", "--dir", tmp_path / name]
    return [name, "run", "--job", job, "--poll", "50ms", *places, "--json"]


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


@pytest.fixture
def long_job(run: Run, chain: Chain, tmp_path: Path) -> int:
    """A job in which there is time to kill somebody."""
    Job.from_task(lambda: digits(steps=40, interval=2, batch_size=16, width=4)).write(tmp_path / "job")
    return post(run, chain, tmp_path / "job", tmp_path)


def recorded(place: Path) -> int:
    """Intervals that a role has on record."""
    return max((path.stat().st_size // 32 for path in place.rglob("roots")), default=0)


@pytest.mark.slow
def test_a_trainer_that_loses_its_helper_goes_on_alone(
    chain: Chain, long_job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = start(monkeypatch, chain, 1, role("trainer", long_job, tmp_path))
    until(lambda: recorded(tmp_path / "trainer") > 1, processes)
    processes[1].send_signal(signal.SIGKILL)
    assert recorded(tmp_path / "trainer") < 20
    until(lambda: chain.game.job(long_job).status is JobStatus.CLAIMED, processes[:1])
    finish(chain, long_job)
    (code, out, err), _ = ended(processes)
    assert code == 0, err
    warnings = [told["text"] for told in map(json.loads, out.splitlines()) if told["what"] == "warning"]
    (warning,) = [text for text in warnings if "goes on alone" in text]
    assert f": rank 1 (process {processes[1].pid} on " in warning
    alone = Trainer(Job.read(tmp_path / "job"), tmp_path / "alone").run()
    assert chain.game.job(long_job).claim.checkpoint_root == alone.checkpoint_root


@pytest.mark.slow
def test_a_trainer_that_is_ended_by_the_launcher_names_the_lost_rank_and_resumes(
    chain: Chain, long_job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = role("trainer", long_job, tmp_path)
    processes = start(monkeypatch, chain, 1, words)
    until(lambda: recorded(tmp_path / "trainer") > 1, processes)
    processes[1].send_signal(signal.SIGKILL)
    processes[0].terminate()
    (code, out, err), _ = ended(processes)
    assert code == 1, err
    message = json.loads(err.splitlines()[-1])["error"]["message"]
    assert message.startswith(f"rank 1 (process {processes[1].pid} on ") and "run the same command again" in message
    assert json.loads(out.splitlines()[-1])["finished"] is False
    done = recorded(tmp_path / "trainer")
    again = start(monkeypatch, chain, 1, words)
    until(lambda: chain.game.job(long_job).status is JobStatus.CLAIMED, again)
    finish(chain, long_job)
    (code, _, err), (other, _, said) = ended(again)
    assert (code, other) == (0, 0), err + said
    helped = int(said.split()[-2])
    assert 0 < helped <= 40 - 2 * (done - 1)


@pytest.mark.slow
@pytest.mark.parametrize("stopped_alone", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_trainer_that_is_stopped_says_so_and_its_helper_names_it(
    stopped_alone: bool, chain: Chain, long_job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of a run: by the launcher, which terminates both, or alone."""
    processes = start(monkeypatch, chain, 1, role("trainer", long_job, tmp_path))
    until(lambda: recorded(tmp_path / "trainer") > 1, processes)
    for one in processes[:1] if stopped_alone else processes:
        one.terminate()
    (code, _, err), (other, silent, said) = ended(processes)
    assert code == 130, err
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "interrupted"
    assert silent == ""
    message = json.loads(said.splitlines()[-1])["error"]["message"]
    if stopped_alone:
        assert other == 1 and message.startswith(f"rank 0 (process {processes[0].pid} on "), said
    else:
        assert other in (1, 130), said


@pytest.mark.slow
def test_a_helper_that_cannot_compute_is_named_before_anything_is_done(
    chain: Chain, job: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [ALONE[0], "-c", f"{BROKEN}\nfrom tiebreak.cli.app import main\nmain()"]
    processes = start(monkeypatch, chain, 1, role("trainer", job, tmp_path), [ALONE, changed])
    for code, out, err in ended(processes):
        assert (code, out) == (1, ""), err
        message = json.loads(err.splitlines()[-1])["error"]["message"]
        assert message.startswith(f"rank 1 (process {processes[1].pid} on ")
        assert "cannot take part: this process flushes subnormal numbers to zero" in message
    assert not (tmp_path / "trainer").exists()


def test_what_takes_one_process_refuses_to_be_several(run: Run, tmp_path: Path) -> None:
    ranks = {"WORLD_SIZE": "2", "RANK": "1"}
    for words, command in (
        (("referee", "run"), "tiebreak referee run"),
        (("job", "collect", 1, "--model", tmp_path / "model"), "tiebreak job collect"),
        (("auditor", "run", "--job", 1, "--workers", 2), "tiebreak auditor run --workers"),
    ):
        refused(run(*words, env=ranks), f"{command} runs in one process, and torchrun", "start it alone", code=2)


def test_a_role_whose_launcher_gave_it_no_rank_is_refused(run: Run) -> None:
    refused(run("trainer", "run", "--job", 1, env={"WORLD_SIZE": "2"}), "RANK is not there")
