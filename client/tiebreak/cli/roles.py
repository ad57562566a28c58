"""`tiebreak trainer run`, `auditor run` and `referee run`: the processes that take part in jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tiebreak import quantities
from tiebreak.cli import network
from tiebreak.cli.audits import WorkerOptions
from tiebreak.cli.failures import WrongUsage
from tiebreak.cli.job_terms import AcceptedTerms
from tiebreak.cli.network import PartyOptions, published_every
from tiebreak.cli.option_groups import JSON, MEMORY, POLL, VERIFY_LOG, Computing, SpendingLimits, command, option
from tiebreak.cli.ranks import refuse_ranks
from tiebreak.cli.role_process import Operation, RoleSetup, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.job_role import JobRole, Role


@dataclass(frozen=True, kw_only=True)
class RoleOptions(PartyOptions, Operation):
    """Options of every role."""

    panel: ClassVar = "Taking part"
    poll: float = POLL
    heartbeat: float = option(
        "Time between two lines that say how things stand, e.g. 10m.", "60s", "TIME", parser=quantities.interval(1)
    )


@dataclass(frozen=True, kw_only=True)
class BondOptions(RoleOptions, SpendingLimits, Computing, AcceptedTerms):
    """Options of the roles that put a bond on jobs."""

    panel: ClassVar = "Options"
    job: int | None = option("Number of one job; ends when it is over.", metavar="JOB", min=1)
    retention: int | None = network.RETENTION

    def play(self, name: str, role: Callable[[RoleContext, int], JobRole], json: bool) -> None:
        """Let a role work on the job, or on all jobs of trusted referees. Raises WrongUsage without either."""
        job = self.job
        if job is None and not self.trust_referee:
            raise WrongUsage(
                "a referee's word can take your bond, and a customer may name itself: name the referees that you trust "
                "with --trust-referee ADDRESS, or one job that you have looked at with --job NUMBER."
            )

        def make(context: RoleContext) -> Role:
            from tiebreak.roles.job_role import JobFollower

            if job is not None:
                return role(context, job)
            return JobFollower(context, name, lambda number, _: role(context, number))

        self.use_threads()
        setup = RoleSetup(self, self.max_memory, self.policy(), self.run_options(), self)
        play(name, setup, make, self.poll, json, self.heartbeat, self, self.retention, by_ranks=True)


@command(
    "trainer run",
    "tiebreak trainer run --job 1",
    "tiebreak trainer run --trust-referee 0x... --least-reward 0.05ether --keystore key.json",
    "torchrun --nproc-per-node 4 --no-python -- tiebreak trainer run --job 1",
)
def run_trainer(*, options: BondOptions, publish_every: int | None = network.PUBLISH_EVERY, json: bool = JSON) -> None:
    """Train one job, or all of your trusted referees until interrupted: publish, claim, and defend the claim until it
    is paid. Killed at any moment, it carries on.

    Of several processes that torchrun starts, rank 0 is the trainer; the others help it with steps, and need no key.
    """
    every = published_every(publish_every, options.keep_every)

    def role(context: RoleContext, number: int) -> JobRole:
        from tiebreak.roles.trainer_role import TrainerRole

        return TrainerRole(context, number, publish_every=every)

    options.play("trainer", role, json)


@command(
    "auditor run",
    "tiebreak auditor run --job 1 --keystore key.json",
    "tiebreak auditor run --job 1 --workers 4",
    "tiebreak auditor run --trust-referee 0x... --least-bond 0.5ether --most-bond 1ether",
)
def run_auditor(
    *,
    options: BondOptions,
    workers: WorkerOptions,
    verify_log: float = VERIFY_LOG,
    use_log: bool = option("Follow the trainer's log, or do without.", True, name="--use-log/--no-log"),
    json: bool = JSON,
) -> None:
    """Audit one job, or all of your trusted referees until interrupted; attest to what is right, challenge what is
    wrong.

    Of several processes that torchrun starts, rank 0 is the auditor; the others help it with steps, and need no key.
    """
    shared = None
    if workers.are_wanted:
        from tiebreak.roles.shared_audits import Workers

        refuse_ranks("tiebreak auditor run --workers")
        shared = Workers(sharing=workers.sharing(options.threads), stores=options.places())
    is_follower = options.job is None

    def role(context: RoleContext, number: int) -> JobRole:
        from tiebreak.roles.auditor_role import AuditorRole

        return AuditorRole(
            context, number, verify_log=verify_log, use_log=use_log, only_with_bond=is_follower, workers=shared
        )

    options.play("auditor", role, json)


@command("referee run", "tiebreak referee run --keystore key.json --json")
def run_referee(*, options: RoleOptions, max_memory: int = MEMORY, json: bool = JSON) -> None:
    """Answer every game that calls this account, until interrupted: about rows of data that do not fit a transaction,
    and about a rounding that the contract's precision does not decide (nobody knows of one yet)."""

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.referee_role import RefereeRole

        return RefereeRole(context)

    play("referee", RoleSetup(options, max_memory), make, options.poll, json, options.heartbeat, options)
