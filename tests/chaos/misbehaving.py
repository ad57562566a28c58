"""Parties that break the rules, as processes: `misbehave KIND JOB STEP`; all else is in the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from tiebreak import quantities
from tiebreak.cli import option_groups
from tiebreak.cli.network import PartyOptions
from tiebreak.cli.role_process import RoleSetup, play
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.policy import Policy
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, poisoning_trainer

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
    """A trainer with the right root that makes no move, so that a liar's challenge wins and the bonds of those who have
    attested are at stake."""
    LIE = "lie"
    """An auditor with states that nobody has computed."""
    VANISH = "vanish"
    """A lying auditor that falls silent after one move."""
    CHEAT = "cheat"
    """A lying auditor that swaps nodes of its moves."""


TRAINERS = (Kind.POISON, Kind.FABRICATE, Kind.FORGE_LOG, Kind.FALL_SILENT, Kind.RESIGN)
AUDITORS = (Kind.LIE, Kind.VANISH, Kind.CHEAT)


def misbehave(words: Sequence[str]) -> None:
    """KIND JOB STEP DIRECTORY POLL PUBLISH-EVERY."""
    kind, job, step = Kind(words[0]), int(words[1]), int(words[2])

    def make(context: RoleContext) -> Role:
        match kind:
            case Kind.POISON:
                return poisoning_trainer(context, job, poisoned_step=step)
            case Kind.FALL_SILENT:
                return poisoning_trainer(silenced(context, moves=3), job, poisoned_step=step)
            case Kind.FABRICATE:
                return fabricating_trainer(context, job)
            case Kind.FORGE_LOG:
                return log_forging_trainer(context, job)
            case Kind.RESIGN:
                return TrainerRole(silenced(context), job, publish_every=int(words[5]))
            case Kind.VANISH:
                context = silenced(context, moves=1)
            case Kind.CHEAT:
                context = cheating(context)
        return lying_auditor(context, job, first_wrong_step=step)

    chain, contract, store = (os.environ[f"TIEBREAK_{name}"] for name in ("CHAIN", "CONTRACT", "STORE"))
    party = PartyOptions(chain=[chain], contract=contract, store=store, confirmations=0, directory=Path(words[3]))
    memory = quantities.memory(option_groups.DEFAULT_MEMORY)
    setup = RoleSetup(party, memory, Policy())
    play("trainer" if kind in TRAINERS else "auditor", setup, make, float(words[4]), True)
