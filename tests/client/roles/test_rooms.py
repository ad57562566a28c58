"""The disk space of all rooms of one role: which ones go when another needs space, and which never do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiebreak.roles.context import Rooms, size_of
from tiebreak.store.store_errors import NoSpace

UNIT = 1 << 16


def room(directory: Path, number: int, units: int = 1) -> Path:
    """A room of a job that takes so many units of the disk."""
    path = directory / f"job-{number}-{number:016x}"
    (path / "job").mkdir(parents=True)
    (path / "job" / "data").write_bytes(os.urandom(units * UNIT))
    return path


def leave(rooms: Rooms, path: Path, at: int) -> None:
    rooms.leave(path)
    os.utime(path / "left", ns=(at, at))


def test_the_room_that_was_left_first_goes_first_and_no_more_than_needed(tmp_path: Path) -> None:
    rooms, told = Rooms(tmp_path, 6 * UNIT), list[str]()
    old, older, busy = room(tmp_path, 1), room(tmp_path, 2), room(tmp_path, 3, 2)
    leave(rooms, old, 2)
    leave(rooms, older, 1)
    new = tmp_path / "job-4-0000000000000004"
    rooms.claim(new, 3 * UNIT, bonded=False, told=told.append)
    assert (old.exists(), older.exists(), busy.exists()) == (True, False, True)
    assert told == [f"removed {older.name}, whose job was left, to make room for {new.name}"]


def test_a_room_of_a_job_under_way_is_never_touched_and_the_new_job_waits(tmp_path: Path) -> None:
    rooms, told = Rooms(tmp_path, 3 * UNIT), list[str]()
    busy, new = room(tmp_path, 1, 2), tmp_path / "job-2-0000000000000002"
    with pytest.raises(NoSpace, match=f"{UNIT} bytes more than the {3 * UNIT} allowed.* raise --most-disk"):
        rooms.claim(new, 2 * UNIT, bonded=False, told=told.append)
    assert busy.exists() and not told
    rooms.claim(new, UNIT, bonded=False, told=told.append)
    leave(rooms, busy, 1)
    rooms.enter(busy)  # the role is back
    with pytest.raises(NoSpace):
        rooms.claim(new, 2 * UNIT, bonded=False, told=told.append)
    assert busy.exists()


def test_no_limit_holds_up_a_job_with_a_bond_at_stake(tmp_path: Path) -> None:
    rooms, told = Rooms(tmp_path, UNIT), list[str]()
    left, busy = room(tmp_path, 1), room(tmp_path, 2)
    leave(rooms, left, 1)
    rooms.claim(busy, 100 * UNIT, bonded=True, told=told.append)
    assert busy.exists() and not left.exists() and len(told) == 1


@pytest.mark.parametrize("own", ["run/state-00000003.safetensors", "alone/run.json", "sealed-claim.json"])
def test_of_a_refused_job_own_files_stay_as_of_one_that_was_left(tmp_path: Path, own: str) -> None:
    rooms, told = Rooms(tmp_path, 2 * UNIT), list[str]()
    refused = room(tmp_path, 1)
    fetched = ("log/00000000.rlog", "model.safetensors", ".job.0123.partial/content/data", ".log.0123.partial-x/lock")
    for name in (own, *fetched):
        (refused / name).parent.mkdir(exist_ok=True, parents=True)
        (refused / name).write_bytes(b"x")
    rooms.remove_fetched(refused)
    assert sorted(path.name for path in refused.iterdir()) == sorted(["left", own.split("/")[0]])
    assert (refused / own).read_bytes() == b"x"
    rooms.claim(tmp_path / "job-2-0000000000000002", 2 * UNIT, bonded=False, told=told.append)
    assert not refused.exists() and len(told) == 1


def test_links_and_other_files_of_the_role_are_no_rooms(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path / "role", UNIT)
    (tmp_path / "role").mkdir()
    elsewhere = room(tmp_path, 1, 5)
    (tmp_path / "role" / elsewhere.name).symlink_to(elsewhere)
    (tmp_path / "role" / "job-notes.txt").write_bytes(bytes(5 * UNIT))
    rooms.claim(tmp_path / "role" / "job-2-0000000000000002", UNIT, bonded=False, told=print)
    assert size_of(elsewhere) >= 5 * UNIT
