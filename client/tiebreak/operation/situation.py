"""The situation of a role at one moment, from its last look and from probes: what alarms and metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.notices import Look
from tiebreak.rpc.node_agreement import ALONE, NodeAgreement


@dataclass(frozen=True, slots=True, kw_only=True)
class GameState:
    """A live game of this account. Times in seconds by the chain's clock; `left` is None for a referee, who has no
    chess clock. `called`: whether the referee is asked."""

    job: int
    game: int
    left: int | None
    allowance: int
    called: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A deadline of this account that is no game's, such as that of an opening or an appeal. `at`: chain time; `left`:
    seconds until then."""

    at: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measurements taken beside the role's looks. None: not known now. Amounts in wei. `needed`: the gas of all
    disputes that the account has, and of one at least. `store_error`: why the store cannot be used; empty if it can.
    `reserve_missing`: bytes that were given up of those kept for records of payments."""

    balance: int | None = None
    needed: int | None = None
    store_error: str | None = None
    disk_free: int | None = None
    reserve_missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The situation. `at`: seconds of this machine's steady clock. `looked_at`: when the role last ended a look, with
    success or without; None before the first. `chain_error`: why the chain cannot be read; empty if it can, None if it
    was not tried yet. `agreement`: of the chain's nodes, at the last look. `late_ranks`: the ranks that keep the others
    waiting, in a sentence; empty if none do."""

    at: float
    started_at: float
    looked_at: float | None = None
    chain_error: str | None = None
    look: Look | None = None
    games: tuple[GameState, ...] = ()
    due: Due | None = None
    probe: Probe = Probe()
    agreement: NodeAgreement = ALONE
    late_ranks: str = ""


def games_of(
    jobs: dict[int, JobView], games: dict[int, GameView], account: ChecksumAddress, now: int
) -> tuple[GameState, ...]:
    """The live games in which an account is a party, or which ask it as their referee. now: the chain's time."""
    found = []
    for number, game in sorted(games.items()):
        job = jobs.get(game.job)
        if game.outcome or game.phase is Phase.OVER or job is None:
            continue
        side = next((side for side in Side if game.party(side) == account), None)
        called = game.phase is Phase.REFEREE
        if side is None and not (called and job.spec.referee == account):
            continue
        left = None
        if side is not None:
            clock = game.clocks[side]
            left = max(0, clock.remaining - (now - clock.started_at if clock.started_at else 0))
        found.append(
            GameState(job=game.job, game=number, left=left, allowance=job.terms.clock_allowance, called=called)
        )
    return tuple(found)


def due_of(look: Look, games: tuple[GameState, ...], now: int) -> Due | None:
    """The deadline that a look names, unless it is a game's. now: the chain's time."""
    deadline = look.progress.deadline
    if deadline is None:
        return None
    left = max(0, deadline - now)
    return None if any(left == game.left for game in games) else Due(at=deadline, left=left)
