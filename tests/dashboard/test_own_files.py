"""Files of one's own: names and lines from a job, and a run that is replayed and held against both sides."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.run_files import read_history
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import Level
from tiebreak.contract.struct_bases import ANYONE, PostedSpec
from tiebreak.contract.structs import GameView, JobView, LevelView
from tiebreak.dashboard.local_files import LocalFiles, OwnReplay, compare_claim, compare_game
from tiebreak.dashboard.showing import UNKNOWN
from tiebreak.roles.engine import DisputeTrees
from tiebreak.segment_audits.stored_jobs import fetch_without_data
from tiebreak.store import FolderStore
from torch import nn

from tests.dashboard.test_words_and_pictures import JOB, game

T = TypeVar("T")


def task() -> Task:
    torch.manual_seed(5)
    model = nn.Linear(4, 3)
    return Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(11, 4), "y": torch.randint(0, 3, (11,))},
        batch_size=4,
        steps=6,
        interval=3,
        seed=9,
    )


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A role's directory with a job and a run of it. Read only."""
    directory = tmp_path_factory.mktemp("role")
    job = Job.from_task(task)
    room = directory / f"job-7-{posted(job).spec_hash.hex()[:16]}"
    job.write(room / "job")
    Trainer(Job.read(room / "job"), room / "alone").run()
    return directory


def posted(job: Job) -> JobView:
    spec = PostedSpec(job.spec, ANYONE, ANYONE)
    return replace(JOB, spec=spec, spec_hash=spec.hash)


def room_of(role: Path) -> Path:
    return next(role.iterdir())


@pytest.fixture
def local(role: Path) -> Iterator[LocalFiles]:
    """The files of a role whose runs are followed."""
    found = LocalFiles(follow=[role])
    yield found
    found.close()


def waited(ask: Callable[[], T], good: Callable[[T], bool]) -> T:
    """The answer once it is good: files are read beside."""
    ends = time.monotonic() + 60
    while not good(found := ask()):
        assert time.monotonic() < ends, found
        time.sleep(0.02)
    return found


def test_operators_get_their_names_from_a_roles_directory_or_a_jobs(role: Path) -> None:
    job = Job.read(room_of(role) / "job")
    for directory in (role, room_of(role) / "job"):
        local = LocalFiles(files=[directory])
        names = waited(lambda local=local: local.names(posted(job)), lambda found: found is not UNKNOWN)
        assert [kind for kind, _ in names.operators] == [node.op for node in job.program.nodes]
        assert tuple(names.slots) == job.program.state_names
        local.close()


def test_files_of_another_job_and_damaged_ones_give_no_names(role: Path, tmp_path: Path) -> None:
    (tmp_path / "program.json").write_bytes(b"\x00" * 100)
    (tmp_path / "spec.json").write_text("[" * 100_000)
    for directory in (room_of(role) / "job", tmp_path):
        done = threading.Event()
        local = LocalFiles(files=[directory], done=done.set)
        assert local.names(JOB) is UNKNOWN and done.wait(60) and local.names(JOB) is UNKNOWN
        local.close()


def test_the_loss_is_that_of_the_run(role: Path, local: LocalFiles) -> None:
    job = posted(Job.read(room_of(role) / "job"))
    curve = waited(lambda: local.curve(job), lambda found: found is not None)
    losses = [entry.loss for entry in read_history(room_of(role) / "alone")]
    assert curve is not None
    assert (curve.steps, curve.total, curve.first, curve.last) == (6, 6, losses[0], losses[-1])
    assert (curve.lowest, curve.highest) == (min(losses), max(losses))


def test_a_claim_is_compared_with_our_own_run(role: Path, local: LocalFiles) -> None:
    job = Job.read(room_of(role) / "job")
    root = DisputeTrees(job, room_of(role) / "alone", Run(job, room_of(role) / "alone").recorded_roots()).claim.root
    right = replace(posted(job), claim=replace(JOB.claim, checkpoint_root=root))
    assert waited(lambda: compare_claim(local, right), lambda found: found[0] is not None) == (True, "")
    assert compare_claim(local, replace(right, claim=replace(JOB.claim, checkpoint_root=b"x" * 32)))[0] is False
    assert compare_claim(local, replace(right, claim=replace(JOB.claim, committed_at=0))) == (None, "")


