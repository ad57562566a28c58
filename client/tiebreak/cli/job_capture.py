"""The making of a job by a command, from the task to the files, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.generation import ProductArithmetic
from tiebreak.cli.option_groups import option
from tiebreak.cli.output import size

if TYPE_CHECKING:
    from roundlog.capture import MakeTask
    from roundlog.training import Job, Sameness


@dataclasses.dataclass(frozen=True)
class JobOrigin:
    """Account of the making of a job."""

    sameness: Sameness
    unportable: dict[str, str] | None
    """Operators by which other machines come to other numbers -> where they were called; None with --torch-random."""


class RoundingPolicy(enum.StrEnum):
    """Names of a spec's `rounding_policy`."""

    CERTIFIED = "certified"
    THRESHOLD = "threshold"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """Options of the making of a job."""

    panel: ClassVar = "The job"
    out: Path | None = option("Directory for the job's files; made, or empty.")
    setting: list[str] | None = option(
        "A parameter of the function; a wrong NAME gets a list.", metavar="NAME=VALUE", name="--set"
    )
    data: Path | None = option(
        "A text for gpt and gpt2, whose bytes are tokens (default for gpt2: random tokens).",
        metavar="PATH",
    )
    policy: RoundingPolicy | None = option(
        "Rounding: certified (default), to the one right answer, or threshold, by the trainer's log, as OVT has it.",
        metavar="NAME",
    )
    bits: int | None = option("Bits of every result, b_r of OVT (default: 32).", metavar="N", min=23, max=32)
    arithmetic: ProductArithmetic | None = option(
        "Products of BF16 and FP16 matrices: exact (default), rounded once, or as the tensor cores of a family of GPUs "
        "add them (docs/arithmetic.md).",
        metavar="NAME",
    )
    torch_random: bool = option(
        "Let the function have PyTorch's own random numbers and kernels, whose bits are those of this machine; without "
        "it the same function gives the same job everywhere.",
        False,
    )
    check: bool = option(
        "Make no job: say whether the task is captured, and what its job would cost, without the comparison with its "
        "own steps, which takes most of the time. Exit code 3 if it is refused.",
        False,
    )

    def make(
        self, source: str, loaded: Callable[[], MakeTask], max_memory: int, *, quiet: bool
    ) -> tuple[Job, JobOrigin | None]:
        """Make the job, write it to `out`, and return it with the account of its making. With `check` the job is
        captured alone: not compared with the task's own steps, not written, and its account is None. source: name of
        what it is made of, for messages. loaded: gives the function that makes the task; both are called where random
        numbers are portable. max_memory: most bytes that a step may take. quiet: whether to print nothing but progress.
        Raises CommandError, CaptureError, DefectError, and what `loaded` does."""
        from roundlog.capture import portable, torchs_own
        from roundlog.execution.microbatch import samples_of
        from roundlog.spec import POLICY_CERTIFIED, POLICY_NAMES
        from roundlog.training import JOB_STAGES, Job, run_bytes

        out, compare = self.out, not self.check
        found: list[Sameness] = []
        if out is None and compare:
            raise CommandError("the job needs a directory for its files: name one with --out.")
        if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(f"{out} is not an empty directory: choose another place for the job.")
        with torchs_own() if self.torch_random else contextlib.nullcontext(), portable() as numbers:
            make_task = loaded()
            with output.progress("Making a job", stages=len(JOB_STAGES) - (not compare)) as bar:

                def planned(job: Job) -> None:
                    least = run_bytes(job.program, job.spec, samples_of(job.program))
                    if least > max_memory:
                        raise CommandError(
                            f"{source} needs {least} bytes of memory, however its batches are cut, more than the "
                            f"{max_memory} allowed: raise --max-memory, or make state or rows smaller."
                        )
                    if compare and not quiet:
                        cost = JobCost.of(job, max_memory).facts(job)
                        bar.show_facts(f"{source} is captured, and is compared with its own steps now", cost)

                job = Job.from_task(
                    make_task,
                    policy=POLICY_CERTIFIED if self.policy is None else POLICY_NAMES.index(self.policy),
                    bits=self.bits or 32,
                    arithmetic=self.arithmetic or ProductArithmetic.EXACT,
                    report=found.append,
                    tell=bar.tell,
                    planned=planned,
                    compare=compare,
                )
        if not compare or out is None:
            return job, None
        job.write(out)
        return job, JobOrigin(found[0], None if numbers is None else dict(numbers.unportable))


