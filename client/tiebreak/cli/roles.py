"""`tiebreak trainer run`, `auditor run`, `referee run` and `job collect`: the processes that take part in jobs."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import options
from tiebreak.cli.content import PublishEvery, Retention, published_every
from tiebreak.cli.failures import WrongUsage
from tiebreak.cli.groups import examples, takes_groups
from tiebreak.cli.network import PartyOptions
from tiebreak.cli.operation import Operation
from tiebreak.cli.parallel import WorkerOptions
from tiebreak.cli.ranks import refuse_ranks
from tiebreak.cli.spending import SpendingLimits
from tiebreak.cli.terms import AcceptedTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundlog.training.options import RunOptions

    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.signer import Key
    from tiebreak.operation.watchman import Watchman
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.notices import Notify, OnLook
    from tiebreak.roles.policy import Policy
    from tiebreak.roles.role import Role
    from tiebreak.roles.shared_audits import Workers

trainer = typer.Typer(no_args_is_help=True, help="Train jobs and claim their rewards.")
auditor = typer.Typer(no_args_is_help=True, help="Repeat claimed trainings, and challenge those that are wrong.")
referee = typer.Typer(no_args_is_help=True, help="Decide disputes that the contract cannot.")

_TAKING_PART = "Taking part"

Poll = Annotated[
    float,
    typer.Option(
        min=0.05, metavar="SECONDS", help="Time between two looks at the chain.", rich_help_panel=_TAKING_PART
    ),
]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Intervals at which a role looks at the chain and says how things stand."""

    poll: Poll = 2.0
    heartbeat: Annotated[
        float,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="Time between two lines that say how things stand.",
            rich_help_panel=_TAKING_PART,
        ),
    ] = 60.0


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
    ),
)
@takes_groups
def run_trainer(
    job: Job = None,
    *,
    accepted: AcceptedTerms,
    publish_every: PublishEvery = None,
    retention: Retention = None,
    computing: options.Computing,
    spending: SpendingLimits,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: options.Json = False,
) -> None:
    """Train one job, or all of your trusted referees until interrupted: publish, claim, and defend the claim until it
    is paid. Killed at any moment, it carries on."""
    _require_trust(job, accepted.trust_referee)
    every = published_every(publish_every, computing.keep_every)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.follower import JobFollower
        from tiebreak.roles.trainer import TrainerRole

        def role(number: int) -> TrainerRole:
            return TrainerRole(context, number, publish_every=every)

        return role(job) if job is not None else JobFollower(context, "trainer", lambda number, _: role(number))

    computing.use_threads()
    setup = RoleSetup(party, computing.max_memory, accepted.policy(), computing.run_options(), spending)
    play("trainer", setup, make, pace.poll, json, pace.heartbeat, operation, retention)


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
    verify_log: options.VerifyLog = options.DEFAULT_VERIFY_LOG,
    use_log: Annotated[
        bool, typer.Option("--use-log/--no-log", help="Follow the trainer's log, or do without.")
    ] = True,
    *,
    accepted: AcceptedTerms,
    workers: WorkerOptions,
    micro_batches: options.MicroBatches = 1,
    retention: Retention = None,
    computing: options.Computing,
    spending: SpendingLimits,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: options.Json = False,
) -> None:
    """Audit one job, or all of your trusted referees until interrupted; attest to what is right, challenge what is
    wrong."""
    _require_trust(job, accepted.trust_referee)
    shared = _workers(workers, computing, party)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.auditor import AuditorRole
        from tiebreak.roles.follower import JobFollower

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
    play("auditor", setup, make, pace.poll, json, pace.heartbeat, operation, retention)


def _workers(workers: WorkerOptions, computing: options.Computing, party: PartyOptions) -> Workers | None:
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
    max_memory: options.Memory = options.DEFAULT_MEMORY,
    *,
    pace: Pace,
    operation: Operation,
    party: PartyOptions,
    json: options.Json = False,
) -> None:
    """Answer every game that calls this account, until interrupted: about rows of data that do not fit a transaction,
    and about a rounding that the contract's precision does not decide (nobody knows of one yet)."""

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.referee import RefereeRole

        return RefereeRole(context)

    play("referee", RoleSetup(party, max_memory), make, pace.poll, json, pace.heartbeat, operation)


