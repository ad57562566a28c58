"""The parties of a round as processes: started, killed, stopped and started again, and read."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from eth_account.signers.local import LocalAccount
from tiebreak.transactions.keys import KEY_VARIABLE

from tests.chaos.disks import Disk

SECONDS_TO_END = 6.0
"""Time to end after a stop signal, on a machine that has nothing else to do."""

_UNEXPECTED = ("Traceback (most recent call last)", "a defect of Tiebreak", "gave up the work on job")
_PROGRAMMING = re.compile(r"\b(Type|Attribute|Key|Index|Name|Assertion|UnboundLocal|Recursion|ZeroDivision)Error\b.*")
"""Names of errors that a role outlives and that are mistakes in the program."""

_FORKS = multiprocessing.get_context("forkserver")


def slowness() -> float:
    """The factor by which everything may take longer, because other programs use the processors as well."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def start_fork_server() -> None:
    """Import all that roles need, once, in a process of its own. Call it before any thread is started."""
    os.environ["CHAOS_FORK_SERVER"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    _FORKS.set_forkserver_preload(["tests.chaos.living"])
    forkserver.ensure_running()
    del os.environ["CHAOS_FORK_SERVER"]


@dataclass(slots=True)
class Party:
    """Somebody with an account and a directory. words: the command line, after `tiebreak`.

    lasting: runs until it is stopped, like one that follows all jobs. by_ranks: runs as two ranks, of which the other
    one has no key."""

    name: str
    account: LocalAccount
    honest: bool
    words: Sequence[str]
    environment: dict[str, str]
    disk: Disk
    output: Path
    lasting: bool = False
    by_ranks: bool = False
    helper: ForkServerProcess | None = None
    helper_stands: bool = False
    helper_killed: bool = False
    process: ForkServerProcess | None = None
    kills: int = 0
    ended_well: bool = False
    start_again_at: float | None = None
    problems: list[str] = field(default_factory=list)
    _read: int = 0
    _said_before: int = 0

    def start(self) -> None:
        from tests.chaos.living import live

        self.start_again_at, self.ended_well, self.helper_killed = None, False, False
        self.end_helper()
        self._said_before = len(self.said())
        environment = self.environment
        if self.by_ranks:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = str(free.getsockname()[1])
            environment = environment | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            without_key = {name: value for name, value in environment.items() if name != KEY_VARIABLE}
            self.helper = self._started(live, without_key | {"RANK": "1"})
            environment = environment | {"RANK": "0"}
        self.process = self._started(live, environment)

    def _started(self, live: Callable[..., None], environment: dict[str, str]) -> ForkServerProcess:
        arguments = (list(self.words), environment, str(self.output), str(self.disk.directory), str(self.disk.sign))
        # Not as a daemon, which may have no workers.
        process = _FORKS.Process(target=live, args=arguments)
        process.start()
        return process

    def end_helper(self, seconds: float = 0.0) -> None:
        """End the other rank, which has so many seconds to end by itself."""
        if self.helper is None:
            return
        # A rank 0 that ends before the other one has come has nobody to tell, and that one waits five minutes for it,
        # unless the launcher ends it. A role has said something once its ranks have met.
        have_met = '"role"' in self.said()[self._said_before :]
        if have_met and not self.helper_stands:
            self.helper.join(seconds)
        if seconds and have_met and self.helper.is_alive() and not self.helper_stands:
            self.problems.append(f"its other rank is still alive {seconds:.0f} s after rank 0 has ended")
        self.helper.kill()
        self.helper.join()
        self.helper, self.helper_stands = None, False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def kill(self, pause: float) -> None:
        """End the process at once, to start it again after `pause` seconds."""
        if self.running and self.process is not None:
            self.process.kill()
            self.process.join()
            self.kills += 1
            self.start_again_at = time.monotonic() + pause

    def kill_helper(self) -> None:
        """End the other rank at once."""
        if self.helper is not None:
            self.helper.kill()
            self.kills += 1
            self.helper_killed = True

    def stand(self) -> Callable[[], None]:
        """Let the other rank stand still; returns what lets it go on."""
        helper = self.helper
        if helper is None or helper.pid is None or not helper.is_alive():
            return lambda: None
        os.kill(helper.pid, signal.SIGSTOP)
        self.helper_stands = True

        def go_on() -> None:
            if self.helper is helper and helper.pid is not None and helper.is_alive():
                os.kill(helper.pid, signal.SIGCONT)
                self.helper_stands = False

        return go_on

    def stop(self, pause: float | None) -> None:
        """Tell the process to stop, which takes it no more than a few seconds."""
        if not self.running or self.process is None or self.process.pid is None:
            return
        before = time.monotonic()
        self.process.terminate()
        self.process.join(SECONDS_TO_END * slowness())
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
            self.problems.append(f"still alive {time.monotonic() - before:.0f} s after SIGTERM")
            self.process.kill()
            self.process.join()
        self.end_helper(SECONDS_TO_END * slowness())
        self.start_again_at = None if pause is None else time.monotonic() + pause

    def look(self) -> None:
        """Notice that the process has ended by itself, and starts it again where it must not have."""
        if self.start_again_at is not None:
            if time.monotonic() >= self.start_again_at:
                self.start()
            return
        if self.process is None or self.process.is_alive() or self.ended_well:
            return
        if self.process.exitcode == 0:
            self.end_helper(SECONDS_TO_END * slowness())
            self.ended_well = True
            return
        # A rank that is killed before it has come is not replaced by a role: whoever starts all of them does that.
        lacks_a_rank = self.helper_killed and '"code": "ranks"' in self.last_words()
        if self.honest and not lacks_a_rank:
            self.problems.append(f"gave up with exit {self.process.exitcode}: {self.last_words()}")
        self.start_again_at = time.monotonic() + 1.0

    def said(self) -> str:
        return self.output.read_text("utf-8", "replace") if self.output.exists() else ""

    def last_words(self) -> str:
        lines = [line for line in self.said().strip().splitlines() if line.strip()]
        return lines[-1][-300:] if lines else "it said nothing"

    def complaints(self) -> list[str]:
        """Findings in the output that no role may ever print."""
        text = self.said()
        found = [f"printed {sign!r}: {_around(text, sign)}" for sign in _UNEXPECTED if sign in text]
        found += [f"met a mistake in the program: {one[0][:300]}" for one in [_PROGRAMMING.search(text)] if one]
        warnings = Counter(
            re.sub(r"\d+", "#", str(one.get("text"))) for one in _notices(text) if one.get("what") == "warning"
        )
        found += [f"repeated {count} times: {what}" for what, count in warnings.items() if count > 40]
        return found


def _notices(text: str) -> list[dict[str, object]]:
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a killed process has not finished its last line
    return found


def _around(text: str, sign: str) -> str:
    place = text.index(sign)
    lines = text[place : place + 4000].splitlines()
    ends = [line for line in lines[1:] if line and not line.startswith((" ", "{"))]
    return (ends[0] if ends else lines[0])[:300]