@dataclasses.dataclass(frozen=True, slots=True)
class JobCost:
    """Resources that a run of a job, and a dispute about it, take."""

    run_memory_bytes: int
    """Most memory of a run that computes whole batches."""
    micro_batches: int
    """Micro-batches in which a run fits the memory allowed, or as many as there are samples."""
    least_memory_bytes: int
    """Most memory of a run in these."""
    step_seconds: float
    """Reckoned time of a step by one thread of this machine, for the trainer and for an auditor."""
    checkpoint_bytes: int
    """Disk of all checkpoints of a run."""
    dispute_moves: int
    """Most moves of one side in a game."""

    @staticmethod
    def of(job: Job, max_memory: int) -> JobCost:
        """Reckon it, in about a second."""
        from roundlog.execution.microbatch import samples_of
        from roundlog.training import estimate_step_seconds, run_bytes

        from tiebreak.roles.policy import largest_trees, most_moves

        spec, program = job.spec, job.program
        memory, count = run_bytes(program, spec), 1
        least = memory
        while least > max_memory and count < samples_of(program):
            count = min(2 * count, samples_of(program))
            least = run_bytes(program, spec, count)
        moved, whole = (sum(x.nbytes for x in kinds.values()) for kinds in (program.moved_states, program.states))
        disk = (spec.intervals - 1) * moved + whole
        seconds, moves = estimate_step_seconds(program), most_moves(spec, *largest_trees(program))
        return JobCost(memory, count, least, seconds, disk, moves)

    def facts(self, job: Job) -> dict[str, str]:
        """It as rows for a person."""
        from tiebreak.transactions.signer import DISPUTE_GAS

        memory = f"memory {size(self.run_memory_bytes)} at most beside Python's and PyTorch's own"
        if self.micro_batches > 1:
            memory += f", or {size(self.least_memory_bytes)} with --micro-batches {self.micro_batches}"
        seconds = "less than 0.1" if self.step_seconds < 0.1 else f"about {self.step_seconds:.2g}"
        moves = f"{self.dispute_moves} moves of each side at most; all are reckoned with {DISPUTE_GAS:,} gas"
        judged = not job.spec.log_decides and job.spec.rounding_bits == 32
        return {
            "a step": f"{seconds} s of one thread here, for the trainer and for an auditor",
            "a run": f"{memory}; disk {size(self.checkpoint_bytes)} of checkpoints, and the rounding log",
            "a dispute": moves if judged else "none: no contract rounds as this job does",
        }


def show_checked_job(source: str, job: Job, max_memory: int, *, quiet: bool) -> dict[str, object]:
    """Print what the job of a task would be and cost, if not quiet; return it for programs."""
    from tiebreak.transactions.signer import DISPUTE_GAS

    cost = JobCost.of(job, max_memory)
    if not quiet:
        facts = {name: value for name, value in job_facts(job).items() if not isinstance(value, bytes)}
        output.show_facts(f"No job yet: {source} would be", facts | cost.facts(job))
        output.show_line(
            "It is captured. Nothing is written: without --check the job is made, once the captured step was compared "
            "with yours, which may refuse it."
        )
    return plain_job(job) | dataclasses.asdict(cost) | {"dispute_gas": DISPUTE_GAS, "accepted": True, "is_job": False}


def show_made_job(job: Job, where: Path, made: JobOrigin | None, *, quiet: bool) -> dict[str, object]:
    """Print a job, if not quiet, and the warning about its making; return both for programs. made: None for a job that
    was there."""
    plain, facts = {"directory": where} | plain_job(job), job_facts(job)
    if made is None:
        if not quiet:
            output.show_facts(f"Job in {where}", facts)
        return plain
    random = "PyTorch's own (--torch-random): the same function gives another job on another machine"
    if made.unportable is not None:
        random = "portable" + (": the same function gives the same job on every machine" if not made.unportable else "")
    if not quiet:
        output.show_facts(f"Job in {where}", facts | {"random numbers": random})
        output.show_line(f"{str(made.sameness)[0].upper()}{str(made.sameness)[1:]}.")
    if made.unportable:
        named = ", ".join(f"{name}{place}" for name, place in made.unportable.items())
        output.warn(
            f"the initial state depends on this machine, on which PyTorch itself has computed {named}: it travels with "
            "the job as data, and your function may make another job on another machine"
        )
    if made.sameness.warning:
        output.warn(f"warning: {made.sameness.warning}")
    kind = "torch" if made.unportable is None else "portable"
    return plain | {"sameness": dataclasses.asdict(made.sameness), "random": kind, "unportable": made.unportable}


def plain_job(job: Job) -> dict[str, object]:
    from roundlog.training import step_bytes

    return {
        "spec": dataclasses.asdict(job.spec),
        "arithmetic": job.arithmetic,
        "run_id": job.spec.run_id,
        "states": {name: str(kind) for name, kind in job.program.states.items()},
        "data": {name: str(kind) for name, kind in job.program.data.items()},
        "state_bytes": sum(kind.nbytes for kind in job.program.states.values()),
        "data_bytes": sum(tensor.nbytes for tensor in job.dataset.values()),
        "step_bytes": step_bytes(job.program, job.spec),
        "learning_rates": {
            name: {"first": float(rates[0]), "highest": float(rates.max()), "last": float(rates[-1])}
            for name, rates in job.rates().items()
        },
    }


def _rate(rates: list[float]) -> str:
    """First, highest and last learning rate: a scheduler meant for epochs takes its step after every step here."""
    first, highest, last = (f"{rate:.4g}" for rate in (rates[0], max(rates), rates[-1]))
    if min(rates) == max(rates):
        return f"{first} at every step"
    return f"{first} at first, {highest} at most, {last} at last; a scheduler steps once a step"


def job_facts(job: Job) -> dict[str, object]:
    spec = job.spec
    states = job.program.states
    return {
        "steps": f"{spec.steps}, a checkpoint every {spec.interval}",
        "data": f"{spec.data_rows} rows ({', '.join(job.dataset)}), {spec.batch_size} a step, in the seed's own order",
        **{f"rate {name}": _rate(table.tolist()) for name, table in job.rates().items()},
        "rounding": f"{spec.policy_name}, {spec.rounding_bits} bits",
        "products": job.arithmetic,
        "operators": f"{spec.operator_count} a step",
        "state": f"{spec.state_count} tensors, {size(sum(kind.nbytes for kind in states.values()))}",
        "program root": spec.program_root,
        "initial state root": spec.initial_state_root,
        "data root": spec.data_root,
        "run id": spec.run_id,
    }
