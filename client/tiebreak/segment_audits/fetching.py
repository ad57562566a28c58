"""Directories that strangers publish, fetched by the names of the files that they are for.

Each file is bounded by what the spec and the program say (`roundlog.training.run_files`), and nothing else comes to the
disk: a file that is no job's can be a module that Python imports, or a setting that a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from roundlog.program import Program
from roundlog.segment_audits import CHECKPOINTS_FILE, most_list_bytes
from roundlog.spec import TrainingSpec
from roundlog.training import (
    BEFORE_THE_PROGRAM,
    DATA,
    JOB_FILES,
    JobError,
    log_path,
    most_interval_bytes,
    most_job_bytes,
    read_program,
)

from tiebreak.store import ContentStore
from tiebreak.store.dag_reader import MAX_ENTRIES, Plan
from tiebreak.store.store_errors import MalformedContent, short

_MOST_NAMED = 5

Accept = Callable[[Program, TrainingSpec], None]
"""Looks at a job's program and spec before the other files are fetched; raises what ends the fetch."""


def fetch_named(
    store: ContentStore,
    cid: str,
    dest: Path,
    plan: Plan,
    *,
    warn: Callable[[str], None],
    max_bytes: int,
    within: float | None = None,
    unwanted: Collection[str] = (),
    claim: Callable[[int], None] = lambda need: None,
) -> None:
    """Fetches the files that a plan names of the directory `cid` into `dest`, which must not exist and appears whole.

    warn: is told, in one sentence, what was left out. max_bytes: of all files together. within: as of `ContentStore`.
    unwanted: names that are left out without a word. claim: is asked before each turn of the plan for the most bytes
    that its files take. Raises StoreError, OSError, and what the plan and `claim` raise."""

    def claiming(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        for most in plan(path, sizes):
            claim(sum(min(sizes[name], bound) for name, bound in most.items() if name in sizes))
            yield most

    others = store.get_directory(cid, dest, claiming, max_bytes=max_bytes, within=within)
    if left_out := [name for name in others if name not in unwanted]:
        names = ", ".join(short(repr(name), 60) for name in left_out[:_MOST_NAMED])
        more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
        warn(f"{cid} has {names}{more} besides what it is fetched for, left out")


def job_plan(accept: Accept = lambda program, spec: None, *, data: bool = True) -> Plan:
    """The six files of a job, the others only once the program and the spec are checked against each other, and
    accepted. data: whether its data are among them. The plan raises MalformedContent for a directory that is no job."""

    def plan(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        _require_job(sizes)
        yield BEFORE_THE_PROGRAM
        program, spec = _read(path)
        accept(program, spec)
        most = most_job_bytes(program, spec)
        yield {name: most[name] for name in most if data or name != DATA}

    return plan


def program_plan(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
    """The plan of a job's program and spec alone."""
    _require_job(sizes)
    return [BEFORE_THE_PROGRAM]


def log_plan(program: Program, spec: TrainingSpec) -> Plan:
    """The logs of a run's intervals, and the list of its published states, as far as they are there."""

    def plan(path: Path, sizes: Mapping[str, int]) -> Iterable[Mapping[str, int]]:
        # No directory has more, whatever the spec says.
        intervals = range(min(spec.intervals, MAX_ENTRIES))
        most = most_interval_bytes(program, spec)
        return [
            dict.fromkeys((log_path(path, interval).name for interval in intervals), most)
            | {CHECKPOINTS_FILE: most_list_bytes(spec)}
        ]

    return plan


def _require_job(names: Collection[str]) -> None:
    lacking = [name for name in JOB_FILES if name not in names]
    if lacking:
        raise MalformedContent(f"the directory is no job, since it has no {lacking[0]}: check the identifier.")


def _read(path: Path) -> tuple[Program, TrainingSpec]:
    try:
        return read_program(path)
    except JobError as error:
        why = str(error).replace(str(path), "the directory")
        raise MalformedContent(f"its program and spec cannot be followed ({why}): do not rely on that job.") from error
