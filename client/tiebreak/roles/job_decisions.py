"""Decisions of the parts of a role in one job, in the manner of `tiebreak.game`: a part reads what the chain shows and
says what is due, and the role alone tells and orders it (`JobRole.carry_out`).

A part yields each action when it has decided on it, and goes on once the role has taken it. So an error later in the
same look takes no decision back: a clock that has run out is claimed although the trees of another game cannot be had.
A part keeps nothing that the chain could take back; after a kill, or a reorganisation, it decides anew.

A call of a function that decides does nothing by itself: another part takes its decisions by `yield from`, and a role
by `carry_out` or `progress_of`. tests/client/roles/test_job_decisions.py finds a call whose decisions nobody takes.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.roles.notices import Progress, What

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a notice about the job, or about the game `game` of it; a warning only if it is new.

    text: one sentence without a full stop."""

    what: What
    text: str
    game: int | None = None


@dataclass(frozen=True, slots=True)
class MakeCall:
    """Order a call of the contract, about the job or about the game `game` of it, to be sent with this look.

    text: what the call does, in one clause."""

    text: str
    call: ContractCall
    game: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the job for the reason `why` (a clause), once it was seen often and deep enough and nothing is owed."""

    why: str


Action = Tell | MakeCall
"""An action of the role, taken when a part yields it."""

Decisions = Generator[Action, bool | None, T]
"""The actions of a part, and then its result. It is sent whether an ordered call was taken: a call that is under way
already, or held back, is not."""

WholeLook = Decisions[Progress | Leave]
"""The decisions of a whole look: the result is the progress, or a reason to leave."""
