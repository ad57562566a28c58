"""`tiebreak job ...`: what a customer makes, posts and collects, and what everyone else looks at."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiebreak.cli import network, options, quantities, roles
from tiebreak.cli import terms as terms_of
from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from roundlog.training.job import Job
    from roundlog.training.sameness import Sameness

_CONTRACTS_BITS = 32

app = typer.Typer(no_args_is_help=True, help="Training jobs: make one, post it, look at it, collect its model.")


class Policy(enum.StrEnum):
    """`rounding_policy` of a spec, by name."""

    CERTIFIED = "certified"
    THRESHOLD = "threshold"


_TERMS = "Posting it on the chain"


def _time(help: str) -> Any:
    return typer.Option(parser=quantities.seconds, metavar="TIME", help=help, rich_help_panel=_TERMS)


_EXAMPLES = (
    "Examples: digits (scikit-learn's images); gpt (small, on the bytes of the text --data); gpt2 (124 million "
    "parameters, on the text --data, whose tokens are its bytes or, with --set tokenizer=PATH, those of GPT-2's "
    "tokenizer.json); logistic (2^18 generated rows); resnet50 and vgg11 (on --data, the folder of CIFAR-10's python "
    "files). Without --data, gpt2, resnet50 and vgg11 train on generated data. Nothing is downloaded. Defaults are "
    "changed by --set steps=20 --set batch_size=4 and the like; after a wrong name you are told all of them."
)


@app.command(epilog=_EXAMPLES)
def create(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="my_task.py:function that returns a roundlog.capture.Task, an example (digits, gpt, gpt2, logistic, "
            "resnet50, vgg11), or the directory of a job that is only to be posted.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Directory for the job's files; made, or empty.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the function; repeatable.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="PATH", help="What to train on: a file or folder; see below.")
    ] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="How inexact results are rounded: certified, to the one right answer, or threshold, as OVT has it, "
            "by the trainer's log (without a chain). [default: certified]",
            show_default=False,
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(
            min=23,
            max=32,
            help="b_r of OVT: bits of every result, 8 of them the exponent's. [default: 32]",
            show_default=False,
        ),
    ] = None,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    reward: Annotated[
        int | None,
        typer.Option(
            parser=quantities.wei, metavar="AMOUNT", help="Post the job, for this reward.", rich_help_panel=_TERMS
        ),
    ] = None,
    referee: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Who decides where the contract's precision does not.", rich_help_panel=_TERMS
        ),
    ] = None,
    trainer_bond: Annotated[
        int | None,
        typer.Option(
            parser=quantities.wei,
            metavar="AMOUNT",
            help="What a wrong trainer loses. [default: the reward]",
            rich_help_panel=_TERMS,
        ),
    ] = None,
    challenger_bond: Annotated[
        int | None,
        typer.Option(
            parser=quantities.wei,
            metavar="AMOUNT",
            help="What a wrong challenger loses. [default: the trainer's bond]",
            rich_help_panel=_TERMS,
        ),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="The only one who may train it. [default: anyone]", rich_help_panel=_TERMS
        ),
    ] = None,
    allow_large_rows: Annotated[
        bool,
        typer.Option(
            "--allow-large-rows",
            help="Post it although its rows of data are above 64 KiB, which no transaction can carry. What was loaded "
            "of them is the referee's to decide: its silence costs the trainer its reward, its lie costs a bond, and "
            "trainers and auditors leave such a job alone unless they say the same.",
            rich_help_panel=_TERMS,
        ),
    ] = False,
    commit_window: Annotated[int, _time("For trainers to claim it.")] = "7d",  # type: ignore[assignment]  # parsed by typer
    challenge_window: Annotated[int, _time("For auditors to challenge the claim.")] = "7d",  # type: ignore[assignment]  # parsed by typer
    clock: Annotated[int, _time("For each side's moves in one game.")] = "1d",  # type: ignore[assignment]  # parsed by typer
    referee_clock: Annotated[int, _time("For one verdict.")] = "1d",  # type: ignore[assignment]  # parsed by typer
    concurrent_games: Annotated[
        int,
        typer.Option(min=1, max=1024, metavar="N", help="Games played at a time; others wait.", rich_help_panel=_TERMS),
    ] = 16,
    directory: roles.Directory = None,
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    store: network.Store = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Capture a training task as a job: data that others can run without running your code. With --reward, post it."""
    from tiebreak.cli import output

    if reward is None and (referee or trainer or trainer_bond or challenger_bond):
        raise CommandError("these are terms of a posted job, but there is no --reward to post it with: add one.")
    if reward is not None and policy == Policy.THRESHOLD:
        raise CommandError(
            "under threshold the trainer's log decides, which no contract can judge: leave --reward away."
        )
    if reward is not None and bits not in (None, _CONTRACTS_BITS):
        raise CommandError(
            f"the contract does not round exact operators to {bits} bits: leave --bits away, or --reward."
        )
    if reward is not None and referee is None:
        raise CommandError("a posted job needs someone who decides disputes: name an account with --referee.")
    judge = network.address(referee, "the referee") if referee is not None else None
    only = network.address(trainer, "the trainer") if trainer is not None else None
    accepted = terms_of.policy(None, None, None, large_rows=allow_large_rows)
    place = roles.Place(keystore, chain, contract, store, confirmations, directory, max_memory, accepted)
    if reward is not None:
        place.contract()  # what cannot be posted is noticed before the work of capturing it
    job, where, sameness = _capture(source, out, setting or [], data, policy, bits, max_memory)
    plain: dict[str, object] = {"directory": where} | _plain(job)
    if sameness is not None:
        plain["sameness"] = dataclasses.asdict(sameness)
    if not json:
        output.show_facts(f"Job in {where}", _facts(job))
        if sameness is not None:
            output.show_line(f"{str(sameness)[0].upper()}{str(sameness)[1:]}.")
    if reward is not None and judge is not None:
        from tiebreak.chain.record_methods import ANYONE
        from tiebreak.chain.records import Terms
        from tiebreak.cli.notices import Teller
        from tiebreak.roles.customer import post_job

        terms = Terms(
            reward=reward,
            trainer_bond=(bond := reward if trainer_bond is None else trainer_bond),
            challenger_bond=bond if challenger_bond is None else challenger_bond,
            commit_window=commit_window,
            challenge_window=challenge_window,
            clock_allowance=clock,
            referee_allowance=referee_clock,
            concurrent_games=concurrent_games,
            trainer=only or ANYONE,
        )
        with Teller(as_json=False) as teller:
            context = place.context("customer", None if json else teller)
            number = post_job(context, where, terms, judge)
        plain |= {"job": number, "contract": context.contract.address}
        if not json:
            output.show_line(f"This is job {number}.")
    if json:
        output.show_json(plain)


