"""A party that breaks the rules, as a process: KIND JOB STEP, then --dir, --poll and --json as for `tiebreak ... run`.

Chain, contract, store and key are in the environment.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import options, quantities, roles
from tiebreak.cli.network import PartyOptions

if TYPE_CHECKING:
    from tiebreak.roles.context import RoleContext
    from tiebreak.roles.role import Role


class Kind(StrEnum):
    POISON = "poison"
    """A trainer who trains one step on wrong labels."""
    LIE = "lie"
    """An auditor who makes up all states from one step on."""
    VANISH = "vanish"
    """The same, who falls silent after one move."""


def play(
    kind: Kind,
    job: int,
    step: Annotated[int, typer.Argument(help="Where the rules are broken, counted from 0.")],
    directory: Annotated[Path | None, typer.Option("--dir")] = None,
    poll: roles.Poll = 1.0,
    json: options.Json = False,
) -> None:
    """Takes part in a job, dishonestly."""

    def make(context: RoleContext) -> Role:
        from tiebreak.adversary.desks import silenced
        from tiebreak.adversary.parties import lying_auditor, poisoning_trainer

        if kind is Kind.POISON:
            return poisoning_trainer(context, job, poisoned_step=step)
        if kind is Kind.VANISH:
            context = silenced(context, moves=1)
        return lying_auditor(context, job, first_wrong_step=step)

    names = ("TIEBREAK_CHAIN", "TIEBREAK_CONTRACT", "TIEBREAK_STORE")
    chain, contract, store = (os.environ[name] for name in names)
    party = PartyOptions(chain=chain, contract=contract, store=store, confirmations=0, directory=directory)
    place = roles.Place(party, quantities.memory(options.DEFAULT_MEMORY))
    roles.play("trainer" if kind is Kind.POISON else "auditor", place, make, poll, json)


if __name__ == "__main__":
    typer.run(play)
