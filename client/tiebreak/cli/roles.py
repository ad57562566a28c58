"""`tiebreak trainer run`, `auditor run`, `referee run` and `job collect`: the processes that take part in jobs."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import network, options, terms
from tiebreak.cli.failures import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from eth_account.signers.local import LocalAccount

    from tiebreak.chain.game import VerificationGame
    from tiebreak.cli.notices import Teller
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.policy import Policy
    from tiebreak.roles.role import Role

trainer = typer.Typer(no_args_is_help=True, help="Train jobs and claim their rewards.")
auditor = typer.Typer(no_args_is_help=True, help="Repeat claimed trainings, and challenge those that are wrong.")
referee = typer.Typer(no_args_is_help=True, help="Decide disputes that the contract cannot.")

Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Where this role keeps its work. By default a folder of the user's."),
]
Poll = Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Time between two looks at the chain.")]
Heartbeat = Annotated[
    float, typer.Option(min=1.0, metavar="SECONDS", help="Time between two lines that say how things stand.")
]
Job = Annotated[
    int | None, typer.Option("--job", min=1, metavar="JOB", help="Number of one job; ends when it is over.")
]


@trainer.callback()
@auditor.callback()
@referee.callback()
def _group() -> None:
    """Keeps `run` a command of its own."""


def _require_trust(job: int | None, referees: list[str] | None) -> None:
    """Nobody bonds on strangers' jobs by the dozen without having said whose verdicts count."""
    if job is None and not referees:
        raise WrongUsage(
            "a referee's word can take your bond, and whoever posts a job may name itself: name those whom you trust "
            "with --trust-referee ADDRESS, or one job that you have looked at with --job NUMBER."
        )


