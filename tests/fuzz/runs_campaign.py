"""Random whole runs, each of which has to keep its promises: `make fuzz-runs RUNS=200`.

Every round prints one line with its seed; `--first SEED --runs 1` plays it again. The exit status is 0 only if no
promise was broken."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--seconds", type=float, default=1e9, help="no round begins later")
    parser.add_argument("--alone", action="store_true", help="without ranks and kills: many times as fast")
    parser.add_argument("--deliveries", action="store_true", help="deliveries of jobs by shaky stores, and no more")
    arguments = parser.parse_args()
    # Processes of a round start with this path, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    import torch

    from tests.fuzz.random_runs import Round, play

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    part = Round.deliver if arguments.deliveries else Round.play
    counts: Counter[str] = Counter()
    began, last = time.monotonic(), arguments.first
    for seed in range(arguments.first, arguments.first + arguments.runs):
        if time.monotonic() - began > arguments.seconds:
            break
        last, started = seed + 1, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="round-", ignore_cleanup_errors=True) as room:
            try:
                told = play(seed, Path(room), by_processes=not arguments.alone, counts=counts, part=part)
                print(f"{told} [{time.monotonic() - started:.1f} s]", flush=True)
            except Exception:
                print(f"VIOLATION\n{traceback.format_exc()}", flush=True)
    done = last - arguments.first
    print(f"{done} rounds: {counts['played']} played, {counts['refused']} refused, {counts['violations']} violations")
    return 1 if counts["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
