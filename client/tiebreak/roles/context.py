"""The role context: chain, content store, directory, limits and policy of a role."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eth_typing import ChecksumAddress

from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.process_resources import usable_memory
from tiebreak.roles.background_jobs import BackgroundJobs, Threads
from tiebreak.roles.engine import Engine
from tiebreak.roles.notices import Notify, OnLook, ignore, unseen
from tiebreak.roles.policy import Policy
from tiebreak.roles.rooms import Rooms
from tiebreak.roles.transaction_queue import TransactionQueue
from tiebreak.rpc.node import DEVELOPMENT_CHAINS
from tiebreak.store import ContentStore
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.spending import Spending


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleLimits:
    """Most resources that a role spends on jobs of others. Bytes, except `steps`."""

    steps: int = 10_000_000
    """Training steps of one job."""
    job_bytes: int = 16 << 30
    log_bytes: int = 16 << 30
    rooms_bytes: int | None = None
    """Files of all jobs together; None: half of their disk."""
    memory_bytes: int = field(default_factory=usable_memory)
    """States, data and intermediate values of one job. By default the usable memory of this machine: the system ends a
    process that takes more, and with it the defence of every other job."""
    wei_per_day: int | None = None
    """Wei put into new undertakings in 24 hours: bonds and their gas. None: any. What was begun is never held back."""
    wei_per_job: int | None = None


@dataclass(frozen=True, kw_only=True)
class RoleContext:
    """The context of a role: what it works with. `contract` writes with `sender`. All files of the role are below
    `directory`, which no other role shares.

    `engine`: trains and audits. `background_jobs`: does long work. `clock`: seconds of this machine, for pauses.
    `make_queue`: makes the transaction queue, which reads the chain and writes to it."""

    contract: VerificationGame
    sender: Sender
    store: ContentStore
    directory: Path
    engine: Engine = field(default_factory=Engine)
    limits: RoleLimits = field(default_factory=RoleLimits)
    policy: Policy = field(default_factory=Policy)
    notify: Notify = ignore
    on_look: OnLook = unseen
    background_jobs: BackgroundJobs = field(default_factory=Threads)
    clock: Callable[[], float] = time.monotonic
    make_queue: Callable[[VerificationGame, Sender], TransactionQueue] = TransactionQueue
    queue: TransactionQueue = field(init=False)
    """The queue of this context; a copy of a context gets a new queue."""
    rooms: Rooms = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "queue", self.make_queue(self.contract, self.sender))
        object.__setattr__(self, "rooms", Rooms(self.directory, self.limits.rooms_bytes))
        place = f"{self.contract.node.chain_id}-{self.contract.address}"
        most = {"per_day": self.limits.wei_per_day, "per_job": self.limits.wei_per_job}
        today = None if self.contract.node.chain_id in DEVELOPMENT_CHAINS else time.time
        self.queue.spending = Spending(self.directory, place, today=today, **most, reserve=self.sender.reserve)

    @property
    def address(self) -> ChecksumAddress:
        return self.sender.address

    def now(self) -> int:
        """Seconds since 1970 by the chain's clock: the timestamp of a block mined now, which is later than the newest
        block's."""
        head = self.queue.watch.head
        return max(self.queue.watch.now(), 0 if head is None else head.timestamp + 1)

    def room(self, job_id: int, job: JobView) -> Path:
        """Directory of a job's files. The spec is part of its name, because other chains count jobs from 1 as well, and
        a reorganisation may give the number to another job."""
        return self.directory / f"job-{job_id}-{job.spec_hash.hex()[:16]}"