@trainer.command("run")
def run_trainer(
    job: Job = None,
    trust_referee: terms.TrustReferee = None,
    least_clock: terms.LeastClock = None,
    most_bond: terms.MostBond = None,
    least_reward: terms.LeastReward = terms.DEFAULT_FLOOR,  # type: ignore[assignment]  # parsed by typer
    least_bond: terms.LeastBond = terms.DEFAULT_FLOOR,  # type: ignore[assignment]  # parsed by typer
    allow_large_rows: terms.AllowLargeRows = False,
    keep_every: options.KeepEvery = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    directory: Directory = None,
    poll: Poll = 2.0,
    heartbeat: Heartbeat = 60.0,
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    store: network.Store = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Train one job, or all of your trusted referees until interrupted: publish, claim, and defend the claim until it
    is paid. Killed at any moment, it carries on."""
    _require_trust(job, trust_referee)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.follower import Follower
        from tiebreak.roles.trainer import TrainerRole

        computing = _computing(context, device, keep_every)
        if job is not None:
            return TrainerRole(computing, job)
        return Follower(computing, "trainer", lambda number, _: TrainerRole(computing, number))

    options.use_threads(threads)
    accepted = terms.policy(trust_referee, least_clock, most_bond, least_reward, least_bond, allow_large_rows)
    place = Place(keystore, chain, contract, store, confirmations, directory, max_memory, accepted)
    play("trainer", place, make, poll, json, heartbeat)


@auditor.command("run")
def run_auditor(
    job: Job = None,
    verify_log: options.VerifyLog = options.DEFAULT_VERIFY_LOG,  # type: ignore[assignment]  # parsed by typer
    use_log: Annotated[
        bool, typer.Option("--use-log/--no-log", help="Follow the trainer's log, or do without.")
    ] = True,
    trust_referee: terms.TrustReferee = None,
    least_clock: terms.LeastClock = None,
    most_bond: terms.MostBond = None,
    least_reward: terms.LeastReward = terms.DEFAULT_FLOOR,  # type: ignore[assignment]  # parsed by typer
    least_bond: terms.LeastBond = terms.DEFAULT_FLOOR,  # type: ignore[assignment]  # parsed by typer
    allow_large_rows: terms.AllowLargeRows = False,
    keep_every: options.KeepEvery = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    micro_batches: options.MicroBatches = 1,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    directory: Directory = None,
    poll: Poll = 2.0,
    heartbeat: Heartbeat = 60.0,
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    store: network.Store = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Audit one job, or all of your trusted referees until interrupted; attest to what is right, challenge what is
    wrong."""
    _require_trust(job, trust_referee)

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.auditor import AuditorRole
        from tiebreak.roles.follower import Follower

        computing = _computing(context, device, keep_every, micro_batches)

        def role(number: int) -> AuditorRole:
            return AuditorRole(computing, number, verify_log=verify_log, use_log=use_log, only_with_bond=job is None)

        return role(job) if job is not None else Follower(computing, "auditor", lambda number, _: role(number))

    options.use_threads(threads)
    accepted = terms.policy(trust_referee, least_clock, most_bond, least_reward, least_bond, allow_large_rows)
    place = Place(keystore, chain, contract, store, confirmations, directory, max_memory, accepted)
    play("auditor", place, make, poll, json, heartbeat)


@referee.command("run")
def run_referee(
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    directory: Directory = None,
    poll: Poll = 2.0,
    heartbeat: Heartbeat = 60.0,
    keystore: network.Keystore = None,
    chain: network.Chain = network.DEFAULT_CHAIN,
    contract: network.Contract = None,
    store: network.Store = None,
    confirmations: network.Confirmations = None,
    json: options.Json = False,
) -> None:
    """Answer every game that calls this account, until interrupted: about rows of data that do not fit a transaction,
    and about a rounding that the contract's precision does not decide (nobody knows of one yet)."""

    def make(context: RoleContext) -> Role:
        from tiebreak.roles.referee import RefereeRole

        return RefereeRole(context)

    place = Place(keystore, chain, contract, store, confirmations, directory, max_memory)
    play("referee", place, make, poll, json, heartbeat)


def _computing(context: RoleContext, device: str, keep_every: int, micro_batches: int = 1) -> RoleContext:
    """The context of a party that computes in this way."""
    from roundlog.training.options import RunOptions

    from tiebreak.roles.engine import Engine

    options = RunOptions(device=device, keep_every=keep_every, micro_batches=micro_batches)
    return replace(context, engine=Engine(options=options))


class Place:
    """Where a role works, as its options say."""

    def __init__(
        self,
        keystore: Path | None,
        chain: str,
        contract: str | None,
        store: str | None,
        confirmations: int | None,
        directory: Path | None,
        max_memory: int,
        policy: Policy | None = None,
    ) -> None:
        self._network = (chain, contract, confirmations)
        self._keystore, self._store = keystore, store
        self._directory, self._policy = directory, policy
        self._max_memory = max_memory
        self.stop = threading.Event()
        """Set it, and everything that waits here ends: for the chain, the store, the next look."""
        self._opened: tuple[VerificationGame, LocalAccount] | None = None

    def contract(self) -> tuple[VerificationGame, LocalAccount]:
        """The contract, and the account that writes to it. Raises CommandError, ChainError."""
        if self._opened is None:
            signer = network.account(self._keystore)
            self._opened = network.open_game(*self._network, signer, stop=self.stop), signer
        return self._opened

    def context(self, role: str, teller: Teller | None) -> RoleContext:
        """Everything that a role is given. Raises CommandError, ChainError, StoreError, OSError."""
        from tiebreak.chain.sender import Sender
        from tiebreak.memory import usable_memory
        from tiebreak.roles.context import RoleContext, RoleLimits
        from tiebreak.roles.notices import ignore
        from tiebreak.roles.policy import Policy

        contract, signer = self.contract()
        directory = self._directory
        if directory is None:
            from platformdirs import user_data_path

            directory = user_data_path("tiebreak") / role / signer.address
        directory.mkdir(parents=True, exist_ok=True)
        sender = Sender(contract.node, signer, directory=directory)
        return RoleContext(
            contract=contract.by(sender),
            sender=sender,
            store=network.open_content(self._store, stop=self.stop),
            directory=directory,
            limits=RoleLimits(memory_bytes=min(self._max_memory, usable_memory())),
            policy=self._policy or Policy(),
            notify=teller.tell if teller is not None else ignore,
        )

    def station_in_time(self, role: str, teller: Teller) -> RoleContext | None:
        """The same, once chain, store and disk can be reached; None if that was not to be before `stop`.

        Raises CommandError and AccountError, and DeploymentError once the chain has said the same several times."""
        from tiebreak.chain.errors import AccountError, ChainError, DeploymentError
        from tiebreak.roles.ending import LOOKS
        from tiebreak.roles.notices import Notice, Warnings, What
        from tiebreak.roles.pauses import Pauses
        from tiebreak.roles.role import sentence
        from tiebreak.store import StoreError
        from tiebreak.store.location import kubo_address

        if self._store is not None:
            kubo_address(self._store)  # a location that cannot be meant is no outage
        pauses, warnings, foreign = Pauses(first=1.0, most=30.0), Warnings(), 0
        while not self.stop.is_set():
            try:
                return self.context(role, teller)
            except (AccountError, FileExistsError, NotADirectoryError):
                raise
            except (ChainError, StoreError, OSError) as error:
                # A node that lags behind shows no contract yet where there is one.
                foreign = foreign + 1 if isinstance(error, DeploymentError) else 0
                if foreign >= LOOKS:
                    raise
                notice = Notice(role=role, what=What.WARNING, text=sentence(error))
                if warnings.is_new(notice):
                    teller.tell(notice)
            self.stop.wait(pauses.next())
        return None


def play(
    name: str,
    place: Place,
    make: Callable[[RoleContext], Role],
    poll: float,
    as_json: bool,
    heartbeat: float = 60.0,
) -> None:
    """Lets a role work until it has finished. The first interrupt lets it stop in good order."""
    from tiebreak.cli import output
    from tiebreak.cli.notices import Teller
    from tiebreak.roles.notices import Progress

    def stop(number: int, frame: FrameType | None) -> None:
        if place.stop.is_set():
            raise KeyboardInterrupt
        place.stop.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    progress = Progress(state="not started")
    try:
        with Teller(as_json=as_json) as teller:
            context = place.station_in_time(name, teller)
            if context is not None:
                role = make(context)
                progress = role.run(poll=poll, heartbeat=heartbeat)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if as_json:
        output.show_json_line({"role": name, "what": "ended", "text": progress.state, "finished": progress.finished})
    elif progress.finished:
        output.show_line(f"Done: {progress.state}.")
    if not progress.finished:
        raise KeyboardInterrupt
