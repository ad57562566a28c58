"""Files of one's own: names and lines from a job, and a run that is replayed and held against both sides."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Task
from roundlog.storage import StorageError
from roundlog.training.job import Job
from roundlog.training.run import Run
from roundlog.training.run_files import read_history
from roundlog.training.trainer import Trainer
from tiebreak.contract.enums import Level
from tiebreak.contract.struct_bases import ANYONE, PostedSpec
from tiebreak.contract.structs import JobView, LevelView
from tiebreak.dashboard.background_work import BackgroundWork, passes
from tiebreak.dashboard.local_files import LocalFiles, OwnReplay, Replays
from tiebreak.dashboard.showing import UNKNOWN
from tiebreak.roles.engine import DisputeTrees
from tiebreak.segment_audits.stored_jobs import fetch_without_data
from tiebreak.store import FolderStore
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store_errors import (
    ContentMissing,
    CorruptBlock,
    FetchTooSlow,
    MalformedContent,
    StoreError,
    StoreUnavailable,
)
from torch import nn

from tests.client.http_stand_in import free_port, giving_blocks, serving
from tests.dashboard.test_words_and_pictures import JOB, game


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
def work() -> Iterator[BackgroundWork]:
    found = BackgroundWork(lambda: None)
    yield found
    found.close()


def waited(ask: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    """The answer once it is good: background work is done beside."""
    ends = time.monotonic() + 60
    while not good(found := ask()):
        assert time.monotonic() < ends, found
        time.sleep(0.02)
    return found


def test_operators_get_their_names_from_a_roles_directory_or_a_jobs(role: Path, work: BackgroundWork) -> None:
    job = Job.read(room_of(role) / "job")
    for directory in (role, room_of(role) / "job"):
        local = LocalFiles(work, files=[directory])
        names = waited(lambda local=local: local.names(posted(job)), lambda found: found is not UNKNOWN)
        assert [kind for kind, _ in names.operators] == [node.op for node in job.program.nodes]
        assert tuple(names.slots) == job.program.state_names


def test_another_jobs_files_give_no_names(role: Path, work: BackgroundWork) -> None:
    job = posted(Job.read(room_of(role) / "job"))
    other = replace(job, spec=replace(job.spec, training=replace(job.spec.training, program_root=b"x" * 32)))
    local = LocalFiles(work, files=[room_of(role) / "job"])
    for _ in range(50):
        assert local.names(other) is UNKNOWN
        time.sleep(0.02)


def test_a_damaged_file_gives_no_names(tmp_path: Path, work: BackgroundWork) -> None:
    (tmp_path / "program.json").write_bytes(b"\x00" * 100)
    (tmp_path / "spec.json").write_text("[" * 100_000)
    local = LocalFiles(work, files=[tmp_path])
    for _ in range(20):
        assert local.names(JOB) is UNKNOWN
        time.sleep(0.02)


def test_the_loss_is_that_of_the_run(role: Path, work: BackgroundWork) -> None:
    job = posted(Job.read(room_of(role) / "job"))
    local = LocalFiles(work, follow=[role])
    curve = waited(lambda: local.curve(job), lambda found: found is not None)
    losses = [entry.loss for entry in read_history(room_of(role) / "alone")]
    assert (curve.steps, curve.total, curve.first, curve.last) == (6, 6, losses[0], losses[-1])
    assert (curve.lowest, curve.highest) == (min(losses), max(losses))


def test_a_claim_is_held_against_our_own_run(role: Path, work: BackgroundWork) -> None:
    job = Job.read(room_of(role) / "job")
    root = DisputeTrees(job, room_of(role) / "alone", Run(job, room_of(role) / "alone").recorded_roots()).claim.root
    replays = Replays(LocalFiles(work, follow=[role]), work)
    right = replace(posted(job), claim=replace(JOB.claim, checkpoint_root=root))
    assert waited(lambda: replays.claim(right), lambda found: found is not None) is True
    assert replays.claim(replace(right, claim=replace(JOB.claim, checkpoint_root=b"x" * 32))) is False
    assert replays.claim(replace(right, claim=replace(JOB.claim, committed_at=0))) is None


def test_a_replay_agrees_with_the_side_that_has_its_roots_level_by_level(role: Path, work: BackgroundWork) -> None:
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
    replays = Replays(LocalFiles(work, follow=[role]), work)
    found = waited(lambda: replays.game(disputed, posted(job)), lambda found: len(found.levels) == 4)
    assert [one.agrees for one in found.levels] == [(False, True)] * 4
    assert [one.ours for one in found.levels] == [f"0x{root.hex()}" for root in roots]
    assert found.words.startswith("Our own replay agrees with the challenger at every level")
    bent = replace(levels[2], roots=(b"a" * 32, b"b" * 32))
    found = replays.game(replace(disputed, levels=(*levels[:2], bent, levels[3])), posted(job))
    assert [one.agrees for one in found.levels] == [(False, True), (False, True), (False, False)]
    assert found.words == "Our own replay agrees with the challenger at first, but not at level operator."
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before, "the run is only read"


class Followed:
    """A run of a job without its data, disputed down to a step, and the store that has them."""

    def __init__(self, role: Path, room: Path) -> None:
        self.store = FolderStore(room / "store")
        cid = self.store.add_directory(room_of(role) / "job")
        fetch_without_data(self.store, cid, room / "job", warn=print, max_bytes=1 << 20)
        shutil.copytree(room_of(role) / "alone", room / "audited")
        job = Job.read(room_of(role) / "job")
        trees = DisputeTrees(job, room / "audited", Run(job, room / "audited").recorded_roots())
        levels = tuple(
            LevelView(level=level, leaf_count=9, roots=(b"a" * 32, trees.tree(place).tree.root), index=1)  # type: ignore[union-attr]
            for level, place in ((Level.CHECKPOINT, ()), (Level.STEP, (1,)))
        )
        self.run, self.job = room / "audited", posted(job)
        self.game = replace(game((Level.CHECKPOINT, 1, 0)), levels=levels)


@pytest.fixture
def followed(role: Path, tmp_path: Path) -> Followed:
    return Followed(role, tmp_path)


@pytest.fixture
def hasty() -> Iterator[BackgroundWork]:
    """Background jobs with short pauses between attempts."""
    found = BackgroundWork(lambda: None, first_pause=0.02, longest_pause=0.1)
    yield found
    found.close()


def test_a_run_of_a_job_without_its_data_is_replayed_from_the_store(followed: Followed) -> None:
    """Without the store it is known what the run has claimed, and nothing is executed."""
    for known, depth in ((None, 1), (followed.store, 2)):
        mine = BackgroundWork(lambda: None)
        replays = Replays(LocalFiles(mine, follow=[followed.run], store=known), mine)
        found = waited(
            partial(replays.game, followed.game, followed.job),
            lambda found, depth=depth: len(found.levels) == depth and not found.waiting,
        )
        assert [one.agrees for one in found.levels] == [(False, True)] * depth
        mine.close()


def test_a_replay_that_failed_while_the_store_was_away_succeeds_once_it_is_back(
    followed: Followed, hasty: BackgroundWork
) -> None:
    port = free_port()
    away = GatewayStore(f"http://127.0.0.1:{port}", attempts=1)
    replays = Replays(LocalFiles(hasty, follow=[followed.run], store=away), hasty)

    def ask() -> OwnReplay | None:
        return replays.game(followed.game, followed.job)

    found = waited(ask, lambda found: bool(found.trouble))
    assert len(found.levels) == 1 and "refused" in found.trouble and found.trouble.endswith("tried again by itself.")
    with serving(giving_blocks(followed.store), port):
        found = waited(ask, lambda found: len(found.levels) == 2 and not found.waiting)
    assert [one.agrees for one in found.levels] == [(False, True)] * 2 and not found.trouble


def test_a_replay_of_wrong_bytes_is_not_tried_again(followed: Followed, hasty: BackgroundWork) -> None:
    asked: list[int] = []

    def lie(block: bytes) -> bytes:
        asked.append(len(block))
        return block[:-1] + bytes([block[-1] ^ 1])

    with serving(giving_blocks(followed.store, lie)) as url:
        lying = GatewayStore(url, attempts=1)
        for store in (lying, ReplicatedStore([lying, GatewayStore(url, attempts=1)], warn=print)):
            replays = Replays(LocalFiles(hasty, follow=[followed.run], store=store), hasty)
            ask = partial(replays.game, followed.game, replace(followed.job, spec_hash=bytes([len(asked)]) * 32))
            found = waited(ask, lambda found: bool(found.trouble))
            assert "Time does not mend that." in found.trouble, found
            times = len(asked)
            for _ in range(30):
                assert not ask().waiting  # type: ignore[union-attr]
                time.sleep(0.02)
            assert len(asked) == times > 0


def test_a_replay_without_a_store_says_so_once(followed: Followed, hasty: BackgroundWork) -> None:
    replays = Replays(LocalFiles(hasty, follow=[followed.run]), hasty)
    found = waited(partial(replays.game, followed.game, followed.job), lambda found: bool(found.trouble))
    assert "reads no data from elsewhere" in found.trouble and "Time does not mend that." in found.trouble


def test_damaged_files_of_a_job_are_named(followed: Followed, hasty: BackgroundWork) -> None:
    (followed.run.parent / "job" / "schedule.safetensors").write_bytes(b"?")
    replays = Replays(LocalFiles(hasty, follow=[followed.run], store=followed.store), hasty)
    found = waited(partial(replays.game, followed.game, followed.job), lambda found: bool(found.trouble))
    assert found.words == "Our own run cannot be compared now." and "schedule.safetensors" in found.trouble
    assert replays.trouble(followed.job) == found.trouble


def test_a_run_that_goes_on_says_nothing_yet(role: Path, work: BackgroundWork, tmp_path: Path) -> None:
    job = Job.read(room_of(role) / "job")
    room = tmp_path / room_of(role).name
    job.write(room / "job")
    (room / "alone").mkdir()
    for name in ("run.json", "roots"):
        content = (room_of(role) / "alone" / name).read_bytes()
        (room / "alone" / name).write_bytes(content if name == "run.json" else content[:32])
    replays = Replays(LocalFiles(work, follow=[tmp_path]), work)
    found = replays.game(game((Level.CHECKPOINT, 2, 0)), posted(job))
    assert found is not None and not found.levels and "no root to compare yet" in found.words


def test_without_a_run_nothing_is_said(work: BackgroundWork, tmp_path: Path) -> None:
    assert Replays(LocalFiles(work, follow=[tmp_path]), work).game(game((Level.CHECKPOINT, 2, 0)), JOB) is None


def test_work_wait_in_a_short_line_and_a_failure_is_no_result(work: BackgroundWork) -> None:
    def fail() -> None:
        raise ValueError("damaged")

    assert work.result("failing", fail) is None
    waited(lambda: work.is_waiting("failing"), lambda waiting: not waiting)
    assert work.result("failing", fail) is None and not work.is_waiting("failing")
    for number in range(1000):
        work.result(number, lambda: time.sleep(0.001))
    assert sum(work.is_waiting(number) for number in range(1000)) <= 32


def test_failed_work_is_done_again_after_pauses_that_grow_while_somebody_asks() -> None:
    began: list[float] = []
    told: list[float] = []

    def away() -> None:
        began.append(time.monotonic())
        raise StoreUnavailable("the store is away: try later.")

    work = BackgroundWork(lambda: told.append(time.monotonic()), first_pause=0.1, longest_pause=0.4)
    try:
        waited(lambda: work.result("work", away), lambda found: len(began) == 5)
        pauses = [after - before for before, after in pairwise(began)]
        assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=True)), pauses
        assert len(told) >= 8, "pages are made anew after every attempt, and before every other one"
        assert work.trouble("work") == "the store is away: try later. It is tried again by itself."
        time.sleep(1.0)
        assert len(began) <= 6, "nobody has asked"
        work.result("work", away, version="new")
        waited(lambda: len(began), lambda count: count >= 6)
    finally:
        work.close()
    times = len(began)
    time.sleep(0.5)
    assert work.result("work", away, version="newer") is None and len(began) == times, "it is closed"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StoreUnavailable("away"), True),
        (FetchTooSlow("slow"), True),
        (ContentMissing("missing"), True),
        (OSError(28, "no space left on device"), True),
        (CorruptBlock("wrong"), False),
        (MalformedContent("no file"), False),
        (ValueError("damaged"), False),
        (StorageError(Path("data"), "does not exist"), False),
    ],
)
def test_what_time_can_mend_is_told_from_what_it_cannot(error: Exception, again: bool) -> None:
    assert passes(error) is again
    caused = StorageError(Path("data"), "a block cannot be used")
    caused.__cause__ = error
    assert passes(caused) is (again and isinstance(error, StoreError))