class RoleSetup:
    """The chain, store and directory of a role, opened as its options say."""

    def __init__(
        self,
        party: PartyOptions,
        max_memory: int,
        policy: Policy | None = None,
        options: RunOptions | None = None,
        spending: SpendingLimits | None = None,
    ) -> None:
        self._spending = spending or SpendingLimits()
        self._party, self._policy = party, policy
        self._max_memory, self._options = max_memory, options
        self.stop = threading.Event()
        """Set it, and everything that waits here ends: for the chain, the store, the next look."""
        self._opened: tuple[VerificationGame, Key] | None = None

    def contract(self) -> tuple[VerificationGame, Key]:
        """The contract, and the account that writes to it. Raises CommandError, ChainError."""
        if self._opened is None:
            signer = self._party.key(stop=self.stop)
            self._opened = self._party.open_game(signer, stop=self.stop), signer
        return self._opened

    def context(self, role: str, notify: Notify, on_look: OnLook | None = None) -> RoleContext:
        """The context of a role. Raises CommandError, ChainError, StoreError, OSError."""
        from tiebreak.chain.sender import Sender
        from tiebreak.memory import usable_memory
        from tiebreak.roles.context import RoleContext, RoleLimits
        from tiebreak.roles.custody import Custody
        from tiebreak.roles.engine import Engine
        from tiebreak.roles.notices import of_transfers, of_warnings, unseen
        from tiebreak.roles.policy import Policy

        contract, signer = self.contract()
        directory = self._party.directory
        if directory is None:
            from platformdirs import user_data_path

            directory = user_data_path("tiebreak") / role / signer.address
        directory.mkdir(parents=True, exist_ok=True)
        sender = Sender(contract.node, signer, directory=directory)
        store = self._party.open_content(
            stop=self.stop, warn=of_warnings(role, notify), on_transfer=of_transfers(role, notify)
        )
        return RoleContext(
            contract=contract.by(sender),
            sender=sender,
            store=Custody(store, directory),
            directory=directory,
            engine=Engine() if self._options is None else Engine(options=self._options),
            limits=RoleLimits(
                memory_bytes=min(self._max_memory, usable_memory()),
                wei_per_day=self._spending.spend_per_day,
                wei_per_job=self._spending.spend_per_job,
            ),
            policy=self._policy or Policy(),
            notify=notify,
            on_look=on_look or unseen,
        )

    def context_in_time(self, role: str, watchman: Watchman) -> RoleContext | None:
        """The context of a role, once chain, store and disk can be reached; None if `stop` was set before that.

        Raises CommandError and AccountError, the latter also for a directory in which another process works, and
        DeploymentError once the chain has said the same several times."""
        from tiebreak.chain.errors import AccountError, ChainError, DeploymentError
        from tiebreak.roles.ending import LOOKS
        from tiebreak.roles.notices import Notice, Warnings, What
        from tiebreak.roles.pauses import Pauses
        from tiebreak.roles.role import sentence
        from tiebreak.store import StoreError

        self._party.check_content()  # what is wrong for good is no outage
        pauses, warnings, foreign = Pauses(first=1.0, most=30.0), Warnings(), 0
        while not self.stop.is_set():
            try:
                context = self.context(role, watchman.notice, watchman.look)
                context.sender.open()  # two processes in one directory would write the same records
                watchman.attach(context)
                return context
            except (AccountError, FileExistsError, NotADirectoryError):
                raise
            except (ChainError, StoreError, OSError) as error:
                # A node that lags behind shows no contract yet where there is one.
                foreign = foreign + 1 if isinstance(error, DeploymentError) else 0
                if foreign >= LOOKS:
                    raise
                watchman.unreachable(error)
                notice = Notice(role=role, what=What.WARNING, text=sentence(error))
                if warnings.is_new(notice):
                    watchman.notice(notice)
            self.stop.wait(pauses.next())
        return None


def play(
    name: str,
    setup: RoleSetup,
    make: Callable[[RoleContext], Role],
    poll: float,
    as_json: bool,
    heartbeat: float = 60.0,
    operation: Operation | None = None,
    retention: int | None = None,
) -> None:
    """Lets a role work until it has finished. The first interrupt lets it stop in good order. retention: seconds to
    keep what it has published after the end of a job; None to keep it for ever."""
    from tiebreak.cli import failures, output
    from tiebreak.cli.notices import Teller
    from tiebreak.roles.custody import Custody, Keeper
    from tiebreak.roles.notices import Progress

    def stop(number: int, frame: FrameType | None) -> None:
        if setup.stop.is_set():
            raise KeyboardInterrupt
        setup.stop.set()

    # Each of them would send the same transactions.
    refuse_ranks(f"tiebreak {name} run")
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    progress, context = Progress(state="not started"), None
    try:
        with Teller(as_json=as_json) as teller, (operation or Operation()).watchman(name, teller.tell) as watchman:
            try:
                context = setup.context_in_time(name, watchman)
                if context is not None:
                    role = make(context)
                    assert isinstance(context.store, Custody), "RoleSetup makes it"
                    keeper = Keeper(name, context.store, context.contract, watchman.notice, retention)
                    keeper.start(setup.stop)
                    progress = role.run(poll=poll, heartbeat=heartbeat)
                    if progress.finished:
                        keeper.round()  # the time of what was published runs from the end of the job
            except Exception as error:
                watchman.ended(failures.sentence(error))
                raise
    finally:
        if context is not None:
            context.sender.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if as_json:
        output.show_json_line({"role": name, "what": "ended", "text": progress.state, "finished": progress.finished})
    elif progress.finished:
        output.show_line(f"Done: {progress.state}.")
    if not progress.finished:
        raise KeyboardInterrupt
