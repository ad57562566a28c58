"""What every role is given: its view of the chain, its content store, its directory, and what it will risk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from eth_typing import ChecksumAddress

from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import Job
from tiebreak.chain.sender import Sender
from tiebreak.memory import usable_memory
from tiebreak.roles.notices import Notify, ignore
from tiebreak.roles.policy import Policy
from tiebreak.store import ContentStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a role is willing to spend on strangers. Bytes, except `steps`."""

    steps: int = 10_000_000
    """Training steps of one job."""
    job_bytes: int = 16 << 30
    log_bytes: int = 16 << 30
    memory_bytes: int = field(default_factory=usable_memory)
    """States, data and intermediate values of one job."""
    micro_batches: int = 1
    """Into how many parts an auditor cuts every batch; where there are fewer samples, into so many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Station:
    """`contract` writes with `sender`. Everything the role keeps is below `directory`, which no other role shares."""

    contract: VerificationGame
    sender: Sender
    store: ContentStore
    directory: Path
    limits: Limits = field(default_factory=Limits)
    policy: Policy = field(default_factory=Policy)
    notify: Notify = ignore

    @property
    def address(self) -> ChecksumAddress:
        return self.sender.address

    def now(self) -> int:
        """Seconds since 1970, by the chain's clock."""
        return self.contract.node.now()

    def room(self, job_id: int, job: Job) -> Path:
        """Where the files of a job lie. The spec is part of the name, because another chain counts from 1 as well."""
        return self.directory / f"job-{job_id}-{job.spec_hash.hex()[:16]}"
