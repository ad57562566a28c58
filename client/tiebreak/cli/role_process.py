"""The process of a role: what it opens, how it ends, and the other ranks where torchrun has started several.

Rank 0 is the role, with its key, its chain and its bonds. The others have none of these, and help it with steps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from rich.markup import escape

from tiebreak.cli import output
from tiebreak.cli.failures import WrongUsage, extra
from tiebreak.cli.network import PartyOptions
from tiebreak.cli.option_groups import SpendingLimits, option
from tiebreak.cli.ranks import RankGroup, rank_group, refuse_ranks
from tiebreak.roles.notices import Notice, What, plain, time_of
from tiebreak.rpc.chain_errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundlog.training import Helpers, RunOptions

    from tiebreak.contract.game import VerificationGame
    from tiebreak.operation.monitor import RoleMonitor
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.job_role import Role
    from tiebreak.roles.notices import Notify, OnLook
    from tiebreak.roles.policy import Policy
    from tiebreak.transactions.signer import Key


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Destinations of a role's metrics and alerts."""

    panel: ClassVar = "Operation"
    metrics: int | None = option(
        "Serve /metrics (Prometheus), /health and /ready at this port of the loopback interface; 0 for any.",
        metavar="PORT",
        min=0,
        max=65535,
        envvar="TIEBREAK_METRICS",
    )
    notify: list[str] | None = option(
        "Call a person: POST each alert as JSON to a webhook, or run a command with it on standard input. Repeatable. "
        "For: funds low, half of a clock or of a window gone.",
        metavar="URL|COMMAND",
    )

    @contextmanager
    def monitor(self, role: str, tell: Notify) -> Iterator[RoleMonitor]:
        """Give the monitor of a role, until the block ends. Raises CommandError, WrongUsage."""
        from tiebreak.operation.monitor import Messenger, RoleMonitor, check_target

        try:
            targets = [check_target(text) for text in self.notify or []]
        except ValueError as error:
            raise WrongUsage(str(error)) from None
        monitor = RoleMonitor(role, tell, messenger=Messenger(targets))
        with ExitStack() as stack:
            if self.metrics is not None:
                with extra("operate", "--metrics needs"):
                    from tiebreak.operation.metrics import Metrics, endpoint
                answers = {"/health": monitor.health, "/ready": monitor.ready}
                server = endpoint(self.metrics, Metrics(monitor).text, answers)
                stack.callback(server.stop)
                text = f"serves its metrics at {server.url}/metrics"
                monitor.notice(Notice(role=role, what=What.COMPUTED, text=text))
            stack.callback(monitor.close)
            monitor.start()
            yield monitor