def test_a_replay_agrees_with_the_side_that_has_its_roots_level_by_level(role: Path, local: LocalFiles) -> None:
    run = room_of(role) / "alone"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    job = Job.read(room_of(role) / "job")
    trees = DisputeTrees(job, run, Run(job, run).recorded_roots())
    places = ((), (1,), (1, 2), (1, 2, 5))
    roots = [trees.tree(place).tree.root for place in places]  # type: ignore[union-attr]
    levels = tuple(
        LevelView(level=level, leaf_count=9, roots=(b"a" * 32, root), index=index)
        for level, root, index in zip(Level, roots, (1, 2, 5, 0), strict=False)
    )
    disputed = replace(game((Level.CHECKPOINT, 1, 0)), levels=levels)
    found = compared(local, disputed, posted(job))
    assert [one.agrees for one in found.levels] == [(False, True)] * 4
    assert [one.ours for one in found.levels] == [f"0x{root.hex()}" for root in roots]
    assert found.words.startswith("Our own replay agrees with the challenger at every level")
    bent = replace(levels[2], roots=(b"a" * 32, b"b" * 32))
    found = compared(local, replace(disputed, levels=(*levels[:2], bent, levels[3])), posted(job))
    assert [one.agrees for one in found.levels] == [(False, True), (False, True), (False, False)]
    assert found.words == "Our own replay agrees with the challenger at first, but not at level operator."
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "the run is only read"


def compared(local: LocalFiles, disputed: GameView, job: JobView) -> OwnReplay:
    """The comparison once all of it is executed."""
    found = waited(lambda: compare_game(local, disputed, job), lambda found: found is not None and not found.waiting)
    assert found is not None
    return found


def test_a_run_of_a_job_without_its_data_is_compared_as_far_as_it_is_recorded(role: Path, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    cid = store.add_directory(room_of(role) / "job")
    fetch_without_data(store, cid, tmp_path / "job", warn=print, max_bytes=1 << 20)
    shutil.copytree(room_of(role) / "alone", tmp_path / "audited")
    job = Job.read(room_of(role) / "job")
    roots = Run(job, tmp_path / "audited").recorded_roots()
    trees = DisputeTrees(job, tmp_path / "audited", roots)
    levels = tuple(
        LevelView(level=level, leaf_count=9, roots=(b"a" * 32, trees.tree(place).tree.root), index=1)  # type: ignore[union-attr]
        for level, place in ((Level.CHECKPOINT, ()), (Level.STEP, (1,)))
    )
    disputed, asked = replace(game((Level.CHECKPOINT, 1, 0)), levels=levels), posted(job)
    local = LocalFiles(follow=[tmp_path / "audited"])
    found = compared(local, disputed, asked)
    assert len(found.levels) == 1 and "reads no data from elsewhere" in found.trouble
    local.close()
    (tmp_path / "job" / "schedule.safetensors").write_bytes(b"?")
    local = LocalFiles(follow=[tmp_path / "audited"])
    found = compared(local, disputed, asked)
    assert found.words == "Our own run cannot be compared now." and "schedule.safetensors" in found.trouble
    assert compare_claim(local, asked) == (None, found.trouble)
    local.close()


def test_a_run_that_goes_on_or_is_not_there_says_nothing_yet(role: Path, tmp_path: Path) -> None:
    job, disputed, local = (
        Job.read(room_of(role) / "job"),
        game((Level.CHECKPOINT, 2, 0)),
        LocalFiles(follow=[tmp_path]),
    )
    assert compare_game(local, disputed, posted(job)) is None
    room = tmp_path / room_of(role).name
    job.write(room / "job")
    (room / "alone").mkdir()
    for name in ("run.json", "roots"):
        content = (room_of(role) / "alone" / name).read_bytes()
        (room / "alone" / name).write_bytes(content if name == "run.json" else content[:32])
    found = compare_game(local, disputed, posted(job))
    assert found is not None and not found.levels and "no root to compare yet" in found.words
    local.close()
