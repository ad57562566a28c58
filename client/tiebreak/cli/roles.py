"""`tiebreak trainer run`, `auditor run`, `referee run` and `job collect`: the processes that take part in jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak import quantities
from tiebreak.cli import option_groups
from tiebreak.cli.failures import WrongUsage
from tiebreak.cli.job_terms import AcceptedTerms
from tiebreak.cli.network import PartyOptions, PublishEvery, Retention, published_every
from tiebreak.cli.operation import Operation
from tiebreak.cli.option_groups import DEFAULT_POLL, Poll, SpendingLimits, examples, takes_groups, taking_part_option
from tiebreak.cli.ranks import refuse_ranks
from tiebreak.cli.role_process import RoleSetup, play
from tiebreak.cli.segment_audits import WorkerOptions

if TYPE_CHECKING:
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.job_role import Role
    from tiebreak.roles.shared_audits import Workers

trainer = typer.Typer(no_args_is_help=True, help="Train jobs and claim their rewards.")
auditor = typer.Typer(no_args_is_help=True, help="Repeat claimed trainings, and challenge those that are wrong.")
referee = typer.Typer(no_args_is_help=True, help="Decide disputes that the contract cannot.")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Intervals at which a role looks at the chain and says how things stand."""

    poll: Poll = DEFAULT_POLL
    heartbeat: Annotated[
        float,
        taking_part_option(
            parser=quantities.interval(1),
            metavar="TIME",
            help="Time between two lines that say how things stand, e.g. 10m.",
        ),
    ] = "60s"  # type: ignore[assignment]  # parsed like what a user gives


Job = Annotated[
    int | None, typer.Option("--job", min=1, metavar="JOB", help="Number of one job; ends when it is over.")
]


@trainer.callback()
@auditor.callback()
@referee.callback()
def _group() -> None:
    """Keeps `run` a command of its own."""


def _require_trust(job: int | None, referees: list[str] | None) -> None:
    """Refuses to follow all jobs without a trusted referee. Raises WrongUsage."""
    if job is None and not referees:
        raise WrongUsage(
            "a referee's word can take your bond, and a customer may name itself: name the referees that you trust "
            "with --trust-referee ADDRESS, or one job that you have looked at with --job NUMBER."
        )


@trainer.command(
    "run",
    epilog=examples(
        "tiebreak trainer run --job 1",
        "tiebreak trainer run --trust-referee 0x... --least-reward 0.05ether --keystore key.json",
        "torchrun --nproc-per-node 4 --no-python -- tiebreak trainer run --job 1",
    ),
)
@takes_groups
def run_trainer(
    job: Job = None,
    *,
    accepted: AcceptedTerms,
    publish_every: PublishEvery = None,
    retention: Retention = None,
    computing: option_groups.Computing,
    spending: SpendingLimits,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: option_groups.Json = False,
) -> None:
    """Train one job, or all of your trusted referees until interrupted: publish, claim, and defend the claim until it
    is paid. Killed at any moment, it carries on.

    Of several processes that torchrun starts, rank 0 is the trainer; the others help it with steps, and need no key.
    """
    _require_trust(job, accepted.trust_referee)
    every = published_every(publish_every, computing.keep_every)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.job_role import JobFollower
        from tiebreak.roles.trainer_role import TrainerRole

        def role(number: int) -> TrainerRole:
            return TrainerRole(context, number, publish_every=every)

        return role(job) if job is not None else JobFollower(context, "trainer", lambda number, _: role(number))

    computing.use_threads()
    setup = RoleSetup(party, computing.max_memory, accepted.policy(), computing.run_options(), spending)
    play("trainer", setup, make, pace.poll, json, pace.heartbeat, operation, retention, by_ranks=True)


@auditor.command(
    "run",
    epilog=examples(
        "tiebreak auditor run --job 1 --keystore key.json",
        "tiebreak auditor run --job 1 --workers 4",
        "tiebreak auditor run --trust-referee 0x... --least-bond 0.5ether --most-bond 1ether",
    ),
)
@takes_groups
def run_auditor(
    job: Job = None,
    verify_log: option_groups.VerifyLog = option_groups.DEFAULT_VERIFY_LOG,
    use_log: Annotated[
        bool, typer.Option("--use-log/--no-log", help="Follow the trainer's log, or do without.")
    ] = True,
    *,
    accepted: AcceptedTerms,
    workers: WorkerOptions,
    micro_batches: option_groups.MicroBatches = 1,
    retention: Retention = None,
    computing: option_groups.Computing,
    spending: SpendingLimits,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: option_groups.Json = False,
) -> None:
    """Audit one job, or all of your trusted referees until interrupted; attest to what is right, challenge what is
    wrong.

    Of several processes that torchrun starts, rank 0 is the auditor; the others help it with steps, and need no key.
    """
    _require_trust(job, accepted.trust_referee)
    if workers.are_wanted:
        refuse_ranks("tiebreak auditor run --workers")
    shared = _workers(workers, computing, party)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.auditor_role import AuditorRole
        from tiebreak.roles.job_role import JobFollower

        def role(number: int) -> AuditorRole:
            return AuditorRole(
                context,
                number,
                verify_log=verify_log,
                use_log=use_log,
                only_with_bond=job is None,
                workers=shared,
            )

        return role(job) if job is not None else JobFollower(context, "auditor", lambda number, _: role(number))

    computing.use_threads()
    setup = RoleSetup(party, computing.max_memory, accepted.policy(), computing.run_options(micro_batches), spending)
    play("auditor", setup, make, pace.poll, json, pace.heartbeat, operation, retention, by_ranks=True)


def _workers(workers: WorkerOptions, computing: option_groups.Computing, party: PartyOptions) -> Workers | None:
    if not workers.are_wanted:
        return None
    from tiebreak.roles.shared_audits import Workers

    return Workers(sharing=workers.sharing(computing.threads), stores=party.places())


@referee.command(
    "run",
    epilog=examples(
        "tiebreak referee run --keystore key.json --json",
    ),
)
@takes_groups
def run_referee(
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    *,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: option_groups.Json = False,
) -> None:
    """Answer every game that calls this account, until interrupted: about rows of data that do not fit a transaction,
    and about a rounding that the contract's precision does not decide (nobody knows of one yet)."""

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.referee_role import RefereeRole

        return RefereeRole(context)

    play("referee", RoleSetup(party, max_memory), make, pace.poll, json, pace.heartbeat, operation)