@dataclass(eq=False)
class RoleSetup:
    """The chain, store and directory of a role, opened as its options say."""

    party: PartyOptions
    max_memory: int
    policy: Policy | None = None
    options: RunOptions | None = None
    spending: SpendingLimits = field(default_factory=SpendingLimits)
    helpers: Helpers | None = None
    """The other ranks, if there are some."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set it, and everything that waits here ends: for the chain, the store, the next look."""
    _opened: tuple[VerificationGame, Key] | None = None

    def contract(self) -> tuple[VerificationGame, Key]:
        """Open the contract, and the account that writes to it. Raises CommandError, ChainError."""
        if self._opened is None:
            signer = self.party.key(stop=self.stop)
            self._opened = self.party.open_game(signer, stop=self.stop), signer
        return self._opened

    def context(self, role: str, notify: Notify, on_look: OnLook = lambda progress, outage: None) -> RoleContext:
        """Make the context of a role. Raises CommandError, ChainError, StoreError, OSError."""
        from roundlog.training import RunOptions

        from tiebreak.process_resources import usable_memory
        from tiebreak.roles.context import RoleContext, RoleLimits
        from tiebreak.roles.engine import Engine
        from tiebreak.roles.notices import of_warnings
        from tiebreak.roles.policy import Policy
        from tiebreak.roles.published_content import PublishedContent
        from tiebreak.transactions.sender import Sender

        contract, signer = self.contract()
        directory = self.party.directory
        if directory is None:
            from platformdirs import user_data_path

            directory = user_data_path("tiebreak") / role / signer.address
        directory.mkdir(parents=True, exist_ok=True)
        sender = Sender(contract.node, signer, directory=directory)
        store = self.party.open_content(stop=self.stop, warn=of_warnings(role, notify))
        return RoleContext(
            contract=contract.by(sender),
            sender=sender,
            store=PublishedContent(store, directory),
            directory=directory,
            engine=Engine(options=self.options or RunOptions(), helpers=self.helpers, warn=of_warnings(role, notify)),
            limits=RoleLimits(
                memory_bytes=min(self.max_memory, usable_memory()),
                wei_per_day=self.spending.spend_per_day,
                wei_per_job=self.spending.spend_per_job,
                rooms_bytes=self.spending.most_disk,
            ),
            policy=self.policy or Policy(),
            notify=notify,
            on_look=on_look,
        )

    def context_in_time(self, role: str, monitor: RoleMonitor) -> RoleContext | None:
        """Make the context of a role, once chain, store and disk can be reached; None if `stop` was set before that.

        Raises CommandError and AccountError, the latter also for a directory in which another process works, and
        DeploymentError once the chain has said the same several times."""
        from tiebreak.http_client import Pauses
        from tiebreak.roles.job_role import LOOKS
        from tiebreak.roles.notices import of_warnings, sentence
        from tiebreak.rpc.chain_errors import AccountError, ChainError, DeploymentError
        from tiebreak.store import StoreError, require_daemon

        require_daemon(self.party.places(), self.party.pin_service)  # what is wrong for good is no outage
        pauses, warn, foreign = Pauses(first=1.0, most=30.0), of_warnings(role, monitor.notice), 0
        while not self.stop.is_set():
            try:
                context = self.context(role, monitor.notice, monitor.look)
                context.sender.open()  # two processes in one directory would write the same records
                monitor.attach(context)
                return context
            except (AccountError, FileExistsError, NotADirectoryError):
                raise
            except (ChainError, StoreError, OSError) as error:
                # A node that lags behind shows no contract yet where there is one.
                foreign = foreign + 1 if isinstance(error, DeploymentError) else 0
                if foreign >= LOOKS:
                    raise
                monitor.unreachable(error)
                warn(sentence(error))
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
    *,
    by_ranks: bool = False,
) -> None:
    """Let a role work until it has finished. The first interrupt lets it stop in good order. retention: seconds to
    keep what it has published after the end of a job; None to keep it for ever. by_ranks: whether other ranks can help
    it; on them, this returns when the role has ended."""
    from tiebreak.roles.notices import Progress
    from tiebreak.roles.published_content import Keeper, PublishedContent

    if not by_ranks:
        # Each of them would send the same transactions.
        refuse_ranks("tiebreak job collect" if name == "customer" else f"tiebreak {name} run")
    with rank_group() if by_ranks else nullcontext(RankGroup(None)) as ranks:
        if ranks.helps(setup.max_memory, setup.options):
            return
        setup.options = ranks.on_device(setup.options)
        with ranks.helpers() as setup.helpers:
            progress = Progress(state="not started")
            with (
                _stopped_by_signals(setup),
                closing(NoticePrinter(as_json=as_json)) as printer,
                (operation or Operation()).monitor(name, printer.show) as monitor,
            ):
                context = setup.context_in_time(name, monitor)
                if context is not None:
                    with closing(context.sender):
                        role = make(context)
                        assert isinstance(context.store, PublishedContent), "RoleSetup makes it"
                        keeper = Keeper(name, context.store, context.contract, monitor.notice, retention)
                        keeper.start(setup.stop)
                        progress = role.run(poll=poll, heartbeat=heartbeat)
                        if progress.finished:
                            keeper.round()  # the time of what was published runs from the end of the job
            if as_json:
                about = {"role": name, "what": "ended", "text": progress.state, "finished": progress.finished}
                output.show_json_line(about)
            elif progress.finished:
                output.show_line(f"Done: {progress.state}.")
            if not progress.finished:
                raise KeyboardInterrupt


@contextmanager
def _stopped_by_signals(setup: RoleSetup) -> Iterator[None]:
    """Make a block in which Ctrl-C and SIGTERM set `setup.stop`, and Ctrl-C again ends it where there are no other
    ranks."""

    def stop(number: int, frame: FrameType | None) -> None:
        if setup.stop.is_set():
            if setup.helpers is None:
                raise KeyboardInterrupt
            # A launcher passes on what the terminal has sent already, and kills a process that takes too long.
            return
        setup.stop.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_STYLES = {What.SENT: "green", What.WARNING: "yellow", What.ALERT: "bold red", What.HEARTBEAT: "dim"}


class NoticePrinter:
    """Printer of notices. A context gets its `show`, which may be called from several threads; `close` ends the last
    progress bar."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._bar: output.Steps | None = None
        self._lock = threading.RLock()

    def show(self, notice: Notice) -> None:
        """Show one notice."""
        if self._as_json:
            output.show_json_line(plain(notice))
            return
        with self._lock:
            self._print(notice)

    def _print(self, notice: Notice) -> None:
        if notice.what is What.STEP:
            self._step(notice)
            return
        self.close()
        about = " ".join(
            f"{name} {value}" for name, value in (("job", notice.job), ("game", notice.game)) if value is not None
        )
        gas = f" [dim]({notice.receipt.gas_used:,} gas)[/]" if notice.receipt is not None else ""
        style = _STYLES.get(notice.what, "default")
        head = f"[dim]{time_of(notice)} {notice.role} {about}[/]"
        text = f"[{style}]{escape(printable(notice.text))}[/]"
        output.results().print(f"{head}  {text}{gas}", soft_wrap=True)
        output.flush()

    def _step(self, notice: Notice) -> None:
        name = f"{notice.role}: {printable(notice.text)}"
        note = f"loss {notice.loss:.4f}" if notice.loss is not None else ""
        if self._bar is None or self._bar.name != name:
            self.close()
            self._bar = output.Steps(name, notice.total)
        self._bar.done(notice.done, note)

    def close(self) -> None:
        """End the progress bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
