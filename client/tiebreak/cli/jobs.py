"""`tiebreak job ...`: jobs, from capture to the collected model."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import job_files, option_groups, output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage, sentence
from tiebreak.cli.job_capture import (
    JobCost,
    JobOrigin,
    JobRequest,
    job_facts,
    plain_job,
    show_checked_job,
    show_made_job,
)
from tiebreak.cli.job_files import read_job, require_publishable
from tiebreak.cli.job_terms import PostedTerms
from tiebreak.cli.network import ContractOptions, PartyOptions
from tiebreak.cli.option_groups import DEFAULT_POLL, Poll, examples, panel, takes_groups

if TYPE_CHECKING:
    from roundlog.training import Job

    from tiebreak.cli.role_process import RoleSetup

_CONTRACTS_BITS = 32

app = typer.Typer(no_args_is_help=True, help="Training jobs: make one, post it, look at it, collect its model.")


class RoundingPolicy(enum.StrEnum):
    """Names of a spec's `rounding_policy`."""

    CERTIFIED = "certified"
    THRESHOLD = "threshold"


class ProductArithmetic(enum.StrEnum):
    """Names of arithmetics of products (`roundlog.definitions.tensor_core`)."""

    EXACT = "exact"
    HOPPER = "hopper"
    AMPERE = "ampere"
    VOLTA = "volta"


_captured_option = panel("The job")


@app.command(
    epilog=examples(
        "tiebreak job create my_task.py:task --out job",
        "tiebreak job create my_task.py:task --check",
        "tiebreak job create digits --set steps=20 --out job",
        "tiebreak job create gpt2 --data book.txt --set tokenizer=tokenizer.json --out job",
        "tiebreak job create job --reward 0.5ether --referee 0x...",
    )
)
@takes_groups
def create(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="my_task.py:function that returns a roundlog.Task; an example (digits, gpt, gpt2, logistic, resnet50, "
            "vgg11); or the directory of a job to be posted.",
        ),
    ],
    out: Annotated[
        Path | None,
        _captured_option("--out", help="Directory for the job's files; made, or empty."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        _captured_option("--set", metavar="NAME=VALUE", help="A parameter of the function; a wrong NAME gets a list."),
    ] = None,
    data: Annotated[
        Path | None,
        _captured_option(
            "--data",
            metavar="PATH",
            help="A text for gpt and gpt2, a folder of CIFAR-10's binary files for resnet50 and vgg11 (default: "
            "generated data, but for gpt).",
        ),
    ] = None,
    policy: Annotated[
        RoundingPolicy | None,
        _captured_option(
            metavar="NAME",
            help="Rounding: certified (default), to the one right answer, or threshold, by the trainer's log, as OVT "
            "has it.",
            show_default=False,
        ),
    ] = None,
    bits: Annotated[
        int | None,
        _captured_option(
            min=23, max=32, metavar="N", help="Bits of every result, b_r of OVT (default: 32).", show_default=False
        ),
    ] = None,
    arithmetic: Annotated[
        ProductArithmetic | None,
        _captured_option(
            metavar="NAME",
            help="Products of BF16 and FP16 matrices: exact (default), rounded once, or as the tensor cores of a "
            "family of GPUs add them (docs/arithmetic.md).",
            show_default=False,
        ),
    ] = None,
    torch_random: Annotated[
        bool,
        _captured_option(
            "--torch-random",
            help="Let the function have PyTorch's own random numbers and kernels, whose bits are those of this "
            "machine; without it the same function gives the same job everywhere.",
        ),
    ] = False,
    check: Annotated[
        bool,
        _captured_option(
            "--check",
            help="Make no job: say whether the task is captured, and what its job would cost, without the comparison "
            "with its own steps, which takes most of the time. Exit code 3 if it is refused.",
        ),
    ] = False,
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    *,
    posted: PostedTerms,
    party: PartyOptions,
    json: option_groups.Json = False,
) -> None:
    """Capture a training task as a job: data that others can run without running your code. With --reward, post it."""
    from tiebreak.cli.role_process import RoleSetup
    from tiebreak.roles.policy import Policy

    reward = posted.reward
    if check and reward is not None:
        raise WrongUsage("--check makes no job that could be posted: leave --reward away, or --check.")
    if reward is not None and policy == RoundingPolicy.THRESHOLD:
        raise CommandError(
            f"under {policy} the trainer's log decides, which no contract can judge: leave --reward away."
        )
    if reward is not None and bits not in (None, _CONTRACTS_BITS):
        raise CommandError(
            f"the contract does not round exact operators to {bits} bits: leave --bits away, or --reward."
        )
    posted.check()
    setup = RoleSetup(party, max_memory, Policy())
    if reward is not None:
        setup.contract()  # what cannot be posted is noticed before the work of capturing it
    try:
        job, where, made = _capture(
            source, out, setting or [], data, policy, bits, arithmetic, max_memory, torch_random, check, json
        )
    except ValueError as error:
        from roundlog.capture import is_refusal

        if not (check and is_refusal(error)):
            raise
        if json:
            output.show_json({"accepted": False, "is_job": False, "refusal": sentence(error)})
        else:
            output.show_line(f"Refused: {source} becomes no job: {sentence(error)}")
        raise typer.Exit(ANSWER_IS_NO) from error
    plain = (
        show_checked_job(source, job, max_memory, quiet=json) if check else show_made_job(job, where, made, quiet=json)
    )
    if reward is not None:
        plain |= _post(posted, reward, setup, where, quiet=json)
    if json:
        output.show_json(plain)


