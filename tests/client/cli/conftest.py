"""A small job, trained once, and a chain with the contract: what the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from tiebreak.cli.app import app
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.launcher import start_devnet
from tiebreak.roles.background_jobs import BackgroundJobs
from tiebreak.rpc.node import connect
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from typer.testing import CliRunner, Result

from tests.client.cli.cli_world import Chain, Run, Trained
from tests.e2e.world import small_job
from tests.engine.kept_jobs import kept_job


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without settings of the user's, so that none decides a test."""
    import os

    for name in [name for name in os.environ if name.startswith("TIEBREAK_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_background_job_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads of a role that gave up go on until their process ends, and would print into the next test's output."""
    begun: list[BackgroundJobs] = []
    make = BackgroundJobs.__init__

    def remembered(self: BackgroundJobs, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        begun.append(self)

    monkeypatch.setattr(BackgroundJobs, "__init__", remembered)
    yield
    for background_jobs in begun:
        assert background_jobs.close(60), "a background job goes on for a minute after it was told to stop"


@pytest.fixture
def run() -> Run:
    """Runs a command inside this process, with an environment for it alone."""

    def invoke(*words: object, env: dict[str, str] | None = None, stdin: str = "") -> Result:
        return CliRunner().invoke(app, [str(word) for word in words], env=env or {}, input=stdin)

    return invoke


def run_of(job: Job, room: Path) -> Trained:
    torch.set_num_threads(1)
    job.write(room / "job")
    return Trained(room / "job", room / "run", Trainer(job, room / "run").run().checkpoint_root)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Four steps of a logistic regression, a checkpoint every two. Read only."""
    return run_of(small_job(steps=4, interval=2), tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """As many steps of a very small GPT in BF16, with entries in its log. Read only."""
    return run_of(kept_job("gpt_bf16"), tmp_path_factory.mktemp("logged"))


@pytest.fixture(scope="session")
def chain() -> Iterator[Chain]:
    with start_devnet(kind="embedded") as devnet:
        yield Chain(VerificationGame.deploy(Sender(connect(devnet.url), devnet_account(9))), devnet.url)
