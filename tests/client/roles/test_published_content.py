"""Content that a role has published: kept while any of its jobs needs it, and unpinned after its time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from roundlog.storage import StorageError
from tiebreak.contract.enums import JobStatus
from tiebreak.roles.notices import Notice, What
from tiebreak.roles.published_content import OVER, Keeper, PublishedContent
from tiebreak.rpc.chain_errors import ChainUnavailable, ContractError
from tiebreak.store import FolderStore

DAY = 86_400
SPEC = bytes(range(32))
OTHER_SPEC = bytes(32)


class Chain:
    """Jobs by number, and the newest block."""

    def __init__(self) -> None:
        self.jobs: dict[int, Any] = {}
        self.number, self.timestamp, self.confirmations = 100, 1_000_000, 0
        self.away = False
        self.node = self

    def set(self, job: int, status: JobStatus, spec: bytes = SPEC) -> None:
        self.jobs[job] = SimpleNamespace(status=status, spec_hash=spec)

    def later(self, seconds: int, blocks: int = 1) -> None:
        self.timestamp, self.number = self.timestamp + seconds, self.number + blocks

    def head(self) -> Any:
        if self.away:
            raise ChainUnavailable("the chain is away: wait.")
        return SimpleNamespace(number=self.number, timestamp=self.timestamp)

    def job(self, job: int) -> Any:
        if job not in self.jobs:
            raise ContractError("WrongJobStatus", ())
        return self.jobs[job]


class World:
    def __init__(self, directory: Path, retention: int | None = 30 * DAY) -> None:
        self.store, self.directory = FolderStore(directory / "store"), directory / "role"
        self.directory.mkdir()
        self.chain, self.notices, self.retention = Chain(), list[Notice](), retention
        self.begin()

    def begin(self) -> None:
        """A new process."""
        self.published = PublishedContent(self.store, self.directory)
        contract = cast(Any, self.chain)
        self.keeper = Keeper("trainer", self.published, contract, self.notices.append, self.retention)

    def publish(self, job: int, content: bytes) -> str:
        """Writes a model into the room of a job, and publishes it."""
        path = self.directory / f"job-{job}-{SPEC.hex()[:16]}" / "model"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return self.published.add_file(path)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("status", OVER)
def test_content_is_unpinned_when_its_time_is_up_and_that_is_told(world: World, status: JobStatus) -> None:
    cid = world.publish(3, b"model")
    world.chain.set(3, JobStatus.CLAIMED)
    world.chain.later(100 * DAY)
    world.keeper.round()
    assert world.store.pins() == [cid]
    world.chain.set(3, status)
    world.keeper.round()
    world.chain.later(30 * DAY - 1)
    world.keeper.round()
    assert world.store.pins() == [cid] and world.notices == []
    world.chain.later(1)
    world.keeper.round()
    assert world.store.pins() == [] and not world.store.has(cid)
    (notice,) = world.notices
    assert notice.what is What.UNPINNED and notice.job == 3 and cid in notice.text
    world.keeper.round()
    assert len(world.notices) == 1


def test_a_new_process_knows_what_the_last_one_has_published_and_when_it_was_over(world: World) -> None:
    cid = world.publish(3, b"model")
    world.begin()
    world.chain.set(3, JobStatus.FINAL)
    world.keeper.round()
    world.chain.later(29 * DAY)
    world.begin()
    world.keeper.round()
    assert world.store.pins() == [cid]
    world.chain.later(DAY)
    world.begin()
    world.keeper.round()
    assert world.store.pins() == []


def test_what_another_job_needs_stays(world: World) -> None:
    shared, own = world.publish(3, b"shared"), world.publish(3, b"own")
    assert world.publish(4, b"shared") == shared
    world.chain.set(3, JobStatus.FINAL)
    world.chain.set(4, JobStatus.CLAIMED)
    for _ in range(3):
        world.keeper.round()
        world.chain.later(30 * DAY)
    assert world.store.pins() == [shared] and [notice.job for notice in world.notices] == [3]
    assert own in world.notices[0].text
    world.chain.set(4, JobStatus.FINAL)
    world.keeper.round()
    world.chain.later(30 * DAY)
    world.keeper.round()
    assert world.store.pins() == []


def test_an_end_that_is_taken_back_is_none(world: World) -> None:
    world.chain.confirmations = 12
    cid = world.publish(3, b"model")
    world.chain.set(3, JobStatus.FINAL)
    world.keeper.round()
    world.chain.later(31 * DAY, blocks=11)
    world.keeper.round()
    assert world.store.pins() == [cid]
    world.chain.set(3, JobStatus.CLAIMED)
    world.chain.later(DAY, blocks=100)
    world.keeper.round()
    world.chain.set(3, JobStatus.FINAL)
    world.keeper.round()
    world.chain.later(29 * DAY, blocks=100)
    world.keeper.round()
    assert world.store.pins() == [cid]
    world.chain.later(DAY)
    world.keeper.round()
    assert world.store.pins() == []


def test_a_number_that_belongs_to_another_job_now_ends_nothing(world: World) -> None:
    cid = world.publish(3, b"model")
    world.chain.set(3, JobStatus.FINAL, OTHER_SPEC)
    for _ in range(3):
        world.keeper.round()
        world.chain.later(100 * DAY)
    del world.chain.jobs[3]
    world.keeper.round()
    assert world.store.pins() == [cid] and world.notices == []


def test_content_that_is_added_again_while_it_is_unpinned_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cid = world.publish(3, b"model")
    world.chain.set(3, JobStatus.FINAL)
    world.chain.set(4, JobStatus.OPEN)
    world.keeper.round()
    world.chain.later(30 * DAY)
    add, added, unpinned = world.store.add_file, threading.Event(), threading.Event()

    def slow(path: Path) -> str:
        found = add(path)
        added.set()
        assert unpinned.wait(10)
        return found

    monkeypatch.setattr(world.store, "add_file", slow)
    adding = threading.Thread(target=world.publish, args=(4, b"model"))
    adding.start()
    assert added.wait(10)
    monkeypatch.setattr(world.store, "tidy", lambda: None)
    world.keeper.round()
    unpinned.set()
    adding.join()
    assert world.store.pins() == [cid] and world.published.pinned() == {cid}


@pytest.mark.parametrize(
    "record",
    [
        b"", b"[]", b"{\"rooms\": 7}", b"\xff", b"[" * 10_000,
        *(
            json.dumps({"rooms": {name: entry}}).encode()
            for name, entry in (
                ("../../etc", {"cids": [], "over_at": None, "over_in": None}),
                ("job-3-0000000000000000", {"cids": ["x"], "over_at": None, "over_in": None}),
                ("job-3-0000000000000000", {"cids": [], "over_at": True, "over_in": None}),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_before_anything_is_unpinned(tmp_path: Path, record: bytes) -> None:
    (tmp_path / "published.json").write_bytes(record)
    with pytest.raises(StorageError, match=r"published\.json"):
        PublishedContent(FolderStore(tmp_path / "store"), tmp_path)
