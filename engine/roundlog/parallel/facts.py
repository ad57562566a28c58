"""The record of what workers have computed, from which a killed audit carries on.

    facts.jsonl    one line a fact (interval, root before, root after, worker, checksum), or a worker not to be believed

Lines are appended and fsynced. A line that is torn or damaged is left out, and its interval is executed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from roundlog.parallel.plan import Fact
from roundlog.storage import open_regular, sync_directory

_NAME = "facts.jsonl"


class Facts:
    """The record in the directory of an audit of the run `run_id` (32 bytes)."""

    def __init__(self, directory: Path, run_id: bytes) -> None:
        self._path = directory / _NAME
        self._run_id = run_id

    def read(self) -> list[tuple[Fact, str]]:
        """(fact, worker) of every readable line, but for workers that are not believed any more. Raises OSError,
        StorageError."""
        try:
            with open_regular(self._path) as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        found: list[tuple[Fact, str]] = []
        distrusted: set[str] = set()
        for line in lines:
            entry = self._entry(line)
            if entry is None:
                continue
            if "distrusted" in entry:
                distrusted.add(str(entry["distrusted"]))
            else:
                roots = bytes.fromhex(str(entry["start"])), bytes.fromhex(str(entry["end"]))
                found.append((Fact(int(str(entry["interval"])), *roots), str(entry["worker"])))
        return [(fact, worker) for fact, worker in found if worker not in distrusted]

    def add(self, facts: Iterable[Fact], worker: str) -> None:
        """Appends facts. Raises OSError."""
        self._append(
            {"interval": fact.interval, "start": fact.start.hex(), "end": fact.end.hex(), "worker": worker}
            for fact in facts
        )

    def distrust(self, workers: Iterable[str]) -> None:
        """Appends that these workers are not believed any more. Raises OSError."""
        self._append({"distrusted": worker} for worker in sorted(workers))

    def _append(self, entries: Iterable[dict[str, object]]) -> None:
        # A line's end comes first, too: a torn line before it stays one by itself.
        lines = [json.dumps(entry | {"sum": self._sum(entry)}, sort_keys=True) for entry in entries]
        if not lines:
            return
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            file.write(("\n" + "\n".join(lines) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_directory(self._path.parent)

    def _entry(self, line: bytes) -> dict[str, object] | None:
        """A line's entry, if it is as it was written: then its keys and types are right."""
        try:
            entry = json.loads(line)
            written = entry.pop("sum")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return None
        return entry if isinstance(entry, dict) and written == self._sum(entry) else None

    def _sum(self, entry: dict[str, object]) -> str:
        return sha256(self._run_id + json.dumps(entry, sort_keys=True).encode()).hexdigest()[:32]
