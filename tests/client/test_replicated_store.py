"""Several stores as one: who is written to, who is read from, and what is said when one of them fails."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, locations, open_stores
from tiebreak.store.dag_builder import Sink
from tiebreak.store.dag_reader import as_file
from tiebreak.store.dagpb import FILE, RAW, Cid, Link, UnixFsNode, encode
from tiebreak.store.gateway import GatewayStore
from tiebreak.store.kubo import KuboStore
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store import Store
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreUnavailable

from tests.client.http_stand_in import Request, serving

DATA = random.Random(8).randbytes(600_000)
GONE = "http://127.0.0.1:1"


class Stores:
    """Two folders as one store, and what was warned of."""

    def __init__(self, room: Path, *others: Store) -> None:
        self.a, self.b = FolderStore(room / "a"), FolderStore(room / "b")
        self.warnings: list[str] = []
        self.both = ReplicatedStore([self.a, self.b, *others], warn=self.warnings.append)


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def block_files(store: FolderStore) -> list[Path]:
    return sorted(store._blocks.glob("*/*/*"))


def test_what_is_added_is_in_every_store(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "x").write_bytes(DATA)
    (tmp_path / "file").write_bytes(DATA[:1000])
    cids = [
        stores.both.add_bytes(DATA),
        stores.both.add_file(tmp_path / "file"),
        stores.both.add_directory(tmp_path / "tree"),
    ]
    assert stores.a.pins() == stores.b.pins() == sorted(cids)
    for store in (stores.a, stores.b):
        assert store.read(cids[0], max_bytes=len(DATA)) == DATA
    assert stores.warnings == []
    stores.both.unpin(cids[0])
    assert stores.a.pins() == stores.b.pins() == sorted(cids[1:])


def test_missing_and_damaged_blocks_come_from_the_next_store(stores: Stores) -> None:
    cid = stores.both.add_bytes(DATA)
    first, second, third, _ = block_files(stores.a)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"?")
    block_files(stores.b)[2].unlink()
    assert third.exists() and stores.both.read(cid, max_bytes=len(DATA)) == DATA
    with pytest.raises((ContentMissing, CorruptBlock)):
        stores.a.read(cid, max_bytes=len(DATA))


def test_a_part_comes_from_stores_that_each_lack_another_block_of_it(stores: Stores, tmp_path: Path) -> None:
    """A leaf, or the node above it, as a whole file does."""
    cid = stores.both.add_bytes(DATA)
    first, size = 262_144 - 100, 300
    root = Cid.parse(cid)
    leaves = [link.cid for link in as_file(root, stores.a.block(root)).links]
    for lost_in_a, lost_in_b in ((root, leaves[0]), (leaves[1], root), (leaves[0], leaves[1])):
        for store, lost in ((stores.a, lost_in_a), (stores.b, lost_in_b)):
            (path,) = (one for one in block_files(store) if one.name == lost.digest.hex())
            path.rename(tmp_path / f"lost {store.name.rpartition('/')[2]}")
        fresh = ReplicatedStore([FolderStore(tmp_path / "a"), FolderStore(tmp_path / "b")], warn=stores.warnings.append)
        assert fresh.part(cid, first, size, is_right=bool, within=60) == DATA[first : first + size]
        with pytest.raises(ContentMissing, match="no store has given block"):
            ReplicatedStore([FolderStore(tmp_path / "a")], warn=stores.warnings.append).part(
                cid, first, size, is_right=bool
            )
        stores.both.add_bytes(DATA)


def test_when_all_fail_each_failure_is_named(tmp_path: Path) -> None:
    with serving(lambda request: request.send(200, b"rubbish")) as url:
        lying = GatewayStore(url, attempts=1)
        stores = Stores(tmp_path, KuboStore(GONE, attempts=1), lying)
        absent = str(Cid.of(b"absent", RAW))
        with pytest.raises(StoreUnavailable) as caught:
            stores.both.read(absent, max_bytes=10)
    text = str(caught.value)
    for part in (f"content store {tmp_path / 'a'} has no", f"{tmp_path / 'b'}", f"Kubo at {GONE}", f"gateway {url}"):
        assert part in text
    assert text.count(". ") == 0 and text.endswith(".")


def test_a_slow_store_gets_its_share_of_the_time_only_once(tmp_path: Path) -> None:
    over = threading.Event()
    asked = []

    def hang(request: Request) -> None:
        asked.append(1)
        over.wait(10)

    with serving(hang) as url:
        folder = FolderStore(tmp_path / "a")
        cid = folder.add_bytes(DATA)
        both = ReplicatedStore([GatewayStore(url), folder], warn=pytest.fail)
        started = time.monotonic()
        assert both.read(cid, max_bytes=len(DATA), within=2.4) == DATA
        # The first block has waited half of the time; the store is asked last from then on.
        assert 1.0 < time.monotonic() - started < 2.4 and len(asked) == 1
        over.set()


def test_one_store_that_takes_the_content_is_enough_and_the_other_is_told(tmp_path: Path) -> None:
    folder, warnings = FolderStore(tmp_path / "a"), list[str]()
    both = ReplicatedStore([KuboStore(GONE, attempts=1), folder], warn=warnings.append)
    cid = both.add_bytes(DATA)
    assert folder.pins() == [cid]
    assert len(warnings) == 1 and cid in warnings[0] and GONE in warnings[0]


def test_what_a_store_has_missed_is_copied_there_later(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(root: Cid) -> None:
        raise StoreUnavailable("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(stores.b, "_record_pin", full)
        cid = stores.both.add_bytes(DATA)
    assert stores.b.pins() == [] and "the disk is full" in stores.warnings[0]
    block_files(stores.b)[0].unlink()
    stores.both.mend()
    assert stores.b.pins() == [cid] and stores.b.read(cid, max_bytes=len(DATA)) == DATA
    assert len(stores.warnings) == 1
    stores.both.mend()


def test_a_store_that_stays_away_is_tried_once_a_round(tmp_path: Path) -> None:
    folder, warnings, calls = FolderStore(tmp_path / "a"), list[str](), list[str]()

    def away(request: Request) -> None:
        calls.append(request.path)
        request.connection.shutdown(socket.SHUT_RDWR)

    with serving(away) as url:
        both = ReplicatedStore([KuboStore(url, attempts=1), folder], warn=warnings.append)
        cids = [both.add_bytes(bytes([number])) for number in range(3)]
        assert len(warnings) == 3
        calls.clear()
        both.mend(frozenset(cids))
    # Once to see what it has of each, and once to try.
    assert len(calls) == 3 + 1 and len(warnings) == 4


def test_no_store_that_takes_the_content_is_an_error_that_names_all(stores: Stores) -> None:
    both = ReplicatedStore([KuboStore(GONE, attempts=1), GatewayStore(GONE)], warn=pytest.fail)
    with pytest.raises(StoreUnavailable, match=f"no store has taken the content: .*{GONE}"):
        both.add_bytes(b"x")
    with pytest.raises(StoreUnavailable, match="can only be read from"):
        ReplicatedStore([GatewayStore(GONE)], warn=pytest.fail).add_bytes(b"x")


def test_a_node_that_is_linked_as_raw_bytes_first_does_not_hide_what_is_below_it(stores: Stores) -> None:
    leaf = Cid.of(b"below", RAW)
    node = encode(UnixFsNode(FILE, None, 5, (5,), (Link(leaf, "", 5),)))
    as_node = Cid.of(node)
    as_raw = Cid(RAW, as_node.digest)
    root = encode(UnixFsNode(FILE, None, 10, (5, 5), (Link(as_node, "", 5), Link(as_raw, "", 5))))

    def build(sink: Sink) -> Cid:
        for cid, block in ((leaf, b"below"), (as_node, node), (Cid.of(root), root)):
            sink(cid, block)
        return Cid.of(root)

    stores.a.add_blocks(build)
    stores.both.pin(str(Cid.of(root)))
    assert stores.b.block(leaf) == b"below"
    stores.a.collect_garbage()
    assert stores.a.block(leaf) == b"below"


def test_locations_stand_in_one_list(tmp_path: Path) -> None:
    assert locations("a, http://127.0.0.1:5001 ,gateway+https://x") == [
        "a",
        "http://127.0.0.1:5001",
        "gateway+https://x",
    ]
    for wrong in ("a,", ",", "a,ipfs://x", "gateway+ftp://x", "gateway+file:///etc"):
        with pytest.raises(StoreUnavailable):
            locations(wrong)
    store = open_stores([tmp_path / "a", "http://127.0.0.1:5001"], warn=pytest.fail)
    assert isinstance(store, ReplicatedStore)
    assert isinstance(open_stores([tmp_path / "a"], warn=pytest.fail), FolderStore)
