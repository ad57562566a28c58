"""Measures how a content store takes and gives one large file: MB a second, and the most memory that a process holds.

    .venv/bin/python scripts/bench_store.py                     # 0.25 GB, into a folder
    .venv/bin/python scripts/bench_store.py --gigabytes 10      # needs 30 GB of disk for a while
    .venv/bin/python scripts/bench_store.py --store http://127.0.0.1:5001

Each phase is a process of its own: adding, adding again (all blocks are there), fetching, and fetching that is cut off
in the middle and carried on. What comes back is compared with what went in. GB and MB are 10^9 and 10^6 bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tiebreak.store import Transfer, open_store
from tiebreak.store.dag_builder import CHUNK
from tiebreak.store.store_errors import StoreUnavailable


def make_file(path: Path, size: int) -> str:
    """Writes a file in which no two chunks are the same; returns its SHA-256."""
    noise, digest = os.urandom(CHUNK - 8), hashlib.sha256()
    with path.open("wb") as out:
        for number in range(-(-size // CHUNK)):
            chunk = (number.to_bytes(8, "big") + noise)[: size - number * CHUNK]
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def add(place: str, path: Path) -> str:
    return open_store(place).add_file(path)


def fetch(place: str, cid: str, dest: Path, size: int) -> str:
    open_store(place).get_file(cid, dest, max_bytes=size)
    return cid


def fetch_half(place: str, cid: str, dest: Path, size: int) -> str:
    def cut(transfer: Transfer) -> None:
        if transfer.done >= transfer.total // 2:
            raise StoreUnavailable("cut off in the middle.")

    try:
        open_store(place, on_transfer=cut).get_file(cid, dest, max_bytes=size)
    except StoreUnavailable:
        return cid
    raise SystemExit("the fetch was too short to be cut off: take more --gigabytes")


def _measured(queue: multiprocessing.Queue[tuple[float, int, str]], call: Callable[..., str], *args: object) -> None:
    began = time.perf_counter()
    result = call(*args)
    seconds = time.perf_counter() - began
    queue.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, result))


def measure(name: str, size: int, call: Callable[..., str], *args: object) -> str:
    """Runs one phase in a process of its own, and prints what it took."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_measured, args=(queue, call, *args))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{name} has failed")
    seconds, rss, result = queue.get()
    assert isinstance(result, str)
    print(f"| {name} | {seconds:,.1f} | {size / 1e6 / seconds:,.0f} | {rss / 1e6:,.0f} |", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.25)
    parser.add_argument("--store", help="a location as for `tiebreak --store` (default: a new folder)")
    parser.add_argument("--room", type=Path, help="where the files lie meanwhile (default: the temporary directory)")
    options = parser.parse_args()
    size = int(options.gigabytes * 10**9)
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=options.room) as name:
        room = Path(name)
        place = options.store or str(room / "store")
        source, dest = room / "source", room / "fetched"
        expected = make_file(source, size)
        print(f"{size:,} bytes, store {options.store or 'a folder'}\n\n| phase | seconds | MB/s | peak memory, MB |")
        print("| --- | ---: | ---: | ---: |")
        cid = measure("add", size, add, place, source)
        if measure("add again", size, add, place, source) != cid:
            sys.exit("adding twice gave two identifiers")
        source.unlink()
        measure("fetch", size, fetch, place, cid, dest, size)
        if digest_of(dest) != expected:
            sys.exit("what came back is not what went in")
        dest.unlink()
        measure("fetch, cut off in the middle", size // 2, fetch_half, place, cid, dest, size)
        measure("the rest of it", size // 2, fetch, place, cid, dest, size)
        if digest_of(dest) != expected:
            sys.exit("what came back in two parts is not what went in")


if __name__ == "__main__":
    main()
