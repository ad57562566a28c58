"""Options for the operation of a role: metrics, log file and notification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import option

if TYPE_CHECKING:
    from tiebreak.operation.metrics import Metrics
    from tiebreak.operation.monitor import RoleMonitor
    from tiebreak.roles.notices import Notify


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Destinations of a role's metrics, log and alerts."""

    panel: ClassVar = "Operation"
    metrics: int | None = option(
        "Serve /metrics (Prometheus), /health and /ready at this port of the loopback interface; 0 for any.",
        metavar="PORT",
        min=0,
        max=65535,
        envvar="TIEBREAK_METRICS",
    )
    log_file: Path | None = option(
        "Write every notice there as JSON lines too, in ten files of 10 MB, the oldest replaced.",
        metavar="FILE",
        envvar="TIEBREAK_LOG_FILE",
    )
    notify: list[str] | None = option(
        "Call a person: POST each alert as JSON to a webhook, or run a command with it on standard input. Repeatable. "
        "For: funds low, a clock half gone, the referee called, chain or store away, disk nearly full, a role that is "
        "stuck or has ended.",
        metavar="URL|COMMAND",
    )

    @contextmanager
    def monitor(self, role: str, tell: Notify) -> Iterator[RoleMonitor]:
        """Give the monitor of a role, until the block ends. Raises CommandError, WrongUsage."""
        from tiebreak.operation.messenger import Messenger, target
        from tiebreak.operation.monitor import RoleMonitor, RotatingLog
        from tiebreak.roles.notices import Notice, What

        try:
            targets = [target(text) for text in self.notify or []]
        except ValueError as error:
            raise WrongUsage(str(error)) from None
        metrics = _metrics(role) if self.metrics is not None else None
        try:
            log = RotatingLog(self.log_file) if self.log_file is not None else None
        except OSError as error:
            raise CommandError(
                f"the log file {self.log_file} cannot be written ({error.strerror}): choose another place."
            ) from error
        monitor = RoleMonitor(role, tell, messenger=Messenger(targets) if targets else None, log=log, metrics=metrics)
        endpoint = None
        if metrics is not None and self.metrics is not None:
            from tiebreak.operation.metrics import CONTENT_TYPE, Endpoint

            paths = {"/health": monitor.health, "/ready": monitor.ready}
            try:
                endpoint = Endpoint(self.metrics, lambda: (CONTENT_TYPE, metrics.text()), paths)
            except OSError as error:
                raise CommandError(f"port {self.metrics} cannot be used ({error.strerror}): choose another.") from error
            monitor.notice(Notice(role=role, what=What.COMPUTED, text=f"serves its metrics at {endpoint.url}/metrics"))
        monitor.start()
        try:
            yield monitor
        finally:
            monitor.close()
            if endpoint is not None:
                endpoint.close()


def _metrics(role: str) -> Metrics:
    try:
        from tiebreak.operation.metrics import Metrics
    except ImportError as error:
        raise CommandError(
            f"--metrics needs {error.name}, which is not installed: pip install 'tiebreak[operate]'."
        ) from error
    return Metrics(role)
