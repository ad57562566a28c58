"""Rounds of chaos, one after the other, with real roles as processes on anvil: `make chaos MINUTES=30`.

    python -m tests.chaos.campaign [--minutes 30 | --rounds 10] [--seed 1] [--workers 2] [--keep DIR] [--appeals]

A round with a seed is repeated by `--seed SEED --rounds 1`, as far as the timing of processes allows. The exit code is
0 only if nothing was violated; the last line has the counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

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
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stride", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.minutes is None and options.rounds is None:
        options.minutes = 30.0
    if options.prepare:
        from tests.chaos.jobs import write_jobs

        write_jobs(options.jobs)
        return 0
    if options.jobs is not None:
        return _work(options)
    with tempfile.TemporaryDirectory(prefix="tiebreak-chaos-") as name:
        return _lead(options, Path(name))


def _lead(options: argparse.Namespace, jobs: Path) -> int:
    """Shares the rounds among workers, which are processes of their own, and adds up what they say."""
    started = time.monotonic()
    workers = min(options.workers, options.rounds or options.workers)
    totals: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    threads, processes, failed = [], [], []
    lock = threading.Lock()
    # Once, and before all others: whatever has to be compiled is then at hand.
    itself = [sys.executable, "-m", "tests.chaos.campaign", "--jobs", str(jobs)]
    subprocess.run([*itself, "--prepare"], check=True)
    for index in range(workers):
        words = [*itself, "--stride", str(workers), "--seed", str(options.seed + index), "--pause", str(options.pause)]
        if options.rounds is not None:
            words += ["--rounds", str((options.rounds - index + workers - 1) // workers)]
        if options.minutes is not None:
            words += ["--minutes", str(options.minutes)]
        if options.keep is not None:
            words += ["--keep", str(options.keep)]
        words += ["--appeals"] if options.appeals else []
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        thread = threading.Thread(target=_listen, args=(process, totals, lock))
        thread.start()
        threads.append(thread)
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        failed.append(130)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            failed += [process.returncode] if process.wait() else []
    counts = ", ".join(f"{totals[name]} {name}" for name in COUNTED)
    others = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()) if name not in COUNTED)
    print(f"{others} ({time.monotonic() - started:.0f} seconds)")
    print(counts)
    return 1 if totals["violations"] or failed or not totals["rounds"] else 0


def _listen(process: subprocess.Popen[str], totals: Counter[str], lock: threading.Lock) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            told = json.loads(line)
        except ValueError:
            print(line, end="", flush=True)
            continue
        with lock:
            totals.update(told["counts"])
            print(f"seed {told['seed']}: {told['story']}, {told['ended']}, {told['seconds']:.0f} s", flush=True)
            for violation in told["violations"]:
                print(f"  VIOLATION (seed {told['seed']}) {violation}", flush=True)
            for game in told["games"] if told["violations"] else ():
                print(f"  {game}", flush=True)


def _work(options: argparse.Namespace) -> int:
    """Plays every `stride`-th seed in this process, and prints a JSON line for each."""
    from tests.chaos.disks import own_mounts
    from tests.chaos.parties import start_fork_server

    # An interrupt is the leader's, which then stops its workers; a stop leaves no process behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    mounts = own_mounts()
    start_fork_server()
    from tests.chaos.jobs import read_roots
    from tests.chaos.plans import plan
    from tests.chaos.rounds import play

    deadline = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")
    seed, left = options.seed, options.rounds
    with tempfile.TemporaryDirectory(prefix="tiebreak-chaos-") as name:
        right_roots = read_roots(options.jobs)
        while time.monotonic() < deadline and left != 0:
            planned = plan(seed, appeals=options.appeals)
            directory = Path(name) / f"seed-{seed}"
            directory.mkdir()
            result = play(planned, directory, options.jobs, right_roots, pause=options.pause, mounts=mounts)
            trainer = planned.trainer or "honest"
            audits = f"{planned.auditors} auditors ({planned.audits})"
            story = f"{trainer} trainer, {audits}, {len(planned.challengers)} liars"
            for how, names in (("ranks", planned.by_ranks), ("workers", planned.by_workers)):
                story += f", by {how}: {' '.join(sorted(names))}" if names else ""
            story += ", data elsewhere" if planned.gateway else ""
            story += ", three nodes, of which one lies" if planned.several else ""
            told = {"seed": seed, "story": story, "ended": result.ended, "seconds": result.seconds}
            told |= {"violations": result.violations, "games": result.games, "counts": result.counts}
            print(json.dumps(told), flush=True)
            if result.violations and options.keep is not None:
                _keep(directory, options.keep / f"seed-{seed}", told)
            shutil.rmtree(directory, ignore_errors=True)
            seed += options.stride
            left = None if left is None else left - 1
    return 0


def _keep(directory: Path, place: Path, told: dict[str, object]) -> None:
    """Copies the output of the parties to a place that stays, and what is told of the round."""
    place.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("*.out"):
        shutil.copy(path, place)
    (place / "round.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    sys.exit(main())
