"""A round of processes, planned from its seed: who takes part, and how bad the weather is."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from tests.chaos.jobs import INTERVAL, KINDS, STEPS
from tests.chaos.misbehaving import AUDITORS, TRAINERS, Kind


class Trouble(StrEnum):
    """The kinds of trouble, for everybody or for one party."""

    KILL = "kill"
    STOP = "stop"
    REORGANISATION = "reorganisation"
    FEE_SPIKE = "fee spike"
    HALT = "halted mining"
    JUMP = "clock jump"
    OUTAGE = "node down"
    FULL_DISK = "full disk"
    READ_ONLY_DISK = "read-only disk"
    DAMAGED_BLOCK = "damaged store block"
    MISSING_BLOCK = "missing store block"


class Audits(StrEnum):
    """The kinds of audits that a job asks for."""

    FREE = "free"
    OPEN = "open"
    """Audits with a bond, which are paid."""
    BLIND = "blind"
    """Paid audits that are sealed before the claim is known."""


_USUAL = (Audits.FREE, Audits.FREE, Audits.OPEN, Audits.BLIND)

FAULTS = (
    *Trouble,
    *(Trouble.KILL,) * 5,
    *(Trouble.REORGANISATION,) * 3,
    *("nothing",) * 10,
)
"""How often each strikes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a round, which its seed decides.

    trainer: None for an honest one. challengers: dishonest ones. auditors: honest ones. twin: the honest party of which
    a second process runs with the same key. following: who looks for jobs by itself instead of being told one. rival:
    whether another customer's job has the same number at first, until a reorganisation gives it to this one. audits:
    what the job asks for. by_ranks: who runs as two ranks. by_workers: auditors with a worker, whose trainer publishes
    checkpoints. gateway: whether each party has a folder of its own, and reads those of others through a gateway that
    drips; then somebody without an account trains the job, too, from data that lie behind it. several: whether each
    honest party asks three nodes, of which one lies, and the others are always there."""

    seed: int
    job: int
    confirmations: int
    trainer: Kind | None
    wrong_step: int
    challengers: tuple[Kind, ...]
    auditors: int
    twin: str | None
    following: frozenset[str]
    rival: bool
    rates: dict[str, float]
    log_range: int | None
    audits: Audits
    by_ranks: frozenset[str]
    by_workers: frozenset[str]
    gateway: bool
    several: bool = False

    @property
    def appeals(self) -> bool:
        """Whether the claim is right, is lost on purpose, and has attestations whose bonds appeals are to save."""
        return self.trainer is Kind.RESIGN

    @property
    def honest(self) -> list[str]:
        return _honest(self.trainer, self.auditors)

    @property
    def targets(self) -> list[str]:
        """Honest parties; those with most to do are hit most."""
        return [*[name for name in self.honest if name != "referee"] * 3, "referee"]

    def describe(self) -> str:
        """The plan in one line."""
        told = f"seed {self.seed}: {self.trainer or 'honest'} trainer, {self.auditors} auditors ({self.audits})"
        told += f", {len(self.challengers)} liars"
        for how, names in (("ranks", self.by_ranks), ("workers", self.by_workers)):
            told += f", by {how}: {' '.join(sorted(names))}" if names else ""
        told += ", data elsewhere" if self.gateway else ""
        return told + (", three nodes, of which one lies" if self.several else "")


def _honest(trainer: Kind | None, auditors: int) -> list[str]:
    return [*(["trainer"] if trainer is None else []), *(f"auditor-{i}" for i in range(auditors)), "referee"]


def plan(seed: int, *, appeals: bool = False) -> Plan:
    """The plan of a seed. appeals: whether appeals are to be held in any case."""
    draw = random.Random(seed)
    wrong_step = draw.randrange(STEPS)
    trainer = None if draw.random() < 0.45 else draw.choice(TRAINERS)
    trainer = Kind.RESIGN if appeals else trainer
    honest_claim = trainer in (None, Kind.FORGE_LOG, Kind.RESIGN)
    challengers = tuple(draw.choice(AUDITORS) for _ in range(draw.choice((1, 1, 2)) if honest_claim else 0))
    if trainer is Kind.RESIGN:
        challengers = (Kind.LIE,) * len(challengers)  # somebody has to win, and who vanishes loses with the trainer
        # In the middle of an interval a lie of one place may be rounded away before anybody sees a root of it.
        wrong_step += INTERVAL - 1 - wrong_step % INTERVAL
    auditors = draw.choice((1, 1, 2) if honest_claim else (1, 2, 2))
    honest = _honest(trainer, auditors)
    twins = [name for name in honest if name != "referee"]
    made = Plan(
        seed=seed,
        job=draw.randrange(len(KINDS)),
        confirmations=draw.choice((1, 2, 3)),
        trainer=trainer,
        wrong_step=wrong_step,
        challengers=challengers,
        auditors=auditors,
        twin=draw.choice(twins) if draw.random() < 0.25 else None,
        following=frozenset(name for name in twins if draw.random() < 0.5),
        rates={name: draw.choice((0.0, 0.02, 0.05, 0.12)) for name in [*honest, "customer"]},
        log_range=draw.choice((None, 100, 10)),
        rival=draw.random() < 0.3,
        audits=draw.choice((Audits.OPEN, Audits.BLIND) if trainer is Kind.RESIGN else _USUAL),
        by_ranks=frozenset(),
        by_workers=frozenset(),
        gateway=False,
    )
    by_ranks = frozenset(name for name in twins if draw.random() < 0.3)
    by_workers = frozenset(name for name in twins if name != "trainer" and draw.random() < 0.3)
    gateway = draw.random() < 0.3
    made = replace(made, by_ranks=by_ranks, by_workers=by_workers - by_ranks, gateway=gateway)
    if draw.random() < 0.75:
        return made
    return replace(made, several=True, rates=dict.fromkeys(made.rates, 0.0))
