"""Publishing checkpoints and auditing by many workers, as commands."""

from __future__ import annotations

import json
from pathlib import Path

from roundlog.commitments import MerkleTree, state_root
from roundlog.segment_audits.segment import CHECKPOINTS_FILE, read_listing
from roundlog.storage import load_tensors
from roundlog.training.job import Job
from tiebreak.store import FolderStore

from tests.client.cli.cli_world import Run, Trained, refused
from tests.client.crafted_blocks import everything


def test_a_training_publishes_its_checkpoints(run: Run, trained: Trained, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ("train", trained.job, "--run", tmp_path / "run", "--publish-every", 2, "--store", store, "--json")
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    FolderStore(store).get_directory(found["published_log"], tmp_path / "log", everything, max_bytes=1 << 24)
    job = Job.read(trained.job)
    listing = read_listing(tmp_path / "log" / CHECKPOINTS_FILE, job.spec)
    assert listing.complete and MerkleTree(listing.roots).root == trained.root
    assert sorted(listing.states) == list(range(2, job.spec.intervals, 2))
    for done, address in listing.states.items():
        path = tmp_path / f"state {done}"
        FolderStore(store).get_file(address, path, max_bytes=1 << 24)
        assert state_root(load_tensors(path, job.program.states).values()) == listing.roots[done - 1]
    again = json.loads(run(*words).stdout)
    assert again["published_log"] == found["published_log"], "the same run has the same address"


def test_what_is_not_kept_cannot_be_published(run: Run, trained: Trained, tmp_path: Path) -> None:
    words = ("train", trained.job, "--run", tmp_path / "run", "--publish-every", 3, "--keep-every", 2)
    refused(run(*words), "--publish-every 3", "--keep-every 2", "multiple", code=2)
