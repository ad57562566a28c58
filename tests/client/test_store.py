"""The embedded content store: locations, known CIDs, content, damage, full disks, garbage, killed writers; and hostile
content: limits, names, links, sizes, depth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, kubo_address, open_store
from tiebreak.store.dag_reader import DagReader
from tiebreak.store.dagpb import DIRECTORY, FILE, MAX_ENTRIES, SHARDED_DIRECTORY, SYMLINK, Cid, Link, UnixFsNode, encode
from tiebreak.store.store_errors import (
    ContentTooLarge,
    CorruptBlock,
    DestinationExists,
    MalformedContent,
    StoreUnavailable,
    UnsafeName,
    UnsupportedFile,
)

from tests.client.crafted_blocks import Blocks, everything

HELLO = "bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4"  # "hello world\n"
EMPTY = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
EMPTY_DIRECTORY = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"

HELLO_V0 = "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"
EMPTY_DIRECTORY_V0 = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"
NO_SPACE = OSError(28, "No space left on device")
VECTORS = json.loads((Path(__file__).resolve().parents[1] / "vectors" / "cids.json").read_text())


def older(cid: Cid) -> Cid:
    """Version 0 of an identifier."""
    return Cid(cid.codec, cid.digest, 0)


@pytest.fixture
def store(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path / "store")


def test_known_files_have_their_known_cids_and_are_read_by_the_older_ones(store: Blocks, tmp_path: Path) -> None:
    assert store.add_bytes(b"") == EMPTY
    assert store.add_bytes(b"hello world\n") == HELLO
    (tmp_path / "empty").mkdir()
    assert store.add_directory(tmp_path / "empty") == EMPTY_DIRECTORY
    assert str(older(store.file(b"hello world\n"))) == HELLO_V0
    assert store.read(HELLO_V0, max_bytes=12) == b"hello world\n"
    assert str(older(store.directory())) == EMPTY_DIRECTORY_V0
    store.get_directory(EMPTY_DIRECTORY_V0, tmp_path / "back", everything, max_bytes=0)
    assert list((tmp_path / "back").iterdir()) == []


def content(size: int) -> bytes:
    """The content of a file of the vectors."""
    period = 251 * 256
    once = bytes((7 * i + (i >> 8)) % 251 for i in range(period))
    return (once * (size // period + 1))[:size]


@pytest.mark.slow_cases("4*")
@pytest.mark.parametrize("size", VECTORS["files"])
def test_a_file_has_the_cid_that_another_implementation_gives_it(store: Blocks, size: str) -> None:
    assert store.add_bytes(content(int(size))) == VECTORS["files"][size]


def test_a_directory_has_the_cid_that_another_implementation_gives_it(store: Blocks, tmp_path: Path) -> None:
    for name, size in VECTORS["directory"]["sizes"].items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}" if size is None else content(size))
    assert store.add_directory(tmp_path / "tree") == VECTORS["directory"]["cid"]


def test_an_existing_destination_is_never_touched(store: Blocks, tmp_path: Path) -> None:
    file = store.add_bytes(b"new")
    directory = str(store.directory(("a", store.file(b"new"))))
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(DestinationExists, match=name):
            store.get_file(file, tmp_path / name, max_bytes=10)
        with pytest.raises(DestinationExists, match=name):
            store.get_directory(directory, tmp_path / name, everything, max_bytes=10)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_refused_without_waiting_for_it(store: Blocks, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsupportedFile, match="regular"):
        store.add_file(tmp_path / "pipe")
    with pytest.raises(UnsupportedFile):
        store.add_file(tmp_path)
    with pytest.raises(UnsupportedFile):
        store.add_file(tmp_path / "absent")


def test_garbage_goes_and_pinned_content_stays(store: Blocks) -> None:
    kept, loose = store.add_bytes(bytes(600_000)), store.add_bytes(b"loose")
    store.unpin(loose)
    (next(iter(store._blocks.glob("*/*"))) / "tmp-leftover").write_bytes(b"cut off")
    assert store.pins() == [kept]
    assert store.collect_garbage() == 2
    assert not store.has(loose)
    assert store.read(kept, max_bytes=600_000) == bytes(600_000)
    store.unpin(kept)
    store.unpin(kept)
    store.collect_garbage()
    assert list(store._blocks.glob("*/*/*")) == []


WRITER = """
import sys, pathlib
from tiebreak.store import FolderStore, kubo_address, open_store
store = FolderStore(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    print(store.add_bytes(number.to_bytes(8, "big") * 70_000), flush=True)
    number += 1
"""


def test_killing_a_writer_at_any_moment_leaves_only_whole_blocks(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    for delay in (0.05, 0.11):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        printed = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        for number, cid in enumerate(printed):
            assert store.read(cid, max_bytes=560_000) == number.to_bytes(8, "big") * 70_000
    store.collect_garbage()
    for cid in store.pins():
        assert len(store.read(cid, max_bytes=560_000)) == 560_000


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("kubo:5001/", "http://kubo:5001"),
        ("[::1]:5001", "http://[::1]:5001"),
        ("ip4/127.0.0.1/tcp/5001", "/ip4/127.0.0.1/tcp/5001"),
        ("HTTP://127.0.0.1:5001", "HTTP://127.0.0.1:5001"),
        ("./localhost:5001", None),
        ("store/of/mine", None),
        (Path("localhost:5001"), None),
    ],
)
def test_an_address_is_understood_and_a_folder_is_one(location: str | Path, address: str | None) -> None:
    assert kubo_address(location) == address


@pytest.mark.parametrize(
    "location",
    [
        *("localhost", "127.0.0.1", "::1", ":5001", "ipfs://Qm", "file:///tmp/x", "http:127.0.0.1:5001"),
        *("unix:/run/kubo", "a:b", "localhost:5001/api/v0", "", "  "),
    ],
)
def test_an_ambiguous_address_is_never_a_folder(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:5001"):
        open_store(location)
    assert list(tmp_path.iterdir()) == []


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
    with monkeypatch.context() as patched, pytest.raises(StoreUnavailable, match="No space left"):
        patched.setattr(Path, "hardlink_to", full)
        store.get_file(cid, tmp_path / "out", max_bytes=100)
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    store.add_bytes(b"more")
    store.get_file(cid, tmp_path / "out", max_bytes=100)
    assert (tmp_path / "out").read_bytes() == b"content"


def test_a_damaged_block_is_noticed_not_counted_as_there_and_mended_by_adding_it_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    cid = store.add_bytes(b"content")
    (block,) = (tmp_path / "blocks").glob("*/*/*")
    for damage in (b"", b"contenT", block.read_bytes()[:-1] + b"\x00"):
        block.write_bytes(damage)
        for action in (lambda: store.read(cid, max_bytes=100), lambda: store.pin(cid)):
            with pytest.raises(CorruptBlock, match="fetch or add it again"):
                action()
        assert not store.has(cid)
        assert store.add_bytes(b"content") == cid
        assert store.read(cid, max_bytes=100) == b"content" and store.has(cid)


def test_garbage_is_collected_from_this_folder_only(tmp_path: Path) -> None:
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


# Hostile content.


def test_a_file_one_byte_above_the_limit_is_refused_before_its_content_is_read(store: Blocks, tmp_path: Path) -> None:
    data = bytes(300_000)
    cid = store.add_bytes(data)
    next(path for path in store._blocks.glob("*/*/*") if path.stat().st_size > 262_000).unlink()
    with pytest.raises(ContentTooLarge, match="300000"):
        store.read(cid, max_bytes=299_999)
    with pytest.raises(ContentTooLarge):
        store.get_file(cid, tmp_path / "x", max_bytes=299_999)
    assert not (tmp_path / "x").exists()


def test_the_limit_of_a_directory_is_the_sum_of_its_files(store: Blocks, tmp_path: Path) -> None:
    cid = store.directory(("a", store.file(bytes(60))), ("b", store.file(bytes(60))))
    store.get_directory(str(cid), tmp_path / "fits", everything, max_bytes=120)
    with pytest.raises(ContentTooLarge):
        store.get_directory(str(cid), tmp_path / "does not", everything, max_bytes=119)
    assert [path.name for path in tmp_path.iterdir() if "does not" in path.name] == []


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "/etc/passwd", "../escape", "a\\b", "nul\0", "line\nfeed", "C:", "é" * 128, "\x7f",
    ],
)  # fmt: skip
def test_names_that_could_escape_or_mislead_are_refused(store: Blocks, tmp_path: Path, name: str) -> None:
    cid = store.directory((name, store.file(b"x")))
    with pytest.raises(UnsafeName):
        store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=10)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_repeated_and_unsorted_names_are_refused(store: Blocks, tmp_path: Path) -> None:
    x = store.file(b"x")
    for names in (("a", "a"), ("b", "a")):
        cid = store.directory(*((name, x) for name in names))
        with pytest.raises(UnsafeName, match="repeated or unsorted names: ask its publisher"):
            store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=10)


def test_a_name_that_is_not_utf8_is_refused(store: Blocks, tmp_path: Path) -> None:
    block = encode(UnixFsNode(DIRECTORY, None, None, (), (Link(store.file(b"x"), "NAME", 1),))).replace(
        b"NAME", b"\xff\xfe\xfd\xfc"
    )
    with pytest.raises(UnsafeName, match="not UTF-8: ask its publisher"):
        store.get_directory(str(store.put(block)), tmp_path / "out", everything, max_bytes=10)


def test_symbolic_links_are_refused_in_both_directions(store: Blocks, tmp_path: Path) -> None:
    link = store.node(UnixFsNode(SYMLINK, b"/etc/passwd", None))
    cid = store.directory(("innocent", link))
    with pytest.raises(MalformedContent, match="symbolic link, which is never followed: ask its publisher"):
        store.get_directory(str(cid), tmp_path / "out", everything, max_bytes=100)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedFile, match="link"):
        store.add_directory(tmp_path / "tree")
    with pytest.raises(UnsupportedFile):
        store.add_file(tmp_path / "tree" / "link")


def test_a_file_is_no_directory_and_the_other_way_round(store: Blocks, tmp_path: Path) -> None:
    file, directory = store.file(b"x"), store.directory()
    with pytest.raises(MalformedContent, match="not a directory"):
        store.get_directory(str(file), tmp_path / "out", everything, max_bytes=10)
    with pytest.raises(MalformedContent, match="is a directory"):
        store.get_file(str(directory), tmp_path / "out", max_bytes=10)
    with pytest.raises(MalformedContent, match="sharded"):
        sharded = store.node(UnixFsNode(SHARDED_DIRECTORY, b"\x01", None))
        store.get_directory(str(sharded), tmp_path / "out", everything, max_bytes=10)


def test_sizes_that_lie_are_refused(store: Blocks) -> None:
    leaf = store.file(b"12345")
    link = Link(leaf, "", 5)
    for lie in (
        UnixFsNode(FILE, b"12345", 4),
        UnixFsNode(FILE, b"12345", None),
        UnixFsNode(FILE, None, 7, (5,), (link,)),
        UnixFsNode(FILE, None, 6, (6,), (link,)),
        UnixFsNode(FILE, None, 4, (4,), (link,)),
        UnixFsNode(FILE, None, 5, (5, 0), (link, Link(store.file(b""), "", 0))),
        UnixFsNode(FILE, None, 5, (5, 5), (link,)),
        UnixFsNode(FILE, None, 5, (5,), (link, link)),
        UnixFsNode(FILE, b"x", 6, (5,), (link,)),
        UnixFsNode(FILE, None, 5, (5,), (Link(leaf, "name", 5),)),
        UnixFsNode(9, b"12345", 5),
    ):
        with pytest.raises(MalformedContent, match=r"ask its publisher to add it again\.$"):
            store.read(str(store.node(lie)), max_bytes=100)


def test_a_graph_that_explodes_is_refused_after_a_bounded_number_of_blocks(store: Blocks, tmp_path: Path) -> None:
    fetched = 0

    def fetch(cid: Cid) -> bytes:
        nonlocal fetched
        fetched += 1
        return store.block(cid)

    at, size = store.file(b"x"), 1
    for _ in range(7):
        at, size = store.node(UnixFsNode(FILE, None, 8 * size, (size,) * 8, (Link(at, "", 1),) * 8)), 8 * size
    with pytest.raises(MalformedContent, match="small pieces: ask its publisher"):
        DagReader(fetch, at, size).read()
    assert fetched <= 64 + size // 4096 + 1

    fetched, leaf = 0, store.file(b"")
    wide = store.directory(*((f"{i:05}", leaf) for i in range(MAX_ENTRIES + 1)))
    with pytest.raises(ContentTooLarge, match=f"{MAX_ENTRIES + 1} entries"):
        DagReader(fetch, wide, 10).write_directory(tmp_path / "out", everything)
    assert fetched == 1
    assert not (tmp_path / "out").exists()


def test_depth_is_bounded(store: Blocks) -> None:
    file = store.file(b"x")
    for _ in range(40):
        file = store.node(UnixFsNode(FILE, None, 1, (1,), (Link(file, "", 1),)))
    with pytest.raises(MalformedContent, match="deeper"):
        store.read(str(file), max_bytes=1)
