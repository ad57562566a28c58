"""What is written is whole or told from what is torn, at whatever call a process is killed or a disk is full, and is
on the disk in an order that survives a power cut."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from roundlog.storage import BESIDE, append_file, create_file, lock_file, partial_path, replace_file, sync_directory

from tests.engine.running.deaths import Point, after_rename, before_rename, before_sync, killed_at

OLD, NEW = b"old" * 5000, b"new" * 5000


def put(path: Path) -> None:
    with replace_file(path) as file:
        file.write(NEW)


def put_shared(path: Path) -> None:
    with replace_file(path, shared=True) as file:
        file.write(NEW)


def put_and_sync_later(path: Path) -> None:
    with replace_file(path, shared=True, sync_name=False) as file:
        file.write(NEW)
    sync_directory(path.parent)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was synced and renamed, in order."""
    made: list[str] = []
    rename = Path.replace

    def note(descriptor: int) -> None:
        found = os.fstat(descriptor)
        made.append("sync directory" if stat.S_ISDIR(found.st_mode) else f"sync {found.st_size} bytes")

    def moved(path: Path, target: Path) -> Path:
        made.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "replace", moved)
    yield made


@pytest.mark.parametrize("write", [put, put_shared, put_and_sync_later])
def test_bytes_are_on_the_disk_before_their_name_is(
    write: Callable[[Path], None], tmp_path: Path, calls: list[str]
) -> None:
    write(tmp_path / "file")
    assert calls == [f"sync {len(NEW)} bytes", "rename", "sync directory"]


def test_the_name_of_what_grows_is_on_the_disk_before_its_bytes_are(tmp_path: Path, calls: list[str]) -> None:
    path = tmp_path / "file"
    append_file(path, b"one")
    append_file(path, b"two")
    assert calls == ["sync directory", "sync 3 bytes", "sync 6 bytes"]
    assert path.read_bytes() == b"onetwo"
    calls.clear()
    (tmp_path / "empty").touch()  # by one who was killed before the name was on the disk
    append_file(tmp_path / "empty", b"one")
    assert calls == ["sync directory", "sync 3 bytes"]


@pytest.mark.parametrize("write", [put, put_shared])
@pytest.mark.parametrize(
    ("point", "whole"), [(before_sync(1), OLD), (before_rename(1), OLD), (after_rename(1), NEW), (before_sync(2), NEW)]
)
def test_a_file_is_the_old_or_the_new_one_wherever_its_writer_is_killed(
    point: Point, whole: bytes, write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    killed_at(point, lambda: write(path))
    assert path.read_bytes() == whole
    left = [other.name for other in tmp_path.iterdir() if other != path]
    assert len(left) == (whole is OLD) and all(name.startswith((BESIDE, ".file.")) for name in left)
    write(path)
    assert path.read_bytes() == NEW
    assert len(list(tmp_path.iterdir())) == (2 if left and write is put_shared else 1)


@pytest.mark.parametrize("point", [before_sync(1), before_sync(2)])
def test_what_was_added_before_is_left_wherever_a_writer_is_killed(point: Point, tmp_path: Path) -> None:
    path = tmp_path / "file"
    killed_at(point, lambda: append_file(path, NEW))
    assert NEW.startswith(path.read_bytes())
    path.write_bytes(OLD)
    killed_at(before_sync(1), lambda: append_file(path, NEW))
    assert (OLD + NEW).startswith(path.read_bytes()) and path.read_bytes().startswith(OLD)


@pytest.mark.parametrize("write", [put, put_shared, lambda path: create_file(path.with_name("new"), NEW)])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(OLD)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "file")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]


def test_a_block_that_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(KeyboardInterrupt), replace_file(tmp_path / "file") as file:
        file.write(NEW)
        raise KeyboardInterrupt
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [OLD]


def test_a_new_file_replaces_nothing_and_follows_no_link(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (path, tmp_path / "link"):
        with pytest.raises(FileExistsError):
            create_file(taken, NEW)
    assert path.read_bytes() == OLD and not (tmp_path / "elsewhere").exists()


def test_private_files_are_for_nobody_else(tmp_path: Path) -> None:
    create_file(tmp_path / "new", NEW)
    with replace_file(tmp_path / "private", private=True) as file:
        file.write(NEW)
    put_shared(tmp_path / "shared")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_what_lies_where_a_file_is_written_first_is_neither_followed_nor_believed(tmp_path: Path) -> None:
    path, victim = tmp_path / "a", tmp_path / "victim"
    partial_path(path).write_bytes(b"")
    partial_path(path).chmod(0o644)
    with replace_file(path, private=True) as file:
        file.write(NEW)
    assert path.read_bytes() == NEW and path.stat().st_mode & 0o777 == 0o600
    victim.write_bytes(OLD)
    partial_path(path).symlink_to(victim)
    with pytest.raises(OSError), replace_file(path):
        pass
    assert victim.read_bytes() == OLD and path.read_bytes() == NEW


def test_a_lock_is_for_nobody_else(tmp_path: Path) -> None:
    with lock_file(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_lock_is_one_processs_alone_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path):
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                lock_file(path, shared=shared)
    with lock_file(path, shared=True), lock_file(path, shared=True), pytest.raises(BlockingIOError):
        lock_file(path)
    with lock_file(path, wait=True):
        assert path.exists()
