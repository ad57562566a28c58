"""Roles that torchrun starts as several ranks, on anvil: a market of processes, and ranks that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.rank_runs import Helpers, MakeExecution
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import JobStatus, Outcome, Reason
from tiebreak.devnet.embedded import embedded_node
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.roles import engine
from tiebreak.roles.customer_role import post_job
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.rpc.node import connect
from tiebreak.transactions.keys import devnet_account

from tests.e2e.world import NAMES, TERMS, World, ended, small_job
from tests.engine.ranks.rank_processes import free_port

pytestmark = pytest.mark.slow
TIEBREAK = [sys.executable, "-P", "-m", "tiebreak"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
BY_TWO = [*TORCHRUN, "--no-python", "--", *TIEBREAK]
STEPS, INTERVAL = 30, 3


@dataclass
class Process:
    """A process of the market, and what it says."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.startswith("{")]

    def end(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)


@dataclass
class Market:
    """A chain, a store, and processes that take part."""

    world: World
    url: str
    processes: list[Process] = field(default_factory=list)

    def post(self, terms: Any = TERMS) -> int:
        files = self.world.root / "files"
        return post_job(self.world.context("customer"), files, terms, self.referee)

    @property
    def referee(self) -> str:
        return self.world.senders["referee"].address

    def start(self, name: str, command: list[object], **settings: str) -> Process:
        """A process with the key of an account, and a directory of its own."""
        key = bytes(devnet_account(NAMES.index(name)).key).hex()
        places = {"CHAIN": self.url, "CONTRACT": self.world.contract.address, "STORE": str(self.world.root / "store")}
        out, err = (self.world.root / f"{name} {len(self.processes)} {kind}" for kind in ("out", "err"))
        with out.open("wb") as heard, err.open("wb") as complained:
            process = subprocess.Popen(
                [*map(str, command), "--dir", str(self.world.root / name), "--poll", "100ms", "--json"],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "TIEBREAK_PRIVATE_KEY": key,
                    **{f"TIEBREAK_{setting}": value for setting, value in places.items()},
                    **settings,
                },
                stdout=heard,
                stderr=complained,
            )
        self.processes.append(Process(process, out, err))
        return self.processes[-1]

    def until(self, condition: Callable[[], bool], *alive: Process, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [one for one in alive if one.process.poll() is not None]
            assert not ended and time.monotonic() < deadline, "\n".join(
                f"{one.out.name}: {one.out.read_text()[-2000:]} {one.err.read_text()[-2000:]}" for one in self.processes
            )
            time.sleep(0.1)

    def status(self, job: int) -> JobStatus:
        return self.world.contract.job(job).status


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil") as devnet:
        world = World(connect(devnet.url), tmp_path)
        small_job(STEPS, INTERVAL).write(tmp_path / "files")
        made = Market(world, devnet.url)
        yield made
        for one in made.processes:
            one.process.kill()
            one.process.wait()


def test_an_auditor_of_two_ranks_attests_to_a_trainer_of_two_and_wins_against_a_liar(market: Market) -> None:
    """No rank is lost, and one pair of ranks audits both jobs."""
    honest, wrong = market.post(), market.post()
    trainer = market.start("trainer", [*BY_TWO, "trainer", "run", "--job", honest])
    liar = [sys.executable, "-m", "tiebreak_demo.adversary.process", "poison", wrong, 17]
    liar_process = market.start("second", liar)
    audits = ["auditor", "run", "--trust-referee", market.referee, "--micro-batches", 4]
    auditor = market.start("auditor", [*BY_TWO, *audits])
    contract = market.world.contract
    market.until(lambda: contract.job(honest).attestations == 1, trainer, auditor)
    market.until(lambda: market.status(wrong) is JobStatus.REJECTED, auditor)
    game = contract.game(1)
    assert (game.outcome, game.reason) == (Outcome.CHALLENGER_WON, Reason.PROOF)
    # Sixth interval, third step of it.
    assert [level.index for level in game.levels[:2]] == [5, 2]
    right = Trainer(Job.read(market.world.root / "files"), market.world.root / "alone").run().checkpoint_root
    assert contract.job(honest).claim.checkpoint_root == right
    market.world.pass_time(contract.job(honest).claim.challenge_deadline)
    assert trainer.end() == 0, trainer.err.read_text()
    assert market.status(honest) is JobStatus.FINAL
    assert f"rank 1 has helped with {STEPS} steps" in trainer.err.read_text()
    assert liar_process.end() == 0
    auditor.process.send_signal(signal.SIGTERM)
    auditor.end()
    assert auditor.told()[-1]["what"] == "ended"
    for one in (trainer, auditor):
        assert not [told for told in one.told() if told["what"] == "warning" and "alone" in told["text"]]
    computed = [told["text"] for told in auditor.told() if told["what"] == "computed"]
    assert len([text for text in computed if text.startswith("audited to checkpoint root")]) == 2


IMPATIENT = """
import os, time
from pathlib import Path
from roundlog.execution.ranks import membership
from roundlog.training.job import Job
from tiebreak.cli.app import main

membership.LATE = 2.0
inputs, stuck = Job.inputs, Path(os.environ["STUCK"])

def waits(job, batches, step, *given):
    while os.environ["RANK"] == "1" and step == 7 and stuck.exists():
        time.sleep(0.1)
    return inputs(job, batches, step, *given)

Job.inputs = waits
main()
"""
"""A role whose rank 1 is stuck at a step, for as long as there is a file; its seconds are in place of minutes."""


def test_a_role_warns_of_a_helper_that_is_stuck_and_goes_on_once_it_does(market: Market) -> None:
    job, stuck = market.post(), market.world.root / "stuck"
    stuck.touch()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "STUCK": str(stuck)}
    words = [sys.executable, "-c", IMPATIENT, "trainer", "run", "--job", job]
    trainer, helper = (market.start("trainer", words, RANK=str(rank), **shared) for rank in range(2))

    said = f"rank 1 (process {helper.process.pid} on "
    market.until(lambda: said in trainer.err.read_text(), trainer, helper)
    assert " kept rank 0 waiting for " in trainer.err.read_text()
    stuck.unlink()
    market.until(lambda: market.status(job) is JobStatus.CLAIMED, trainer, helper)
    right = Trainer(Job.read(market.world.root / "files"), market.world.root / "alone").run().checkpoint_root
    assert market.world.contract.job(job).claim.checkpoint_root == right


class Busy:
    """Helpers that never have time (as `roundlog.training.Helpers`)."""

    def execute(self, job: Job, run: Callable[[MakeExecution], Any], alone: MakeExecution, warn: object) -> Any:
        return run(alone)


@pytest.mark.parametrize(
    ("helped", "seconds", "keep_every", "enough"),
    [(False, 1e6, 1, True), (True, 20.0, 1, True), (True, 20.0, 5, False)],
)
def test_clocks_are_judged_by_what_rank_0_does_alone(
    helped: bool, seconds: float, keep_every: int, enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the states that it keeps. seconds: of a step, which only a helped role measures beside its run."""
    world = World(embedded_node(), tmp_path)
    world.post()
    monkeypatch.setattr(engine, "step_seconds", lambda job, options: seconds)
    context = world.context("trainer")
    helpers = cast(Helpers, Busy()) if helped else None
    chosen = replace(context.engine, helpers=helpers, options=RunOptions(keep_every=keep_every))
    trainer = TrainerRole(replace(context, engine=chosen), world.job)
    if enough:
        world.run(trainer)
    else:
        assert "clock" in ended(trainer).state
    assert (world.status is JobStatus.CLAIMED) is enough
