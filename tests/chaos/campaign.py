"""Rounds of chaos, of markets in one process, of whole runs, of readers of strangers' bytes, or of training scripts.

    python -m tests.chaos.campaign chaos|markets|runs|readers|scripts [--minutes 30 | --rounds 10] [--seed 1]

The exit code is 0 only if nothing was violated; the last line has the counts. What is violated in this process ends the
campaign: hypothesis shrinks it, prints its faults, and keeps it in build/campaigns, from where it is played first the
next time. Rounds of chaos depend on the timing of processes: they are told and kept, and the campaign goes on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import torch

from tests.chaos.machine import Round, play, require_none
from tests.chaos.markets import Market
from tests.chaos.parties import start_fork_server
from tests.chaos.rounds import Chaos, ChaosWithAppeals, written_jobs
from tests.fuzz.captured_scripts import Scripts
from tests.fuzz.random_runs import RandomRun
from tests.fuzz.readers import Reading

KINDS: dict[str, type[Round]] = {
    "chaos": Chaos,
    "markets": Market,
    "runs": RandomRun,
    "readers": Reading,
    "scripts": Scripts,
}
COUNTED = ("rounds", "kills", "reorganisations", "faults", "violations")
DATABASE = Path(__file__).resolve().parents[2] / "build" / "campaigns"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="chaos")
    parser.add_argument("--minutes", type=float, help="how long to start new rounds")
    parser.add_argument("--rounds", type=int, help="how many rounds each worker plays")
    parser.add_argument("--seed", type=int, default=1, help="of the first worker; the others count on from there")
    parser.add_argument("--workers", type=int, default=1, help="rounds at the same time")
    parser.add_argument("--appeals", action="store_true", help="have appeals in every round of chaos")
    parser.add_argument("--keep", type=Path, help="where what a violated round left behind is kept")
    options = parser.parse_args(words)
    minutes = 30.0 if options.minutes is None and options.rounds is None else options.minutes
    make = ChaosWithAppeals if options.appeals else KINDS[options.kind]
    started = time.monotonic()
    until = started + 60 * minutes if minutes is not None else float("inf")
    totals: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    lock = Lock()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # of the processes of a round, too
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if issubclass(make, Chaos):
        start_fork_server()  # before there are threads
        written_jobs()

    def hear(played: Round, violations: list[str]) -> None:
        with lock:
            totals.update(played.counts)
            print("; ".join(played.told), flush=True)
            for violation in violations:
                print(f"  VIOLATION {violation}", flush=True)
        if make.IS_EXACT:
            require_none(played, violations)
        totals["violations"] += len(violations)
        if violations and options.keep is not None:
            place = options.keep / f"round-{totals['rounds']}-{time.time_ns()}"
            place.mkdir(parents=True)
            (place / "round.txt").write_text("\n".join([*played.told, *violations]))
            for path in played.room.glob("*.out"):
                shutil.copy(path, place)

    def work(worker: int) -> None:
        database = DATABASE if make.IS_EXACT else None
        rounds = options.rounds if options.rounds is not None else 1_000_000
        try:
            play(make, rounds, seed=options.seed + worker, hear=hear, until=until, database=database)
        except Exception:
            totals["violations"] += 1
            print(f"VIOLATION\n{traceback.format_exc()}", flush=True)

    if options.workers == 1:
        work(0)  # in the main thread, which alone has signals
    else:
        with ThreadPoolExecutor(options.workers) as workers:
            for one in [workers.submit(work, worker) for worker in range(options.workers)]:
                one.result()
    counts = ", ".join(f"{totals[name]} {name}" for name in COUNTED)
    others = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()) if name not in COUNTED)
    print(f"{others} ({time.monotonic() - started:.0f} seconds)")
    print(counts)
    return 1 if totals["violations"] or not totals["rounds"] else 0


if __name__ == "__main__":
    sys.exit(main())
