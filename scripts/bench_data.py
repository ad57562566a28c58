"""Measures training and auditing on data that are larger than memory: what each command holds at most, beside the same
command for the same model on few data; or what an audit of one interval fetches of them.

    .venv/bin/python scripts/bench_data.py                   # 0.3 GB
    .venv/bin/python scripts/bench_data.py --gigabytes 20    # needs 40 GB of disk for a while
    .venv/bin/python scripts/bench_data.py --gigabytes 4 --fetch    # 8 GB

A file of random tokens is cut into overlapping windows; a small GPT is captured, trained and audited on them, by the
commands that a user has, each in a process of its own that may hold `--memory` of data (RLIMIT_DATA, see getrlimit(2):
private memory that can be written, resident or not). Resident memory is VmHWM of proc(5). The file is deleted before
training: the job has its own copy. MB and GB are 10^6 and 10^9 bytes. It ends with 1 if a command has failed, or has
grown by more than `--growth`.

With `--fetch` the job is trained and published, and one of its two intervals audited, then both, by processes that have
neither the job nor its data, through a gateway that gives parts of blocks. Counted are the bytes of the bodies that the
gateway sends, of the data and of everything else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tiebreak.store import FolderStore
from tiebreak.store.dagpb import Cid

if TYPE_CHECKING:
    from roundlog import Task

FEW = 2_000_000
"""Bytes of the data that the same model is measured on for comparison."""

_PIECE = 8 << 20
_TOKENS = 256


def task(*, tokens: Path, steps: int = 20, window: int = 1025) -> Task:
    """A small GPT on windows of a file of uint16, each of which begins with the last token of the one before."""
    import torch
    from roundlog import Task, windows
    from roundlog.examples.gpt import GPT, loss

    torch.manual_seed(0)
    model = GPT(window - 1, 64, 2, 1, 0.1)
    stream = np.memmap(tokens, np.dtype("<u2"), "r")
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset={"tokens": windows(stream, window=window, stride=window - 1)},
        batch_size=2,
        steps=steps,
        interval=steps // 2,
        seed=1,
    )


def make_tokens(path: Path, size: int) -> None:
    """Writes a file of `size` bytes, an even number, of random tokens."""
    generator = np.random.Generator(np.random.SFC64(5))
    with path.open("wb") as file:
        for start in range(0, size, _PIECE):
            count = min(_PIECE, size - start) // 2
            file.write(generator.integers(0, _TOKENS, count, np.uint16).astype("<u2").data)


@dataclass(frozen=True)
class Taken:
    """Cost of a command: resident bytes at most, bytes that it has read from files, and seconds."""

    resident: int
    read: int
    seconds: float


def run(words: list[str], memory: int, room: Path) -> Taken:
    """Runs a command of `tiebreak` that may hold so many bytes. Raises SystemExit with what it said if it fails."""
    report = room / "taken.json"
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, __file__, "--one", str(memory), str(report), *words], capture_output=True, text=True
    )
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise SystemExit(f"tiebreak {' '.join(words)} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    return Taken(**json.loads(report.read_text()), seconds=seconds)


def one(memory: int, report: Path, words: list[str]) -> None:
    """The command itself, in a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    from tiebreak.cli.app import main

    sys.argv = ["tiebreak", *words]
    try:
        main()
    finally:
        taken = {
            "resident": 1024 * _number_in("/proc/self/status", "VmHWM"),
            "read": _number_in("/proc/self/io", "rchar"),
        }
        report.write_text(json.dumps(taken))


