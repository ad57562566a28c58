"""What the ranks of the tests do on devices of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from roundlog.execution.ranks import LostRankError, Ranks, dismiss
from roundlog.execution.ranks.wire import Nccl
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.rank_runs import RankMismatchError, agree, by_ranks, help_rank_0
from roundlog.training.trainer import Trainer

from tests.engine.ranks.rank_processes import named
from tests.engine.running import foreign_device


@contextmanager
def _usable(name: str) -> Iterator[None]:
    """A block in which this process has a device of this name."""
    if name != foreign_device.NAME:
        yield
        return
    foreign_device.install()
    with foreign_device.foreign():
        yield


def run(ranks: Ranks, devices: list[str], function: str, *arguments: Any) -> Any:
    """What a function `module:name` of these tests returns, with every rank on its own device."""
    with _usable(devices[ranks.rank]):
        ranks.use(torch.device(devices[ranks.rank]))
        return named(function)(ranks, *arguments)


def run_looked_at(ranks: Ranks, function: str, *arguments: Any) -> Any:
    """What a function of these tests returns where everything is sent as nccl would, by gloo."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    wire = ranks._between_cpus = Nccl(group, ranks.membership, torch.device("cpu"))
    found = named(function)(ranks, *arguments)
    wire.close()
    return found


def train_and_audit(ranks: Ranks, devices: list[str], job_directory: str, place: str) -> dict[str, Any]:
    """The roots of a training by ranks, and of an audit in micro-batches that follows its log; what the audit finds."""
    job, room, device = Job.read(Path(job_directory)), Path(place), devices[ranks.rank]
    with _usable(device):
        agree(ranks, job, device)
        if ranks.rank:
            help_rank_0(ranks, job)
            help_rank_0(ranks, job)
            return {}
        trained = Trainer(job, room / "trained", by_ranks(RunOptions(), ranks)).run()
        dismiss(ranks)
        options = by_ranks(RunOptions(micro_batches=2 * ranks.size), ranks)
        audited = Auditor(job, room / "audited", options, log_dir=trained.log_dir, verify_log=1.0).run()
        dismiss(ranks)
    return {
        "roots": [one.checkpoint_root.hex() for one in (trained, audited)],
        "found": [*map(str, audited.findings), *map(str, audited.unreadable)],
        "log": str(trained.log_dir),
    }


def train_until_one_is_lost(ranks: Ranks, devices: list[str], job_directory: str, place: str) -> str:
    """What this rank says where one of the others is killed in the midst of a training."""
    job, device = Job.read(Path(job_directory)), devices[ranks.rank]

    def here(event: StepEvent) -> None:
        if event.step == 2:
            print("here", flush=True)

    try:
        with _usable(device):
            agree(ranks, job, device)
            if ranks.rank:
                help_rank_0(ranks, job)
            else:
                Trainer(job, Path(place), by_ranks(RunOptions(on_step=here), ranks)).run()
                dismiss(ranks)
    except LostRankError as error:
        return str(error)
    return ""


def wait_for_what_never_ends(ranks: Ranks, starts: bool) -> str:
    """What this rank says where a collective hangs on its device, or already in the call that starts it, and one of the
    others is killed."""

    def hangs() -> list[_NeverEnds]:
        if not starts:
            time.sleep(3600)
        return [_NeverEnds()]

    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    print("here", flush=True)
    try:
        Nccl(group, ranks.membership, torch.device("cpu"))._run(hangs)
    except LostRankError as error:
        return str(error)
    return ""


class _NeverEnds:
    """A collective whose event never comes."""

    def is_completed(self) -> bool:
        return False


def choose(ranks: Ranks, job_directory: str, devices: list[str]) -> list[str]:
    """[what this rank says of the devices that the ranks have chosen, this rank's device afterwards]."""
    try:
        agree(ranks, Job.read(Path(job_directory)), devices[ranks.rank])
    except RankMismatchError as error:
        return [str(error), str(ranks.device)]
    return ["", str(ranks.device)]