def _post(posted: PostedTerms, reward: int, setup: RoleSetup, where: Path, *, quiet: bool) -> dict[str, object]:
    """Posts the job of a directory; its number, and the contract that it is posted on."""
    from tiebreak.cli.notice_printer import Teller
    from tiebreak.roles.customer_role import post_job
    from tiebreak.roles.notices import ignore

    judge, _ = posted.addresses()
    assert judge is not None, "PostedTerms.check asks for a referee"
    with Teller(as_json=False) as teller:
        context = setup.context("customer", ignore if quiet else teller.tell)
        with contextlib.closing(context.sender):
            number = post_job(context, where, posted.record(reward), judge)
    if not quiet:
        output.show_line(f"This is job {number}.")
    return {"job": number, "contract": context.contract.address}


def _capture(
    source: str,
    out: Path | None,
    settings: list[str],
    data: Path | None,
    policy: RoundingPolicy | None,
    bits: int | None,
    arithmetic: ProductArithmetic | None,
    max_memory: int,
    torch_random: bool,
    check: bool,
    quiet: bool,
) -> tuple[Job, Path, JobOrigin | None]:
    """The job of a task, written to `out` unless it is only checked, and how it was made; or the job that is in a
    directory already."""
    options = (data, policy, bits, arithmetic)
    if Path(source).is_dir():
        if out is not None or settings or torch_random or check or any(option is not None for option in options):
            raise CommandError(
                f"{source} is a job already: leave --out, --set, --data, --policy, --bits, --arithmetic, "
                "--torch-random and --check away."
            )
        require_publishable(Path(source))
        return read_job(Path(source), max_memory), Path(source), None
    if out is None and not check:
        raise CommandError("the job needs a directory for its files: name one with --out.")
    from tiebreak.cli.task_source import load_task

    given = settings if data is None else [*settings, f"data={data}"]
    request = JobRequest(
        source,
        out,
        max_memory,
        policy=policy,
        bits=bits,
        arithmetic=arithmetic,
        quiet=quiet,
        torch_random=torch_random,
    )
    job, made = request.make(lambda: load_task(source, given), compare=not check)
    return job, out or Path(), made


@app.command()
@takes_groups
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Directory of a job, or the number of a posted one.")],
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    *,
    chain: ContractOptions,
    json: option_groups.Json = False,
) -> None:
    """Check a job and show what it asks for."""
    if not Path(job).exists() and job.isascii() and job.isdigit():
        from tiebreak.cli.views import show_posted

        show_posted(chain.open_game(), int(job), with_games=False, as_json=json)
        return
    found = read_job(Path(job), max_memory)
    cost = JobCost.of(found, max_memory)
    if json:
        output.show_json(plain_job(found) | dataclasses.asdict(cost))
    else:
        output.show_facts(f"Job in {job}", job_facts(found) | cost.facts(found))


@app.command("list")
@takes_groups
def list_jobs(
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only those: open, claimed, final, rejected or expired.")
    ] = None,
    *,
    chain: ContractOptions,
    json: option_groups.Json = False,
) -> None:
    """List the posted jobs."""
    from tiebreak.cli.views import show_list
    from tiebreak.contract.enums import JobStatus

    wanted = None
    if status is not None:
        names = [one.name.lower() for one in JobStatus if one]
        if status.lower() not in names:
            raise typer.BadParameter(f"{status!r} is none of {', '.join(names)}.", param_hint="--status")
        wanted = JobStatus[status.upper()]
    show_list(chain.open_game(), wanted, json)


job_files.register(app)


@app.command(epilog=examples("tiebreak job collect 1 --model model.safetensors"))
@takes_groups
def collect(
    job: Annotated[int, typer.Argument(min=1, metavar="JOB", help="Number of a job of yours.")],
    model: Annotated[Path, typer.Option(metavar="FILE", help="File for the trained state (safetensors).")],
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    poll: Poll = DEFAULT_POLL,
    *,
    party: PartyOptions,
    json: option_groups.Json = False,
) -> None:
    """Wait for the end of a job; then fetch its model, or the refund."""
    from tiebreak.cli.role_process import RoleSetup, play
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.job_role import Role

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.customer_role import CustomerRole

        return CustomerRole(context, job, model=model)

    play("customer", RoleSetup(party, max_memory), make, poll, json)
