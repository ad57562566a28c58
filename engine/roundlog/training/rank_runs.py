"""Runs by ranks: rank 0 trains or audits as a process alone does, and the others help it with every step.

Only rank 0 has a run directory. A state that it resumes from is sent to the others with the first step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from roundlog.arithmetic import MachineError, check_machine, undisturbed
from roundlog.execution import Batches
from roundlog.execution.ranks import LaunchError, Ranks, RanksExecutor, serve
from roundlog.kernels.threads import own_threads
from roundlog.operators import StepInputs
from roundlog.training.job import Job
from roundlog.training.options import Execution, RunOptions
from roundlog.training.run import RunError, usable


class RankMismatchError(RuntimeError):
    """Ranks were started with different jobs or versions, or one of them cannot compute. The message names it."""


def can_share(job: Job) -> bool:
    """Whether ranks can execute a job at all."""
    return not job.spec.log_decides


def agree(ranks: Ranks, job: Job, device: str = "cpu") -> None:
    """Returns on every rank if all of them have the same job and software, and compute as IEEE 754 says, each on its
    device (another one, if it likes).

    All ranks call it. Raises RankMismatchError, on every rank the same, and LaunchError for a job that ranks cannot
    execute."""
    if not can_share(job):
        raise LaunchError(
            f"this job rounds by the policy `{job.spec.policy_name}`, under which a sum depends on how it is cut: run "
            "it in one process, without ranks"
        )
    _agree(ranks, device, {"job": job.spec.run_id.hex()})


def agree_without_job(ranks: Ranks, device: str = "cpu") -> None:
    """Returns on every rank if all of them have the same software, and compute as IEEE 754 says, each on its device.

    All ranks call it. Raises RankMismatchError, on every rank the same."""
    _agree(ranks, device, {})


def _agree(ranks: Ranks, device: str, own: Mapping[str, str]) -> None:
    mine = {**own, **_identity(device)}
    said = []
    for rank, one in enumerate(ranks.gather_bytes(json.dumps(mine).encode())):
        try:
            told = json.loads(one)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or set(told) != set(mine) or not all(isinstance(x, str) for x in told.values()):
            raise ranks.membership.foreign(rank, "no facts about itself")
        said.append(told)
    problem = difference(said, ranks.membership.name)
    if problem is not None:
        raise RankMismatchError(problem)
    ranks.use(torch.device(device))


def _identity(device: str) -> dict[str, str]:
    wrong = ""
    try:
        # As every step is executed: what can be put right is.
        with own_threads(), undisturbed("the check of this machine"):
            check_machine(usable(device))
    except (MachineError, RunError) as error:
        wrong = str(error)
    return {
        "version of tiebreak": version("tiebreak"),
        # PyTorch for CUDA and for the CPU alone are builds of one version.
        "version of PyTorch": str(torch.__version__).partition("+")[0],
        "machine": wrong,
    }


def difference(said: Sequence[Mapping[str, str]], name: Callable[[int], str]) -> str | None:
    """The first rank that cannot compute, or differs from rank 0, as a sentence; None if there is none. said: what
    every rank says of itself. name: of a rank, for people."""
    for rank, one in enumerate(said):
        if one["machine"]:
            return f"{name(rank)} cannot take part: {one['machine']}"
        for key, value in one.items():
            first = said[0][key]
            if value != first:
                remedy = "give every rank the same job" if key == "job" else "install the same version on every machine"
                return f"{name(rank)} has another {key} ({value[:64]}) than rank 0 ({first[:64]}): {remedy}"
    return None


def by_ranks(options: RunOptions, ranks: Ranks) -> RunOptions:
    """The options of rank 0's run, by which every step is executed by all ranks, on the device that this one has agreed
    on."""

    def execution(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(executor_of(job, ranks, micro_batches, run_dir), Batches(job.dataset, job.spec))

    return replace(options, device=ranks.device, execution=execution)


def executor_of(job: Job, ranks: Ranks, micro_batches: int, run_dir: Path) -> RanksExecutor:
    """The executor of a job by all ranks, on rank 0. run_dir: directory for slices that micro-batches keep on disk.
    Raises as `RanksExecutor`."""
    return RanksExecutor(job.program, ranks, job.spec.rounding_bits, job.spec.interval, micro_batches, run_dir)


def help_rank_0(ranks: Ranks, job: Job) -> int:
    """Executes, on another rank, every step of a job that rank 0 executes, until it has no more. Returns how many had a
    result. Raises LostRankError, DisagreementError, ProgramError if a batch has fewer samples than there are ranks,
    MachineError."""
    batches = Batches(job.dataset, job.spec)

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        return job.inputs(batches, step, states, ranks.device)

    return serve(job.program, ranks, inputs_of, job.spec.rounding_bits, job.spec.interval)
