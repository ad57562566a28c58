"""Every reader of strangers' bytes, on changes of changes of what it accepts: a campaign of `make fuzz`."""

from __future__ import annotations

import resource
from functools import cache
from pathlib import Path
from random import Random

from tests.chaos.machine import Round
from tests.fuzz.client_targets import CLIENT
from tests.fuzz.engine_targets import ENGINE
from tests.fuzz.targets import Target, attempt, inputs, mutated

TARGETS = {target.name: target for target in (*ENGINE, *CLIENT)}
_TRIES = 40
_MORE_MEMORY = 3 << 30


@cache
def _inputs(name: str) -> list[bytes]:
    return inputs(TARGETS[name])


class Reading(Round):
    """Inputs that make a reader go a way that none went before (another error, or another line that raises it) are
    changed further. Memory is limited to 3 GiB more than the process has at the start."""

    FAULTS = tuple(sorted(TARGETS))
    STRIKES = 10

    def __init__(self, draw: Random, room: Path) -> None:
        super().__init__(draw, room)
        self._shortest: dict[tuple[str, str], bytes] = {}
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_MEMORY, resource.RLIM_INFINITY))

    def strike(self, fault: str, draw: Random) -> None:
        target = TARGETS[fault]
        for _ in range(_TRIES):
            known = [data for (name, _), data in self._shortest.items() if name == fault]
            data = mutated(target, draw.choice([*known, *_inputs(fault)]), draw, draw.choice((1, 1, 1, 2, 3, 6)))
            self.counts[f"inputs of {fault}"] += 1
            self._try(target, data)

    def _try(self, target: Target, data: bytes) -> None:
        """Raise Find, with the input as a note."""
        try:
            way = target.name, attempt(target, data)
        except AssertionError as error:
            error.add_note(f"to be kept in {target.corpus}: {data.hex()}")
            raise
        if way not in self._shortest or len(data) < len(self._shortest[way]):
            self._shortest[way] = data
