"""The efficiency of an audit by workers: the time that one worker needs for all intervals, and the wall time of many.

    .venv/bin/python scripts/bench_segment_audits.py [--workers 2] [--rounds 3] [--intervals 32] [--steps 16]
                                                     [--json FILE]

A small GPT (2 million parameters) is trained once, with a checkpoint after every interval of so many steps. Each round
audits the run by one worker and by many, processes of one thread each, and takes the ratio within the round, because
machines are noisy:

    efficiency = seconds that one worker takes for all answers / workers / wall seconds of the audit by many

It is the share of the time in which the workers compute, divided by how much slower they are side by side than alone.
The wall time has everything in it: starting processes, importing PyTorch there, reading and hashing states. The machine
needs as many idle processors as there are workers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.examples.gpt import GPT, loss
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import SegmentAudit, Sharing
from roundlog.segment_audits.segment import Directories, listing_of_run, settled
from roundlog.segment_audits.workers import process_workers
from roundlog.training.job import Job, JobLimits
from roundlog.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Seconds that one round has measured."""

    alone_busy: float
    """Time of one worker for all its answers together."""
    alone_wall: float
    many_busy: float
    many_wall: float
    efficiency: float
    busy_share: float
    """Share of the wall time of many in which they compute: what is lost otherwise is this program's."""
    slowdown: float
    """Their time / that of one worker: what is lost by it is the processors', which share caches or are one core's."""


def task(intervals: int, steps: int) -> Task:
    """A small language model on random bytes. steps: of an interval."""
    torch.manual_seed(0)
    model = GPT(context=64, width=192, heads=6, layers=4, dropout=0.1)
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset={"tokens": torch.randint(0, 256, (64, 65))},
        batch_size=4,
        steps=intervals * steps,
        interval=steps,
        seed=1,
    )


def audit(room: Path, job: Job, name: str, workers: int) -> tuple[SegmentAudit, float]:
    """An audit of the run in `room`, and its wall time in seconds."""
    source = Directories(room / "job", JobLimits())
    sharing = Sharing(make=process_workers(threads=1), workers=workers, common_disk=True)
    look = settled(listing_of_run(room / "run", job.spec))
    started = time.perf_counter()
    found = audit_by_segments(job, look, source, room / name, sharing)
    wall = time.perf_counter() - started
    assert found.is_whole and found.lost == 0, "a run that is right, by workers that live"
    return found, wall


def measured(room: Path, job: Job, number: int, workers: int) -> Round:
    """One round: one worker and many, the order turned round in every other one."""
    order = [1, workers] if number % 2 == 0 else [workers, 1]
    found = {count: audit(room, job, f"audit {number} by {count}", count) for count in order}
    (alone, alone_wall), (many, many_wall) = found[1], found[workers]
    return Round(
        alone_busy=alone.busy_seconds,
        alone_wall=alone_wall,
        many_busy=many.busy_seconds,
        many_wall=many_wall,
        efficiency=alone.busy_seconds / workers / many_wall,
        busy_share=many.busy_seconds / workers / many_wall,
        slowdown=many.busy_seconds / alone.busy_seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--intervals", type=int, default=32)
    parser.add_argument("--steps", type=int, default=16, help="steps of an interval")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.workers < 2 or given.workers > (os.cpu_count() or 1):
        parser.error(f"--workers has to be from 2 to the number of processors, {os.cpu_count()}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-segment-audits-") as name:
        room = Path(name)
        job = Job.from_task(lambda: task(given.intervals, given.steps))
        job.write(room / "job")
        Trainer(job, room / "run").run()
        rounds = []
        for number in range(given.rounds):
            rounds.append(one := measured(room, job, number, given.workers))
            print(
                f"round {number + 1}: one worker {one.alone_busy:.1f} s busy in {one.alone_wall:.1f} s, "
                f"{given.workers} workers {one.many_busy:.1f} s busy in {one.many_wall:.1f} s, "
                f"efficiency {one.efficiency:.3f} = share of the time busy {one.busy_share:.3f} / "
                f"slower side by side {one.slowdown:.3f}",
                flush=True,
            )
    for name in ("efficiency", "busy_share", "slowdown"):
        middle = statistics.median(getattr(one, name) for one in rounds)
        print(f"{name} of {given.workers} workers on {given.intervals} intervals: {middle:.3f} (median)")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(one) for one in rounds], indent=1) + "\n")


if __name__ == "__main__":
    main()
