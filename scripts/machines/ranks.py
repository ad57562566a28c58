"""The processes that are ranks: every job of a plan, trained or audited by all of them together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from roundlog.execution.ranks import Launch, Ranks, dismiss, joined
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.rank_runs import agree, by_ranks, help_rank_0
from roundlog.training.trainer import Trainer

from machines.profiles import Machine

_PATIENCE = 3 * 3600
"""Seconds for all work of one number of ranks."""


@dataclass(frozen=True, slots=True)
class Work:
    """One run of a job: a training, or an audit by a log, all of whose decisions are verified."""

    job: Path
    run: Path
    log: Path | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one run."""

    root: str
    findings: int
    """Entries of the log that are wrong or missing, and logs that could not be read."""


def by(size: int, works: Sequence[Work], room: Path) -> list[Found]:
    """All of this work, by so many fresh processes of one thread each, or by this one alone. Raises RuntimeError if one
    of them fails."""
    if size == 1:
        return [_done(work, None) for work in works]
    room.mkdir(parents=True, exist_ok=True)
    plan = room / "plan.json"
    plan.write_text(json.dumps([[str(one.job), str(one.run), str(one.log) if one.log else None] for one in works]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = Machine(1, {}).environment() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)]
    shared |= {"WORLD_SIZE": str(size), "PYTHONPATH": os.pathsep.join(path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "machines.ranks", str(plan)],
            env=shared | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=_PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, (process, (_, error)) in enumerate(zip(processes, said, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} of {size} failed:\n{error}")
    return [Found(**one) for one in json.loads(said[0][0])]


def be_a_rank(plan: Path) -> None:
    """Does the work of a plan with other ranks; rank 0 prints what it has found as JSON."""
    torch.set_num_threads(1)
    works = [Work(Path(job), Path(run), Path(log) if log else None) for job, run, log in json.loads(plan.read_text())]
    launch = Launch.of(os.environ)
    assert launch is not None, "started by `by`"
    with joined(launch) as ranks:
        if ranks.rank == 0:
            print(json.dumps([asdict(_done(work, ranks)) for work in works]))
            return
        for work in works:
            job = Job.read(work.job)
            agree(ranks, job)
            help_rank_0(ranks, job)


def _done(work: Work, ranks: Ranks | None) -> Found:
    """The result of rank 0, or of one process alone."""
    job = Job.read(work.job)
    options = RunOptions(keep_every=job.spec.intervals)
    if ranks is not None:
        agree(ranks, job)
        options = by_ranks(options, ranks)
    if work.log is None:
        found = Found(Trainer(job, work.run, options).run().checkpoint_root.hex(), 0)
    else:
        audited = Auditor(job, work.run, options, log_dir=work.log).run()
        found = Found(audited.checkpoint_root.hex(), len(audited.findings) + len(audited.unreadable))
    if ranks is not None:
        dismiss(ranks)
    return found


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))
