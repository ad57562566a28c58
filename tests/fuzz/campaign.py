"""Fuzz for a while: `python -m tests.fuzz.campaign --seconds 60 [--target NAME] [--seed N] [--keep]`.

Inputs that make a reader go a way that no input went before (another error, or another line that raises it) are changed
further; with --keep the shortest of each way stay in tests/fuzz/corpus, which the tests replay. A find is written there
in any case, ends the campaign for its target, and gives exit code 1. Memory is limited to 3 GiB more than the process
has at the start."""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.client_targets import CLIENT
from tests.fuzz.engine_targets import ENGINE
from tests.fuzz.targets import Find, Target, attempt, inputs, mutated

_MORE_MEMORY = 3 << 30
_LARGEST_KEPT = 4096
"""Bytes of an input that stays in the corpus."""


class Pool:
    """The inputs of one target: the shortest that went each way."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.tried = 0
        self.shortest: dict[str, bytes] = {}
        for data in inputs(target):
            self.note(attempt(target, data), data)

    def note(self, way: str, data: bytes) -> None:
        known = self.shortest.get(way)
        if known is None or len(data) < len(known):
            self.shortest[way] = data

    def fuzz(self, rng: Random) -> None:
        start = rng.choice([*self.shortest.values(), *self.target.seeds()])
        data = mutated(self.target, start, rng, rng.choice((1, 1, 1, 2, 3, 6)))
        self.tried += 1
        try:
            self.note(attempt(self.target, data), data)
        except Find:
            write(self.target, data)
            raise

    def keep(self) -> None:
        """Makes the corpus what this pool holds."""
        for path in self.target.corpus.glob("*"):
            path.unlink()
        for data in self.shortest.values():
            if len(data) <= _LARGEST_KEPT:
                write(self.target, data)


def write(target: Target, data: bytes) -> Path:
    """Adds an input to a corpus."""
    target.corpus.mkdir(parents=True, exist_ok=True)
    path = target.corpus / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def main() -> int:
    targets = {target.name: target for target in (*ENGINE, *CLIENT)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--target", action="append", choices=sorted(targets))
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    rng = Random(options.seed)
    pools = {name: Pool(targets[name]) for name in options.target or targets}
    broken: dict[str, Find] = {}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_MEMORY, resource.RLIM_INFINITY))
    until = time.monotonic() + options.seconds
    while time.monotonic() < until and len(broken) < len(pools):
        for name in pools.keys() - broken.keys():
            # Each target gets the same time, not the same number of inputs.
            turn = time.monotonic() + 0.05
            try:
                while time.monotonic() < turn:
                    pools[name].fuzz(rng)
            except Find as find:
                broken[name] = find
    for name, pool in pools.items():
        print(f"{name:14} {pool.tried:9} inputs {len(pool.shortest):4} ways  {broken.get(name, '')}")
        if options.keep and name not in broken:
            pool.keep()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
