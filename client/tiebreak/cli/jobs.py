"""`tiebreak job ...`: jobs, from capture to the collected model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tiebreak.cli import output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage, sentence
from tiebreak.cli.generation import ChoiceOptions
from tiebreak.cli.job_capture import (
    CaptureOptions,
    JobCost,
    JobOrigin,
    RoundingPolicy,
    job_facts,
    plain_job,
    show_checked_job,
    show_made_job,
)
from tiebreak.cli.job_files import read_job, require_publishable
from tiebreak.cli.job_terms import PostedTerms
from tiebreak.cli.job_texts import TextJobOptions
from tiebreak.cli.network import ContractOptions, PartyOptions
from tiebreak.cli.option_groups import JOB, JSON, MEMORY, POLL, argument, command, option
from tiebreak.cli.task_source import load_task

if TYPE_CHECKING:
    from roundlog.training import Job

    from tiebreak.cli.role_process import RoleSetup

_CONTRACTS_BITS = 32


@command(
    "job create",
    "tiebreak job create my_task.py:task --out job",
    "tiebreak job create my_task.py:task --check",
    "tiebreak job create digits --set steps=20 --out job",
    "tiebreak job create gpt2 --data book.txt --out job",
    'tiebreak job create --model SmolLM2-135M-Instruct --prompt "Who was Euler?" --out job',
    "tiebreak job create --model tiny --prompt One --prompt Two --temperature 0.8 --out job",
    "tiebreak job create job --reward 0.5ether --referee 0x...",
)
def create(
    source: str | None = argument(
        "TASK",
        "my_task.py:function that returns a roundlog.Task; an example (digits, gpt, gpt2, logistic, resnet50, vgg11); "
        "or the directory of a job to be posted.",
        None,
    ),
    *,
    captured: CaptureOptions,
    text: TextJobOptions,
    choice: ChoiceOptions,
    max_memory: int = MEMORY,
    posted: PostedTerms,
    party: PartyOptions,
    json: bool = JSON,
) -> None:
    """Capture a training task as a job: data that others can run without running your code. With --reward, post it.

    With --model and --prompt the job generates text: a step reads or writes one token behind every prompt. `train`
    generates, and `job text` shows the texts.
    """
    from tiebreak.cli.role_process import RoleSetup

    reward, check, policy, bits = posted.reward, captured.check, captured.policy, captured.bits
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
    name = source or str(text.model)
    setup = RoleSetup(party, max_memory)
    if reward is not None:
        setup.contract()  # what cannot be posted is noticed before the work of capturing it
    try:
        job, where, made = _capture(source, captured, text, choice, max_memory, json)
    except ValueError as error:
        from roundlog.capture import is_refusal

        if not (check and is_refusal(error)):
            raise
        if json:
            output.show_json({"accepted": False, "is_job": False, "refusal": sentence(error)})
        else:
            output.show_line(f"Refused: {name} becomes no job: {sentence(error)}")
        raise typer.Exit(ANSWER_IS_NO) from error
    plain = (
        show_checked_job(name, job, max_memory, quiet=json) if check else show_made_job(job, where, made, quiet=json)
    )
    if reward is not None:
        plain |= _post(posted, reward, setup, where, quiet=json)
    if json:
        output.show_json(plain)


def _post(posted: PostedTerms, reward: int, setup: RoleSetup, where: Path, *, quiet: bool) -> dict[str, object]:
    """Post the job of a directory. Return its number, and the contract that it is posted on."""
    from tiebreak.cli.role_process import NoticePrinter
    from tiebreak.roles.customer_role import post_job

    judge, _ = posted.addresses()
    assert judge is not None, "PostedTerms.check asks for a referee"
    with contextlib.closing(NoticePrinter(as_json=False)) as printer:
        context = setup.context("customer", (lambda notice: None) if quiet else printer.show)
        with contextlib.closing(context.sender):
            number = post_job(context, where, posted.record(reward), judge)
    if not quiet:
        output.show_line(f"This is job {number}.")
    return {"job": number, "contract": context.contract.address}


def _capture(
    source: str | None,
    captured: CaptureOptions,
    text: TextJobOptions,
    choice: ChoiceOptions,
    max_memory: int,
    quiet: bool,
) -> tuple[Job, Path, JobOrigin | None]:
    """Return the job, written to `out` unless it is only checked; its directory; and how it was made. Or the job that
    is in a directory already."""
    if text.model is None and (text != TextJobOptions() or choice != ChoiceOptions()):
        raise WrongUsage("prompts and the choice of tokens are about a text: name the model that writes it, --model.")
    if (source is None) == (text.model is None):
        raise WrongUsage("a job is made of one thing: give a TASK, or a --model and its --prompt.")
    if source is not None and Path(source).is_dir():
        if captured != CaptureOptions():
            raise CommandError(
                f"{source} is a job already: leave --out, --set, --data, --policy, --bits, --arithmetic, "
                "--torch-random and --check away."
            )
        require_publishable(Path(source))
        return read_job(Path(source), max_memory), Path(source), None
    given = [*(captured.setting or []), *([] if captured.data is None else [f"data={captured.data}"])]
    if source is None and (given or captured.torch_random):
        raise WrongUsage("a text is made by its model alone: leave --set, --data and --torch-random away.")
    load = text.loader(choice) if source is None else functools.partial(load_task, source, given)
    job, made = captured.make(source or str(text.model), load, max_memory, quiet=quiet)
    return job, captured.out or Path(), made


@command("job show")
def show(job: Path = JOB, max_memory: int = MEMORY, json: bool = JSON) -> None:
    """Check a job and show what it asks for."""
    found = read_job(job, max_memory)
    cost = JobCost.of(found, max_memory)
    plain = plain_job(found) | dataclasses.asdict(cost)
    output.show_result(json, plain, f"Job in {job}", job_facts(found) | cost.facts(found))


@command("job list")
def list_jobs(*, chain: ContractOptions, json: bool = JSON) -> None:
    """List the posted jobs."""
    from tiebreak.cli.summary_text import show_list

    show_list(chain.open_game(), json)


@command("job collect", "tiebreak job collect 1 --model model.safetensors")
def collect(
    job: int = argument("JOB", "Number of a job of yours.", min=1),
    model: Path = option("File for the trained state (safetensors).", ..., "FILE"),
    max_memory: int = MEMORY,
    poll: float = POLL,
    *,
    party: PartyOptions,
    json: bool = JSON,
) -> None:
    """Wait for the end of a job; then fetch its model, or the refund."""
    from tiebreak.cli.role_process import RoleSetup, play
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.job_role import Role

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.customer_role import CustomerRole

        return CustomerRole(context, job, model=model)

    play("customer", RoleSetup(party, max_memory), make, poll, json)
