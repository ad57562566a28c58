"""The first stop of a run that goes on from made-up values, as a record in its directory: whoever stakes anything on it
wants to know which element it was, after a restart, too."""

from __future__ import annotations

from pathlib import Path

from roundlog.dispute.trace import Stop
from roundlog.storage import StorageError, read_record, write_record

_NAME = "stopped.json"


def note_stop(run_dir: Path, step: int, stop: Stop) -> None:
    """Keep it, unless an earlier one is on record. Raises OSError."""
    known = noted_stop(run_dir)
    if known is None or step < known[0]:
        write_record(run_dir / _NAME, {"step": step, "operator": stop.operator, "element": stop.element})


def noted_stop(run_dir: Path) -> tuple[int, Stop] | None:
    """(step, where in it) of the first stop; None if there is no record of one that can be read."""
    try:
        record = read_record(run_dir / _NAME)
        return int(record["step"]), Stop(int(record["operator"]), int(record["element"]))
    except (StorageError, KeyError, TypeError, ValueError):
        return None
