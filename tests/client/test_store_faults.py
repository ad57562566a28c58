"""A store's location that could be meant otherwise, disks that are full or read-only, and blocks that are damaged."""

from __future__ import annotations

import os
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, kubo_address, open_store
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import CorruptBlock, DestinationExists, StoreUnavailable

from tests.client.test_chain_transport import server

NO_SPACE = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("localhost:5001", "http://localhost:5001"),
        ("127.0.0.1:5001", "http://127.0.0.1:5001"),
        ("kubo:5001/", "http://kubo:5001"),
        ("[::1]:5001", "http://[::1]:5001"),
        ("ip4/127.0.0.1/tcp/5001", "/ip4/127.0.0.1/tcp/5001"),
        ("/dns/kubo/tcp/5001", "/dns/kubo/tcp/5001"),
        ("HTTP://127.0.0.1:5001", "HTTP://127.0.0.1:5001"),
        ("https://kubo.example", "https://kubo.example"),
        ("store", None),
        ("./localhost:5001", None),
        ("/tmp/localhost:5001", None),
        ("store/of/mine", None),
        (Path("localhost:5001"), None),
    ],
)
def test_an_address_is_understood_and_a_folder_is_one(location: str | Path, address: str | None) -> None:
    assert kubo_address(location) == address


@pytest.mark.parametrize(
    "location",
    [
        *("localhost", "127.0.0.1", "::1", ":5001", "ftp://x", "ws://127.0.0.1:5001", "ipfs://Qm", "file:///tmp/x"),
        *("http:127.0.0.1:5001", "unix:/run/kubo", "a:b", "localhost:5001/api/v0", "tcp://127.0.0.1:5001", "", "  "),
    ],
)
def test_what_could_be_meant_as_an_address_is_never_a_folder(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:5001"):
        open_store(location)
    assert list(tmp_path.iterdir()) == []


def test_the_users_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/store").add_bytes(b"x")
    assert (tmp_path / "store" / "blocks").is_dir()


def test_a_full_disk_is_an_outage_and_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "store")
    cid = store.add_bytes(b"content")

    def full(*_: object) -> None:
        raise NO_SPACE

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.add_bytes(b"more")
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.get_file(cid, tmp_path / "out", max_bytes=100)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    store.add_bytes(b"more")
    store.get_file(cid, tmp_path / "out", max_bytes=100)
    assert (tmp_path / "out").read_bytes() == b"content"


def test_a_place_that_is_taken_is_told_from_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "store")
    cid = store.add_bytes(b"content")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DestinationExists):
        store.get_file(cid, tmp_path / "out", max_bytes=100)

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "hardlink_to", read_only)
    with pytest.raises(StoreUnavailable, match="Read-only"):
        store.get_file(cid, tmp_path / "other", max_bytes=100)


def test_a_damaged_block_is_noticed_not_counted_as_there_and_mended_by_adding_it_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    cid = store.add_bytes(b"content")
    (block,) = (tmp_path / "blocks").glob("*/*/*")
    for damage in (b"", b"contenT", block.read_bytes()[:-1] + b"\x00"):
        block.write_bytes(damage)
        with pytest.raises(CorruptBlock, match="fetch or add it again"):
            store.read(cid, max_bytes=100)
        assert not store.has(cid)
        assert store.add_bytes(b"content") == cid
        assert store.read(cid, max_bytes=100) == b"content" and store.has(cid)


def test_a_block_that_comes_damaged_is_fetched_again(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path)
    cid = folder.add_bytes(b"content")
    (block,) = (tmp_path / "blocks").glob("*/*/*")
    calls = []

    def flip_once(handler: BaseHTTPRequestHandler) -> None:
        calls.append(1)
        body = block.read_bytes() if len(calls) > 1 else block.read_bytes()[:-1] + b"\x00"
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with server(lambda handler, _: flip_once(handler)) as url:
        assert KuboStore(url).read(cid, max_bytes=100) == b"content"
    assert len(calls) == 2


# A folder that others write to as well.


def test_garbage_is_collected_from_this_folder_only(tmp_path: Path) -> None:
    """Another user of a shared folder could otherwise have files removed that only we may remove."""
    store = FolderStore(tmp_path / "store")
    store.add_bytes(b"kept")
    blocks = tmp_path / "store" / "blocks"
    mine = [tmp_path / "home" / "papers" / "thesis.tex", tmp_path / "home" / "papers" / ("ab" * 32)]
    mine[0].parent.mkdir(parents=True)
    for path in mine:
        path.write_text("years of work")
    (blocks / "zz").symlink_to(tmp_path / "home")
    (blocks / "yy").mkdir()
    (blocks / "yy" / "yy").symlink_to(tmp_path / "home" / "papers")
    (blocks / "xx" / "xx" / ("cd" * 32)).mkdir(parents=True)
    for name in ("notes.txt", "ef" * 32, "tmp-1"):
        (blocks / "xx" / "xx" / name).write_text("x")
    assert store.collect_garbage() == 2
    assert [path.read_text() for path in mine] == ["years of work"] * 2
    assert (blocks / "xx" / "xx" / "notes.txt").exists() and len(store.pins()) == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_a_block_that_is_no_file_is_refused_at_once_and_healed_by_adding(tmp_path: Path, kind: str) -> None:
    store = FolderStore(tmp_path / "store")
    cid = store.add_bytes(b"content")
    (path,) = (tmp_path / "store" / "blocks").glob("*/*/*")
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "endless":
            path.symlink_to("/dev/zero")
    with pytest.raises(StoreUnavailable, match="cannot read block"):
        store.read(cid, max_bytes=100)
    if kind != "folder":
        assert store.add_bytes(b"content") == cid and store.read(cid, max_bytes=100) == b"content"
