"""Rounds of chaos, one after the other, with real roles as processes on anvil: `make chaos MINUTES=30`.

    python -m tests.chaos.campaign [--minutes 30 | --rounds 10] [--seed 1] [--workers 2] [--keep DIR] [--appeals]

A round with a seed is repeated by `--seed SEED --rounds 1`, as far as the timing of processes allows. The exit code is
0 only if nothing was violated; the last line has the counts. After an interrupt the rounds that were begun end.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from tests.chaos.jobs import read_roots, write_jobs
from tests.chaos.parties import start_fork_server
from tests.chaos.plans import Plan, plan
from tests.chaos.rounds import Result, play

COUNTED = ("rounds", "kills", "reorganisations", "faults", "violations")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long to start new rounds")
    parser.add_argument("--rounds", type=int, help="how many rounds to play")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the others count on from there")
    parser.add_argument("--workers", type=int, default=2, help="rounds at the same time")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between two blocks")
    parser.add_argument("--appeals", action="store_true", help="have appeals in every round")
    parser.add_argument("--keep", type=Path, help="where what a violated round left behind is kept")
    options = parser.parse_args(words)
    minutes = 30.0 if options.minutes is None and options.rounds is None else options.minutes
    started = time.monotonic()
    until = [started + 60 * minutes if minutes is not None else float("inf")]
    seeds = itertools.count(options.seed)
    if options.rounds is not None:
        seeds = itertools.islice(seeds, options.rounds)
    totals: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    lock = Lock()
    start_fork_server()  # before there are threads
    with tempfile.TemporaryDirectory(prefix="tiebreak-chaos-") as name:
        jobs = Path(name) / "jobs"
        jobs.mkdir()
        write_jobs(jobs)
        right_roots = read_roots(jobs)

        def work() -> None:
            while time.monotonic() < until[0]:
                with lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                planned, directory = plan(seed, appeals=options.appeals), Path(name) / f"seed-{seed}"
                directory.mkdir()
                result = play(planned, directory, jobs, right_roots, pause=options.pause)
                with lock:
                    totals.update(result.counts)
                    tell(planned, result)
                if result.violations and options.keep is not None:
                    keep(directory, options.keep / f"seed-{seed}", result)
                shutil.rmtree(directory, ignore_errors=True)

        with ThreadPoolExecutor(options.workers) as workers:
            begun = [workers.submit(work) for _ in range(options.workers)]
            try:
                for one in begun:
                    one.result()
            finally:
                until[0] = 0.0
    counts = ", ".join(f"{totals[name]} {name}" for name in COUNTED)
    others = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()) if name not in COUNTED)
    print(f"{others} ({time.monotonic() - started:.0f} seconds)")
    print(counts)
    return 1 if totals["violations"] or not totals["rounds"] else 0


def tell(planned: Plan, result: Result) -> None:
    """Prints what a round was, and its violations."""
    audits = f"{planned.auditors} auditors ({planned.audits})"
    story = f"{planned.trainer or 'honest'} trainer, {audits}, {len(planned.challengers)} liars"
    for how, names in (("ranks", planned.by_ranks), ("workers", planned.by_workers)):
        story += f", by {how}: {' '.join(sorted(names))}" if names else ""
    story += ", data elsewhere" if planned.gateway else ""
    story += ", three nodes, of which one lies" if planned.several else ""
    print(f"seed {result.seed}: {story}, {result.ended}, {result.seconds:.0f} s", flush=True)
    for violation in result.violations:
        print(f"  VIOLATION (seed {result.seed}) {violation}", flush=True)
    for game in result.games if result.violations else ():
        print(f"  {game}", flush=True)


def keep(directory: Path, place: Path, result: Result) -> None:
    """Copies the output of the parties to a place that stays, and what is told of the round."""
    place.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("*.out"):
        shutil.copy(path, place)
    (place / "round.json").write_text(json.dumps(dataclasses.asdict(result), indent=1))


if __name__ == "__main__":
    sys.exit(main())