def _capture(
    source: str,
    out: Path | None,
    settings: list[str],
    data: Path | None,
    policy: Policy | None,
    bits: int | None,
    max_memory: int,
) -> tuple[Job, Path, Sameness | None]:
    """The job of a task, written to `out`, and how it compares with the task's own step; or the job that is in a
    directory already."""
    if Path(source).is_dir():
        from tiebreak.cli.training import read_job

        if out is not None or settings or any(option is not None for option in (data, policy, bits)):
            raise CommandError(f"{source} is a job already: leave --out, --set, --data, --policy and --bits away.")
        strangers = sorted({path.name for path in Path(source).iterdir()} - _files_of_a_job())
        if strangers:
            raise CommandError(f"{source} would be published with {strangers[0]} in it: move that somewhere else.")
        return read_job(Path(source), max_memory), Path(source), None
    if out is None:
        raise CommandError("the job needs a directory for its files: name one with --out.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandError(f"{out} is not an empty directory: choose another place for the job.")
    from tiebreak.cli.source import load_task

    task = load_task(source, settings if data is None else [*settings, f"data={data}"])
    from roundlog.spec import POLICY_CERTIFIED, POLICY_THRESHOLD
    from roundlog.training.job import Job

    number = POLICY_THRESHOLD if policy == Policy.THRESHOLD else POLICY_CERTIFIED
    found: list[Sameness] = []
    job = Job.from_task(task, policy=number, bits=bits or 32, report=found.append)
    job.write(out)
    return job, out, found[0]


def _files_of_a_job() -> set[str]:
    from roundlog.training import job

    return {job.PROGRAM, job.SPEC, job.INITIAL, job.SCHEDULE, job.DATA}


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Directory of a job, or the number of a posted one.")],
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Check a job and show what it asks for."""
    from tiebreak.cli import output

    if not Path(job).exists() and job.isascii() and job.isdigit():
        from tiebreak.cli.views import show_posted

        game = network.open_game(chain, contract, confirmations, None)
        show_posted(game, int(job), with_games=False, as_json=json)
        return
    from tiebreak.cli.training import read_job

    found = read_job(Path(job), max_memory)
    if json:
        output.show_json(_plain(found))
    else:
        output.show_facts(f"Job in {job}", _facts(found))


@app.command("list")
def list_jobs(
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only those: open, claimed, final, rejected or expired.")
    ] = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """List the posted jobs."""
    from tiebreak.chain.records import JobStatus
    from tiebreak.cli.views import show_list

    wanted = None
    if status is not None:
        names = [one.name.lower() for one in JobStatus if one]
        if status.lower() not in names:
            raise typer.BadParameter(f"{status!r} is none of {', '.join(names)}.", param_hint="--status")
        wanted = JobStatus[status.upper()]
    show_list(network.open_game(chain, contract, confirmations, None), wanted, json)


@app.command()
def collect(
    job: Annotated[int, typer.Argument(min=1, metavar="JOB", help="Number of a job of yours.")],
    model: Annotated[Path, typer.Option(metavar="FILE", help="Where to put the trained state (safetensors).")],
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    directory: roles.Directory = None,
    poll: roles.Poll = 2.0,
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    store: network.Store = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Wait for the end of a job; then fetch its model, or the refund."""
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.role import Role

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.customer import CustomerRole

        return CustomerRole(context, job, model=model)

    place = roles.Place(keystore, chain, contract, store, confirmations, directory, max_memory)
    roles.play("customer", place, make, poll, json)


def _plain(job: Job) -> dict[str, object]:
    from dataclasses import asdict

    from roundlog.training.job import step_bytes

    return {
        "spec": asdict(job.spec),
        "run_id": job.spec.run_id,
        "states": {name: str(kind) for name, kind in job.program.states.items()},
        "data": {name: str(kind) for name, kind in job.program.data.items()},
        "state_bytes": sum(kind.nbytes for kind in job.program.states.values()),
        "data_bytes": sum(tensor.nbytes for tensor in job.dataset.values()),
        "step_bytes": step_bytes(job.program, job.spec),
    }


def _facts(job: Job) -> dict[str, object]:
    from roundlog.adjudication.adjudicate import MAX_ROW
    from roundlog.adjudication.size import row_bytes
    from roundlog.spec import POLICY_THRESHOLD
    from roundlog.training.job import step_bytes

    from tiebreak.cli.output import size

    spec = job.spec
    policy = Policy.THRESHOLD if spec.rounding_policy == POLICY_THRESHOLD else Policy.CERTIFIED
    states = job.program.states
    row = row_bytes(job.program)
    large = row > MAX_ROW
    return {
        "steps": f"{spec.steps}, a checkpoint every {spec.interval}",
        "data": f"{spec.data_rows} rows ({', '.join(job.dataset)}), {spec.batch_size} a step",
        **(
            {"rows": f"{row} bytes each, above {MAX_ROW}: posted and taken only with --allow-large-rows"}
            if large
            else {}
        ),
        "rounding": f"{policy.value}, {spec.rounding_bits} bits",
        "operators": f"{spec.operator_count} a step",
        "state": f"{spec.state_count} tensors, {size(sum(kind.nbytes for kind in states.values()))}",
        "memory": f"about {size(step_bytes(job.program, spec))} a step",
        "program root": spec.program_root,
        "initial state root": spec.initial_state_root,
        "data root": spec.data_root,
        "run id": spec.run_id,
    }
