"""Random whole runs: a sample of `make fuzz-runs`, and that its judge would notice what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from roundlog.commitments import BlockTree
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer

from tests.chaos.machine import play
from tests.engine.segment_audits.published_runs import Trained
from tests.fuzz import random_audits
from tests.fuzz.random_audits import Auditing
from tests.fuzz.random_claims import Claim, claim_of
from tests.fuzz.random_deliveries import Delivery
from tests.fuzz.random_jobs import RandomJob, random_job
from tests.fuzz.random_runs import RandomRun
from tests.fuzz.random_work import Reading


@pytest.fixture(autouse=True)
def processes_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_keep_every_promise() -> None:
    play(RandomRun, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_deliveries_by_a_shaky_store_keep_every_promise(trained: Trained, tmp_path: Path) -> None:
    Delivery(trained, tmp_path, Random(7)).play()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wrong_data_would_be_noticed(trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of deliveries in which nobody holds blocks against their roots, some come to other numbers."""
    monkeypatch.setattr(BlockTree, "first_wrong", lambda tree, blocks, data: None)
    noticed = r"wrong data have made a root|another root|other roots|right is|wrong from"
    with pytest.raises(AssertionError, match=noticed):
        for seed in range(30):
            Delivery(trained, tmp_path / str(seed), Random(seed)).play()


# The judge itself: what it is told of a claim is not so, and it has to say so.


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    room = tmp_path_factory.mktemp("trained")
    job = Job.from_task(_plain().made_by(room / "data"))
    job.write(room / "job")
    return Trained(room, job, Trainer(job, room / "run").run().state_roots)


def _plain() -> RandomJob:
    """A job without chance, of several intervals."""
    jobs = (random_job(seed) for seed in range(1000))
    return next(job for job in jobs if job.name.startswith("rows, SGD") and "x 6 by 1" in job.name)


AUDITS: dict[str, Callable[[Auditing], str]] = {
    "whole": lambda it: random_audits.whole(it, by_processes=False),
    "workers": random_audits.by_workers,
}


def _auditing(trained: Trained, claim: Claim, where: Path) -> Auditing:
    return Auditing(
        job=trained.job,
        reading=Reading(directory=trained.directory / "job", stores=(), held=True),
        others=[],
        claim=claim,
        honest=trained.roots,
        in_store=False,
        where=where,
        draw=Random(3),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", AUDITS)
def test_an_accusation_of_the_honest_would_be_noticed(kind: str, trained: Trained, tmp_path: Path) -> None:
    claim = claim_of(trained, tmp_path / "claimed", "state", Random(1), None)
    AUDITS[kind](_auditing(trained, claim, tmp_path / "right"))
    honest = replace(claim, first_wrong=None)
    with pytest.raises(AssertionError, match=r"an honest trainer is accused|right is False of"):
        AUDITS[kind](_auditing(trained, honest, tmp_path / "audit"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", AUDITS)
def test_a_liar_who_is_not_found_would_be_noticed(kind: str, trained: Trained, tmp_path: Path) -> None:
    claim = claim_of(trained, tmp_path / "claimed", "nothing", Random(1), None)
    AUDITS[kind](_auditing(trained, claim, tmp_path / "right"))
    with pytest.raises(AssertionError, match=r"a lie is not found|right is True of"):
        AUDITS[kind](_auditing(trained, replace(claim, first_wrong=2), tmp_path / "audit"))
