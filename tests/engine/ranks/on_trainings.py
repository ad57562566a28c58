"""What the ranks of the tests do with whole trainings and audits, and what one process comes to alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roundlog.commitments import state_root
from roundlog.execution import Batches, Executor
from roundlog.execution.batches import CPU, root_of
from roundlog.execution.microbatch.analysis import samples_of
from roundlog.execution.ranks import DisagreementError, Ranks, RanksExecutor, dismiss, rank_part, serve
from roundlog.log.payload import decode, encode
from roundlog.operators import StepInputs
from roundlog.rounding import Follower, Recorder
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, Validation
from roundlog.training.rank_runs import by_ranks, help_rank_0

from tests.engine.kept_jobs import kept_job
from tests.engine.ranks import random_optimizers


def run_jobs(
    ranks: Ranks | None, directories: list[str], logs: dict[str, list[str]] | None, micro_batches: int = 1
) -> dict[str, Any]:
    """The state roots after every step of the jobs in these directories and, without logs, the logs; with them, what is
    found wrong in them. By ranks, or by one process alone."""
    found = {}
    for name in directories:
        job = Job.read(Path(name))
        batches = Batches(job.dataset, job.spec)

        def inputs_of(
            step: int, states: Sequence[torch.Tensor], job: Job = job, batches: Batches = batches
        ) -> StepInputs:
            return job.inputs(batches, step, states, CPU if ranks is None else ranks.device)

        if ranks is not None and ranks.rank:
            serve(job.program, ranks, inputs_of, job.spec.f32_format, job.spec.interval)
            continue
        cut = min(micro_batches, samples_of(job.program))
        executor = (
            Executor(job.program, job.spec.f32_format)
            if ranks is None
            else RanksExecutor(job.program, ranks, job.spec.f32_format, job.spec.interval, cut)
        )
        recorder, follower = Recorder(4), Follower(4, 1.0, np.random.default_rng(1))
        states: Sequence[torch.Tensor] = [x.to(CPU if ranks is None else ranks.device) for x in job.initial.values()]
        roots, written = [], []
        for step in range(job.spec.steps):
            if logs is not None:
                follower.follow(step, decode(bytes.fromhex(logs[name][step]), None))
            states = executor.run(inputs_of(step, states), recorder if logs is None else follower).states
            roots.append(root_of(states).hex())
            assert state_root(states).hex() == roots[-1]
            written.append(encode(recorder.take()).hex())
        found[name] = [roots, written if logs is None else [asdict(one) for one in follower.findings]]
        if ranks is not None:
            dismiss(ranks)
    return found


class Broken:
    """The exchange of sums, on one rank that bends one bit of what is received, once."""

    def __init__(self, called: Any, at: int) -> None:
        self._called, self._left = called, at

    def __call__(self, *given: Any) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self._called(*given)
        self._left -= 1
        if self._left == 0:
            found[0].view(-1).view(torch.uint8)[0] ^= 1
        return found


def run_with_a_broken_rank(ranks: Ranks, broken: int, at: int) -> list[Any]:
    """[steps that were done, what this rank says] where one rank receives a bent number."""
    job = kept_job("logistic_sgd")
    batches = Batches(job.dataset, job.spec)
    if ranks.rank == broken:
        rank_part.sums_over = Broken(rank_part.sums_over, at)

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        return job.inputs(batches, step, states)

    done = 0
    try:
        if ranks.rank:
            serve(job.program, ranks, inputs_of, interval=2)
        else:
            executor = RanksExecutor(job.program, ranks, interval=2)
            states: Sequence[torch.Tensor] = list(job.initial.values())
            for step in range(6):
                states = executor.run(inputs_of(step, states), Recorder(4)).states
                done += 1
            dismiss(ranks)
    except DisagreementError as error:
        return [done, str(error)]
    return [done, ""]


def run_audit(ranks: Ranks, job_directory: str, run_directory: str, micro_batches: int) -> list[Any]:
    """[roots, validation losses] of an audit by ranks that goes on after a stop."""
    job = Job.read(Path(job_directory))
    if ranks.rank:
        help_rank_0(ranks, job)
        return []
    losses: list[float] = []
    validation = Validation(job, random_optimizers.task(5).dataset, 3, lambda step, loss: losses.append(loss))
    options = RunOptions(continue_after_stop=True, micro_batches=micro_batches, validation=validation)
    result = Auditor(job, Path(run_directory), by_ranks(options, ranks)).run()
    dismiss(ranks)
    return [[root.hex() for root in result.state_roots], losses]


def read_former_states(ranks: Ranks) -> list[str]:
    """What is said of a state that the ranks have left behind, read or executed from; and nothing of others."""
    job = kept_job("gpt")
    batches = Batches(job.dataset, job.spec)
    if ranks.rank:
        serve(job.program, ranks, lambda step, states: job.inputs(batches, step, states))
        return []
    executor = RanksExecutor(job.program, ranks)

    def after(step: int, states: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return executor.run(job.inputs(batches, step, states), Recorder(4)).states

    first = after(0, list(job.initial.values()))
    held, root = list(first), root_of(first)
    second = after(1, first)
    said = []
    for read in (lambda: list(first), lambda: root_of(first), lambda: after(1, first)):
        try:
            read()
        except RuntimeError as error:
            said.append(str(error))
    # From where they are, from what was read in time, and from there again.
    assert state_root(held) == root
    assert root_of(after(1, held)) == state_root(list(after(1, held)))
    assert state_root(list(after(2, after(1, held)))) != state_root(held)
    assert len(second) == len(first)
    dismiss(ranks)
    return said
