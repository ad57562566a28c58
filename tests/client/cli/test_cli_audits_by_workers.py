"""Audits by many workers, as commands: claims of directories and of stores, shares, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog import segment_audits
from roundlog.commitments import MerkleTree, state_root
from roundlog.segment_audits.segment import CHECKPOINTS_FILE
from roundlog.storage import load_tensors, save_tensors
from roundlog.training.job import Job
from roundlog.training.run import Run as TrainingRun
from roundlog.training.run_files import checkpoint_path
from roundlog.training.trainer import Trainer
from tiebreak.store import FolderStore

from tests.client.cli.cli_world import Run, refused
from tests.e2e.world import small_job
from tests.engine.segment_audits.audit_workers import honest

INTERVALS = 6


@dataclass(frozen=True)
class World:
    """A job, an honest run of it, and one with a wrong state in the middle from which the rest follows."""

    job: Path
    honest: Path
    liar: Path
    root: bytes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    room = tmp_path_factory.mktemp("workers")
    job = small_job(steps=2 * INTERVALS, interval=2)
    job.write(room / "job")
    root = Trainer(job, room / "honest").run().checkpoint_root
    shutil.copytree(room / "honest", room / "liar")
    path = checkpoint_path(room / "liar", 6)
    states = load_tensors(path, job.program.states)
    first = next(iter(states))
    save_tensors(path, states | {first: states[first] + 1e-3})
    roots = TrainingRun(job, room / "liar").recorded_roots()
    roots[2] = state_root(load_tensors(path, job.program.states).values())
    rewrite(room / "liar", job, roots)
    return World(room / "job", room / "honest", room / "liar", root)


def rewrite(directory: Path, job: Job, roots: list[bytes]) -> None:
    """Puts other roots on record, as a run writes them."""
    with TrainingRun(job, directory).held() as record:
        record(roots)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are calls in this process."""
    monkeypatch.setattr(segment_audits, "process_workers", lambda threads: honest)


def told(shown: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_a_wrong_interval_ends_the_audit_with_exit_code_3(run: Run, world: World, tmp_path: Path) -> None:
    words = ("audit", world.job, "--run", tmp_path / "audit", "--claim", world.liar, "--workers", 2)
    shown = run(*words, "--json")
    found = told(shown)
    assert shown.exit_code == 3 and found["agrees"] is False and found["checkpoint_root"] is None
    assert found["wrong_interval"] in (2, 3) and found["stopped"] is None
    claimed = TrainingRun(Job.read(world.job), world.liar).recorded_roots()
    claimed[found["wrong_interval"]] = bytes.fromhex(found["wrong_root"][2:])
    assert found["challenge_root"] == "0x" + MerkleTree(claimed).root.hex()
    plain = run(*words)
    assert plain.exit_code == 3 and "WRONG" in plain.stdout
    assert found["challenge_root"] in "".join(plain.stdout.split())


def publish(run: Run, world: World, room: Path, every: int) -> tuple[str, Path]:
    """A log's address, and the store that it lies in."""
    words = ("train", world.job, "--run", room / "run", "--publish-every", every, "--store", room / "store", "--json")
    return told(run(*words))["published_log"], room / "store"


def test_a_checkpoint_that_was_mended_is_published_again(run: Run, world: World, tmp_path: Path) -> None:
    """A run was killed in its last interval, and the disk has bent an earlier checkpoint. The list names the right one
    once the run has ended."""
    job = Job.read(world.job)
    shutil.copytree(world.honest, tmp_path / "run")
    rewrite(tmp_path / "run", job, TrainingRun(job, world.honest).recorded_roots()[:-1])
    path = checkpoint_path(tmp_path / "run", 2)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    address, store = publish(run, world, tmp_path, 1)
    assert path.read_bytes() == checkpoint_path(world.honest, 2).read_bytes(), "mended"
    words = ("audit", world.job, "--run", tmp_path / "audit", "--claim", address, "--store", store, "--workers", 2)
    found = told(run(*words, "--json"))
    assert found["agrees"] is True and found["unusable_states"] == []


def audit(run: Run, world: World, tmp_path: Path, *words: object) -> Any:
    return run("audit", world.job, "--run", tmp_path / "audit", *words)


def test_command_lines_that_contradict_themselves_are_refused(run: Run, world: World, tmp_path: Path) -> None:
    claim = ("--claim", world.honest)
    for words, parts in [
        ((*claim, "--share", 0.1), ("--share", "--workers")),
        ((*claim, "--repeat-share", 0.1), ("--repeat-share", "--workers")),
        ((*claim, "--workers", 2, "--share", 0), ("share of 0",)),
        ((*claim, "--workers", 2, "--log", world.honest / "log"), ("no log", "--workers")),
        (("--workers", 2), ("--claim",)),
        (("--claim", "0x" + "55" * 32, "--workers", 2), ("a root alone",)),
        (("--claim", tmp_path / "nowhere", "--workers", 2), ("neither a run directory nor the content address",)),
    ]:
        refused(audit(run, world, tmp_path, *words), *parts, code=2)
    assert not (tmp_path / "audit").exists()


def test_claims_without_what_workers_need_are_refused(run: Run, world: World, tmp_path: Path) -> None:
    store = tmp_path / "store"
    bare = FolderStore(store).add_directory(world.honest / "log")
    words = ("--store", store, "--workers", 2)
    refused(audit(run, world, tmp_path, "--claim", bare, *words), bare, "lists no checkpoints", "--publish-every")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / CHECKPOINTS_FILE).write_bytes(b'{"format": "\x1b[31m"}')
    address = FolderStore(store).add_directory(hostile)
    text = refused(audit(run, world, tmp_path, "--claim", address, *words), "lists no checkpoints")
    assert text.isprintable()
    missing = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
    refused(audit(run, world, tmp_path, "--claim", missing, *words), missing)
    (short := tmp_path / "short").mkdir()
    (short / "roots").write_bytes(bytes(32))
    refused(audit(run, world, tmp_path, "--claim", short, "--workers", 2), "has 1 of 6 checkpoints")


def test_what_is_not_kept_cannot_be_published(run: Run, world: World, tmp_path: Path) -> None:
    words = ("train", world.job, "--run", tmp_path / "run", "--publish-every", 3, "--keep-every", 2)
    refused(run(*words), "--publish-every 3", "--keep-every 2", "multiple", code=2)
