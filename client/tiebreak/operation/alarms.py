"""The situation of a role at one moment, from its last look and from probes; and alarms: from situations to the alerts
that a person is called for, once for each cause.

An alarm is raised when its condition has held for a while, and ends when the opposite has: a value that swings around a
limit, or a node that fails every other second, calls once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles.notices import Look
from tiebreak.rpc.transport import ALONE, NodeAgreement


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
        left = None if side is None else game.left(side, now)
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


LEAST_DISK = 2 << 30
"""Free bytes below which the disk counts as nearly full. A dispute's trees take less; a training's checkpoints may
take more."""

OUTAGE_SECONDS = 60.0
"""Seconds that an outage lasts before it is told, and that all is well before it counts as over."""

STUCK_SECONDS = 300.0
"""Seconds without the end of a look, after which a role counts as stuck. A look's requests give up after 30 seconds."""


class Cause(StrEnum):
    """Cause for which a person is called."""

    FUNDS_LOW = "funds-low"
    CLOCK_HALF_GONE = "clock-half-gone"
    REFEREE_CALLED = "referee-called"
    CHAIN_UNREACHABLE = "chain-unreachable"
    NODES_DISAGREE = "nodes-disagree"
    NODE_MISSING = "node-missing"
    STORE_UNREACHABLE = "store-unreachable"
    DISK_NEARLY_FULL = "disk-nearly-full"
    DISK_FULL = "disk-full"
    RANK_LATE = "rank-late"
    ROLE_STUCK = "role-stuck"
    ROLE_ENDED = "role-ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A call for a person, or (`resolved`) the end of one. `at`: seconds since 1970."""

    cause: Cause
    text: str
    resolved: bool = False
    job: int | None = None
    game: int | None = None
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A condition now. `holds`: whether the alarm's limit is crossed; None: not known. `is_well`: whether it is so far
    from the limit that the alarm may end. `hold`: seconds that either has to last."""

    cause: Cause
    text: str
    holds: bool | None
    is_well: bool | None
    hold: float = 0.0
    job: int | None = None
    game: int | None = None

    @property
    def key(self) -> tuple[Cause, int | None, int | None]:
        return self.cause, self.job, self.game


@dataclass(slots=True)
class _State:
    active: bool = False
    since: float | None = None
    """Instant at which the change that is under way began."""
    job: int | None = None
    game: int | None = None


class Alarms:
    """The alarms of one role."""

    def __init__(self) -> None:
        self._states: dict[tuple[Cause, int | None, int | None], _State] = {}
        self._windows: dict[int, int] = {}
        """Seconds that were left when a deadline was first seen, by the deadline: the window of an opening or an appeal
        opens when the role can first act in it."""

    @property
    def active(self) -> dict[Cause, int]:
        """Number of active alarms by cause; causes without any are there as 0."""
        found = dict.fromkeys(Cause, 0)
        for (cause, _, _), state in self._states.items():
            found[cause] += state.active
        return found

    def judge(self, situation: Situation) -> list[Alert]:
        """The alerts that are due now."""
        alerts = []
        seen = set()
        for condition in (*_conditions(situation), self._window(situation)):
            seen.add(condition.key)
            state = self._states.setdefault(condition.key, _State(job=condition.job, game=condition.game))
            wants_change = condition.is_well if state.active else condition.holds
            if not wants_change:
                # Not known (None) is no reason to begin anew: a node that answers every other question is away.
                state.since = state.since if wants_change is None else None
                continue
            state.since = situation.at if state.since is None else state.since
            if situation.at - state.since >= condition.hold:
                state.active, state.since = not state.active, None
                alerts.append(
                    Alert(
                        cause=condition.cause,
                        text=condition.text,
                        resolved=not state.active,
                        job=condition.job,
                        game=condition.game,
                    )
                )
        if situation.look is not None and situation.chain_error == "":
            alerts += self._end_games(seen)
        return alerts

    def _window(self, now: Situation) -> _Condition:
        """The condition that half of the time for what is due next, in no game, is gone."""
        if now.due is None:
            return _Condition(cause=Cause.CLOCK_HALF_GONE, text="what was due is done", holds=False, is_well=True)
        # Several jobs take turns in having the nearest deadline.
        self._windows = {at: left for at, left in self._windows.items() if at >= now.due.at}
        whole = self._windows.setdefault(now.due.at, now.due.left)
        is_late = 2 * now.due.left < whole
        state = "" if now.look is None else now.look.progress.state
        return _Condition(
            cause=Cause.CLOCK_HALF_GONE,
            text=f"{in_time(now.due.left)} of {in_time(whole)} are left for what is due ({state}): see what keeps the "
            "role from acting",
            holds=is_late,
            is_well=not is_late,
        )

    def _end_games(self, seen: set[tuple[Cause, int | None, int | None]]) -> Iterator[Alert]:
        """Ends the alarms about games that are over."""
        for key in [key for key in self._states if key[2] is not None and key not in seen]:
            state = self._states.pop(key)
            if state.active:
                yield Alert(
                    cause=key[0], text=f"game {state.game} is over", resolved=True, job=state.job, game=state.game
                )


def _conditions(now: Situation) -> Iterator[_Condition]:
    probe = now.probe
    if probe.balance is not None and probe.needed is not None:
        has, needs = in_ether(probe.balance), in_ether(probe.needed)
        yield _Condition(
            cause=Cause.FUNDS_LOW,
            text=f"the account has {has}, and its disputes may take {needs} of gas: send it more",
            holds=probe.balance < probe.needed,
            is_well=4 * probe.balance >= 5 * probe.needed,
        )
    for game in now.games:
        if game.left is not None:
            yield _Condition(
                cause=Cause.CLOCK_HALF_GONE,
                text=f"{in_time(game.left)} of {in_time(game.allowance)} are left on our clock in game {game.game}: "
                "see what keeps the role from moving",
                holds=2 * game.left < game.allowance,
                is_well=False,
                job=game.job,
                game=game.game,
            )
        yield _Condition(
            cause=Cause.REFEREE_CALLED,
            text=f"game {game.game} asks the referee: make sure that it answers",
            holds=game.called,
            is_well=not game.called,
            job=game.job,
            game=game.game,
        )
    yield _Condition(
        cause=Cause.CHAIN_UNREACHABLE,
        text=now.chain_error or "the chain answers",
        holds=None if now.chain_error is None else now.chain_error != "",
        is_well=None if now.chain_error is None else now.chain_error == "",
        hold=OUTAGE_SECONDS,
    )
    agreement = now.agreement
    wait = "no new bond is paid until they agree" if agreement.undecided else "more than half are believed"
    yield _Condition(
        cause=Cause.NODES_DISAGREE,
        text=f"{agreement.contradiction}: {wait}" if agreement.contradiction else "the nodes agree",
        holds=bool(agreement.contradiction),
        is_well=not agreement.contradiction,
    )
    yield _Condition(
        cause=Cause.NODE_MISSING,
        text="; ".join(agreement.missing) or "all nodes answer",
        holds=bool(agreement.missing),
        is_well=not agreement.missing,
        hold=OUTAGE_SECONDS,
    )
    yield _Condition(
        cause=Cause.STORE_UNREACHABLE,
        text=probe.store_error or "the content store answers",
        holds=None if probe.store_error is None else probe.store_error != "",
        is_well=None if probe.store_error is None else probe.store_error == "",
        hold=OUTAGE_SECONDS,
    )
    if probe.disk_free is not None:
        yield _Condition(
            cause=Cause.DISK_NEARLY_FULL,
            text=f"{probe.disk_free / (1 << 30):.1f} GiB are free on the role's disk: make room",
            holds=probe.disk_free < LEAST_DISK,
            is_well=2 * probe.disk_free >= 3 * LEAST_DISK,
        )
    yield _Condition(
        cause=Cause.DISK_FULL,
        text="the role's disk is full, and what is paid is written into the bytes that are kept for it: make room now",
        holds=probe.reserve_missing > 0,
        is_well=probe.reserve_missing == 0,
    )
    yield _Condition(
        cause=Cause.RANK_LATE,
        text=now.late_ranks or "no rank keeps the others waiting",
        holds=bool(now.late_ranks),
        is_well=not now.late_ranks,
        hold=OUTAGE_SECONDS,
    )
    silent = now.at - (now.started_at if now.looked_at is None else now.looked_at)
    yield _Condition(
        cause=Cause.ROLE_STUCK,
        text=f"the role has ended no look at the chain for {int(silent)} seconds",
        holds=silent > STUCK_SECONDS,
        is_well=silent < STUCK_SECONDS,
    )
