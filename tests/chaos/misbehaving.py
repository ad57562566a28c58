"""Parties that break the rules, in this process or as `misbehave KIND JOB STEP DIRECTORY POLL PUBLISH-EVERY`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from random import Random

from tiebreak import quantities
from tiebreak.cli import option_groups
from tiebreak.cli.network import PartyOptions
from tiebreak.cli.role_process import RoleSetup, play
from tiebreak.contract.game import VerificationGame
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.transactions.sender import Sender
from tiebreak_demo.adversary.parties import lazy_auditor, lying_auditor, poisoning_trainer, silenced

from tests.adversaries import cheating, fabricating_trainer, log_forging_trainer


class Kind(StrEnum):
    """The ways of breaking the rules."""

    POISON = "poison"
    """A trainer with wrong labels in one step."""
    FABRICATE = "fabricate"
    """A trainer whose root has nothing below it."""
    FORGE_LOG = "forge-log"
    """A trainer with the right root, whose log is forged."""
    FALL_SILENT = "fall-silent"
    """A poisoning trainer that stops moving after three moves."""
    RESIGN = "resign"
    """A party with the right root that makes no move. Of a trainer, a liar's challenge wins, and the bonds of those who
    have attested are at stake."""
    LIE = "lie"
    """An auditor with states that nobody has computed."""
    VANISH = "vanish"
    """A lying auditor that falls silent after one move."""
    CHEAT = "cheat"
    """A lying auditor that swaps nodes of its moves."""
    LAZY = "lazy"
    """An auditor that copies the trainer's run."""
    HESITATE = "hesitate"
    """A party that forgets most of its orders, and so is late at times."""
    SLEEP = "sleep"
    """A party that never opens what it sealed."""


TRAINERS = (Kind.POISON, Kind.FABRICATE, Kind.FORGE_LOG, Kind.FALL_SILENT, Kind.RESIGN)
AUDITORS = (Kind.LIE, Kind.VANISH, Kind.CHEAT)
WRONG_CLAIMS = (Kind.POISON, Kind.FABRICATE, Kind.FALL_SILENT)


class _SleepyQueue(TransactionQueue):
    def put(self, order: Order) -> bool:
        return order.call.function not in ("openClaim", "openAudit") and super().put(order)


def _hesitating(draw: Random) -> Callable[[VerificationGame, Sender], TransactionQueue]:
    class HesitatingQueue(TransactionQueue):
        def put(self, order: Order) -> bool:
            return draw.random() < 0.3 and super().put(order)

    return HesitatingQueue


def _restrained(kind: Kind | None, context: RoleContext, draw: Random) -> RoleContext:
    """The context of an honest party, or of one that keeps orders back."""
    match kind:
        case Kind.RESIGN:
            return silenced(context)
        case Kind.SLEEP:
            return replace(context, make_queue=_SleepyQueue)
        case Kind.HESITATE:
            return replace(context, make_queue=_hesitating(draw))
    return context


def trainer_of(
    kind: Kind | None, context: RoleContext, job: int, *, step: int, draw: Random, publish_every: int = 0
) -> TrainerRole:
    """A trainer. kind: None for an honest one. step: the first that is wrong."""
    match kind:
        case Kind.POISON:
            return poisoning_trainer(context, job, poisoned_step=step)
        case Kind.FALL_SILENT:
            return poisoning_trainer(silenced(context, moves=3), job, poisoned_step=step)
        case Kind.FABRICATE:
            return fabricating_trainer(context, job)
        case Kind.FORGE_LOG:
            return log_forging_trainer(context, job)
    return TrainerRole(_restrained(kind, context, draw), job, publish_every=publish_every)


def auditor_of(
    kind: Kind | None, context: RoleContext, job: int, *, step: int, draw: Random, whispered: Path | None = None
) -> AuditorRole:
    """An auditor. kind: None for an honest one. whispered: the trainer's run, which a lazy one copies."""
    match kind:
        case Kind.LIE:
            return lying_auditor(context, job, first_wrong_step=step)
        case Kind.VANISH:
            return lying_auditor(silenced(context, moves=1), job, first_wrong_step=step)
        case Kind.CHEAT:
            return lying_auditor(cheating(context), job, first_wrong_step=step)
        case Kind.LAZY if whispered is not None:
            return lazy_auditor(context, job, whispered=whispered)
    return AuditorRole(_restrained(kind, context, draw), job)


def misbehave(words: Sequence[str]) -> None:
    """Play one of TRAINERS or AUDITORS; all else is in the environment."""
    kind, job, step = Kind(words[0]), int(words[1]), int(words[2])

    def make(context: RoleContext) -> JobRole:
        draw = Random(step)
        if kind in TRAINERS:
            return trainer_of(kind, context, job, step=step, draw=draw, publish_every=int(words[5]))
        return auditor_of(kind, context, job, step=step, draw=draw)

    chain, contract, store = (os.environ[f"TIEBREAK_{name}"] for name in ("CHAIN", "CONTRACT", "STORE"))
    party = PartyOptions(chain=[chain], contract=contract, store=store, confirmations=0, directory=Path(words[3]))
    memory = quantities.memory(option_groups.DEFAULT_MEMORY)
    setup = RoleSetup(party, memory, Policy())
    play("trainer" if kind in TRAINERS else "auditor", setup, make, float(words[4]), True)