def _number_in(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(size: int, *, memory: int, room: Path, settings: tuple[str, ...] = ()) -> dict[str, tuple[Taken, Taken]]:
    """Cost of each command, on few data and on `size` bytes of them. settings: of `task`, as NAME=VALUE."""
    taken: dict[str, tuple[Taken, Taken]] = {}
    few, many = room / "few", room / "many"
    for place, count in ((few, FEW), (many, size)):
        place.mkdir()
        make_tokens(place / "tokens", count)
    for command in ("job create", "train", "audit"):
        both = []
        for place in (few, many):
            job, trained = str(place / "job"), str(place / "trained")
            sets = [word for setting in (f"tokens={place / 'tokens'}", *settings) for word in ("--set", setting)]
            words = {
                "job create": ["job", "create", f"{__file__}:task", "--out", job, *sets],
                "train": ["train", job, "--run", trained],
                "audit": [
                    *("audit", job, "--run", str(place / "audited")),
                    *("--claim", trained, "--log", str(place / "trained" / "log")),
                ],
            }[command]
            both.append(run([*words, "--max-memory", f"{memory / 1e6:.6f}MB"], memory, room))
        taken[command] = (both[0], both[1])
        if command == "job create":
            for place in (few, many):
                (place / "tokens").unlink()
    return taken


class Gateway(BaseHTTPRequestHandler):
    """A trustless gateway to the blocks of a folder, which gives parts of raw blocks and counts what it sends."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: FolderStore
    sent: Counter[str]

    def do_GET(self) -> None:
        block = self.store.block(Cid.parse(self.path.partition("?")[0].removeprefix("/ipfs/")))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        body = block[int(wanted[1]) : int(wanted[2]) + 1] if wanted else block
        self.sent["data" if wanted else "else"] += len(body)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing about single requests."""


@contextmanager
def serving(store: Path) -> Iterator[tuple[str, Counter[str]]]:
    """The address of a gateway to a folder, and the bytes that it has sent so far."""
    sent: Counter[str] = Counter()
    handler = type("Counting", (Gateway,), {"store": FolderStore(store), "sent": sent})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"gateway+http://127.0.0.1:{server.server_address[1]}", sent
    finally:
        server.shutdown()
        server.server_close()


def told(*words: object) -> dict[str, Any]:
    """JSON that a command of `tiebreak` prints. Raises SystemExit with what it said if it fails."""
    command = [str(word) for word in words]
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "tiebreak", *command, "--json"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"tiebreak {' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def fetch(size: int, room: Path, settings: tuple[str, ...] = ()) -> dict[str, Counter[str]]:
    """Bytes that a gateway sends for a job without its data, for the audit of one of its two intervals, and for that of
    both, on `size` bytes of data. settings: of `task`, as NAME=VALUE."""
    make_tokens(room / "tokens", size)
    sets = [word for setting in (f"tokens={room / 'tokens'}", *settings) for word in ("--set", setting)]
    told("job", "create", f"{__file__}:task", "--out", room / "job", *sets)
    (room / "tokens").unlink()
    store = ("--store", room / "store")
    log = told("train", room / "job", "--run", room / "trained", "--publish-every", 1, *store)["published_log"]
    cid = told("job", "publish", room / "job", *store)["cid"]
    shutil.rmtree(room / "job")
    shutil.rmtree(room / "trained")
    with serving(room / "store") as (gateway, sent):
        places = ("--store", gateway)
        told("job", "fetch", cid, "--out", room / "far", "--without-data", *places)
        counts = {"job fetch --without-data": sent.copy()}
        for name, share, intervals in (("audit --share 0.5", 0.5, 1), ("audit", 1, 2)):
            sent.clear()
            found = told("audit", log, "--share", share, "--result", room / f"{intervals}.json", *places)
            if found["right_intervals"] != intervals or found["fetched_data_bytes"] != sent["data"]:
                raise SystemExit(f"the gateway has sent {sent['data']} bytes of data, and the audit says {found}")
            counts[name] = sent.copy()
    return counts


def show_fetched(size: int, room: Path) -> None:
    """Prints what `fetch` has counted."""
    print(f"{size / 1e9:g} GB of tokens\n")
    print("| command | of the data | their share | of everything else |")
    print("|---|---|---|---|")
    for command, sent in fetch(size, room).items():
        data, other = sent["data"], sent["else"]
        print(f"| `{command}` | {data / 1e6:,.3f} MB | {data / size:.2g} | {other / 1e6:,.3f} MB |")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.3)
    parser.add_argument("--memory", type=float, default=2.0, help="that a command may hold, in GB (default: 2)")
    parser.add_argument("--growth", type=float, default=1.0, help="at most, of resident memory, in GB (default: 1)")
    parser.add_argument("--room", type=Path, help="where the files lie meanwhile (default: the temporary directory)")
    parser.add_argument("--fetch", action="store_true", help="count what an audit of one interval fetches")
    options = parser.parse_args()
    size = 2 * int(options.gigabytes * 10**9 / 2)
    if options.fetch:
        with tempfile.TemporaryDirectory(prefix="bench-data-", dir=options.room) as room:
            show_fetched(size, Path(room))
        return
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=options.room) as room:
        taken = measure(size, memory=int(options.memory * 10**9), room=Path(room))
    print(f"{size / 1e9:g} GB of tokens beside {FEW / 1e9:g} GB, {os.cpu_count()} cores\n")
    print("| command | resident, few data | resident | growth | read | seconds |")
    print("|---|---|---|---|---|---|")
    for command, (few, many) in taken.items():
        growth = many.resident - few.resident
        print(
            f"| `{command}` | {few.resident / 1e6:,.0f} MB | {many.resident / 1e6:,.0f} MB | {growth / 1e6:,.0f} MB "
            f"| {many.read / 1e9:.2f} GB | {many.seconds:,.0f} |"
        )
    if any(many.resident - few.resident > options.growth * 10**9 for few, many in taken.values()):
        sys.exit(f"resident memory has grown by more than {options.growth:g} GB")


if __name__ == "__main__":
    main()
