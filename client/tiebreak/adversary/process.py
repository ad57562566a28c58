"""A dishonest party as a process: KIND JOB STEP, then --dir, --poll and --json as for `tiebreak ... run`.

Chain, contract, store and key are in the environment.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import options, quantities, roles

if TYPE_CHECKING:
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.role import Role


class Misbehaviour(StrEnum):
    POISON = "poison"
    """A trainer that trains one step on wrong labels."""
    LIE = "lie"
    """An auditor with fabricated states from one step on."""
    VANISH = "vanish"
    """An auditor as `LIE`, which falls silent after one move."""


def play(
    kind: Misbehaviour,
    job: int,
    step: Annotated[int, typer.Argument(help="Where the rules are broken, counted from 0.")],
    directory: roles.Directory = None,
    poll: roles.Poll = 1.0,
    json: options.Json = False,
) -> None:
    """Takes part in a job, dishonestly."""

    def make(context: RoleContext) -> Role:
        from tiebreak.adversary.desks import silenced
        from tiebreak.adversary.parties import lying_auditor, poisoning_trainer

        if kind is Misbehaviour.POISON:
            return poisoning_trainer(context, job, poisoned_step=step)
        if kind is Misbehaviour.VANISH:
            context = silenced(context, moves=1)
        return lying_auditor(context, job, first_wrong_step=step)

    names = ("TIEBREAK_CHAIN", "TIEBREAK_CONTRACT", "TIEBREAK_STORE")
    chain, contract, store = (os.environ[name] for name in names)
    place = roles.Place(None, chain, contract, store, 0, directory, quantities.memory(options.DEFAULT_MEMORY))
    roles.play("trainer" if kind is Misbehaviour.POISON else "auditor", place, make, poll, json)


if __name__ == "__main__":
    typer.run(play)
