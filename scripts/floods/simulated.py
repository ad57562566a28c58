"""Simulated time: an anvil whose blocks are mined by hand, and background jobs in which executing steps takes its
time.

What is real: the contract's code on an EVM, gas, blocks that can be full, the roles, their sender and their batches.
What is simulated: how late it is, how long the machine of a role works, and the signatures of puppets.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import requests
from roundlog.training.run import Run
from tiebreak.devnet.launcher import find_anvil
from tiebreak.roles.background_jobs import BackgroundJob, BackgroundJobs, Lane, Priority, order
from tiebreak.transactions.keys import ACCOUNTS, BALANCE, MNEMONIC

BLOCK_GAS = 36_000_000
"""Gas limit of a block of Ethereum in 2025."""

T = TypeVar("T")
_LISTENING = re.compile(r"Listening on 127\.0\.0\.1:(\d+)")


class Time:
    """The clock: seconds since 1970. Starts at a full block."""

    def __init__(self, now: int, block: int) -> None:
        self.now, self.block = float(now), block

    def __call__(self) -> float:
        return self.now

    def next_block(self, at: float = 0.0) -> int:
        """The first instant of a block after now that is not before `at`."""
        wanted = max(at, self.now + 1e-6)
        return int(-(-wanted // self.block) * self.block)


class Chain:
    """An anvil that takes transactions of any account unsigned, if its key is not known, and mines when it is told."""

    def __init__(self, block: int) -> None:
        binary = find_anvil()
        if binary is None:
            raise SystemExit("anvil is not installed: run npm ci")
        start = int(time.time()) // block * block
        with tempfile.TemporaryFile() as output:
            arguments = [
                *(str(binary), "--host", "127.0.0.1", "--port", "0", "--mnemonic", MNEMONIC, "--auto-impersonate"),
                *("--accounts", str(ACCOUNTS), "--balance", str(BALANCE // 10**18), "--hardfork", "prague"),
                *("--gas-limit", str(BLOCK_GAS), "--timestamp", str(start), "--prune-history", "300"),
            ]
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            found = None
            while found is None and self._process.poll() is None:
                time.sleep(0.01)
                found = _LISTENING.search(os.pread(output.fileno(), 1 << 16, 0).decode("utf-8", "replace"))
            if found is None:
                raise SystemExit("anvil did not start")
        self.url = f"http://127.0.0.1:{found[1]}"
        self._session = requests.Session()
        self.time = Time(start, block)
        self.blocks = 0

    def rpc(self, method: str, *params: Any) -> Any:
        """Raises ValueError for what the node refuses."""
        body: Any = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = self._session.post(self.url, json=body, timeout=120).json()
        if (error := answer.get("error")) is not None:
            raise ValueError(f"{method}: {error.get('message')}")
        return answer.get("result")

    def by_hand(self) -> None:
        """Lets blocks come by `mine` only, from now on."""
        newest = int(self.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
        self.time.now = newest
        self.rpc("evm_setAutomine", False)

    def mine(self, at: float = 0.0) -> None:
        """The next block: the first that may be at `at` or later."""
        self.time.now = self.time.next_block(at)
        self.rpc("evm_setNextBlockTimestamp", int(self.time.now))
        self.rpc("evm_mine")
        self.blocks += 1

    @property
    def waiting(self) -> int:
        """Transactions that wait for a block."""
        status = self.rpc("txpool_status")
        return int(status["pending"], 16) + int(status["queued"], 16)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._session.close()


class Meter:
    """Counts the training steps that are executed anywhere in this process."""

    def __init__(self) -> None:
        self.steps = 0
        self._before = Run.step

    def __enter__(self) -> Meter:
        before, meter = self._before, self

        def counted(run: Run, *arguments: Any, **options: Any) -> Any:
            meter.steps += 1
            return before(run, *arguments, **options)

        Run.step = counted  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Run.step = self._before  # type: ignore[method-assign]


class _SlowBackgroundJob(BackgroundJob[T]):
    """Work that is done when the simulated time has come."""

    ready = float("inf")
    clock: Callable[[], float]

    @property
    def done(self) -> bool:
        return self._over.is_set() and self.clock() >= self.ready


class SlowBackgroundJobs(BackgroundJobs):
    """Does work in the roles' order, lane by lane; a training step takes `step` simulated seconds, and
    what executes none takes `least`."""

    def __init__(self, clock: Time, meter: Meter, *, step: float, least: float = 1.0) -> None:
        self._clock, self._meter = clock, meter
        self._step, self._least = step, least
        self._begun: dict[Hashable, _SlowBackgroundJob[Any]] = {}
        self._queued: dict[Lane, dict[Hashable, _SlowBackgroundJob[Any]]] = {lane: {} for lane in Lane}
        self._free_at = {lane: [0.0] * lane.width for lane in Lane}
        self.busy = 0.0
        """Seconds of work done so far, without fetching."""

    def ask(
        self, lane: Lane, key: Hashable, work: Callable[[BackgroundJob[T]], T], priority: Priority, doing: str = ""
    ) -> BackgroundJob[T]:
        if (known := self._begun.get(key)) is None:
            known = _SlowBackgroundJob(lane, key, work, priority, doing)
            known.clock = self._clock
            self._begun[key] = self._queued[lane][key] = known
        known.priority = priority
        return known

    def forget(self, key: Hashable) -> None:
        if (background_job := self._begun.pop(key, None)) is not None:
            self._queued[background_job.lane].pop(key, None)

    def promised(self, key: Hashable) -> float:
        runs = [one for other, one in self._queued[Lane.RUNS].items() if other != key and one.priority.bonded]
        return sum(one.measured().seconds for one in runs)

    def close(self, patience: float = 1.0) -> bool:
        return True

    def work(self) -> None:
        """Begins whatever can begin now."""
        for lane, waiting in self._queued.items():
            while waiting and min(self._free_at[lane]) <= self._clock():
                first = order({key: one.priority for key, one in waiting.items()}, self._clock())[0]
                background_job, before = waiting.pop(first), self._meter.steps
                background_job.run()
                seconds = max(self._least, (self._meter.steps - before) * self._step)
                place = self._free_at[lane].index(min(self._free_at[lane]))
                self._free_at[lane][place] = background_job.ready = self._clock() + seconds
                self.busy += seconds if lane is not Lane.FILES else 0.0

    def next_end(self) -> float:
        """Instant at which the next piece of work ends; infinite if none is under way."""
        ends = [at for lane in self._free_at.values() for at in lane if at > self._clock()]
        return min(ends, default=float("inf"))
