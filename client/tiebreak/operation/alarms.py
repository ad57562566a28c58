"""The situation of a role, and alarms: from situations to the alerts that a person is called for, once for each cause.

An alarm is raised when its condition has held for a while, and ends when the opposite has: a value that swings around a
limit, or a node that fails every other second, calls once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.quantities import in_ether, in_time
from tiebreak.rpc.transport import ALONE, NodeAgreement

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
class GameState:
    """A live game of this account. Times in seconds by the chain's clock; `left` is None for a referee, who has no
    chess clock. `called`: whether the referee is asked."""

    job: int
    game: int
    left: int | None
    allowance: int
    called: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The situation of a role. None: not known now. Amounts in wei, sizes in bytes; errors are empty where there is
    none.

    `at`, `looked_at`: now and the end of the last look, in seconds of this machine's steady clock; `look_time`: the
    latter in seconds since 1970. `state`, `stake`, `deadline`: of the last look. `due`: chain time of the next deadline
    that is in no game, such as that of an opening or an appeal, and the seconds until then. `needed`: gas of all
    disputes of the account, and of one at least. `reserve_missing`: bytes that were given up of those kept for records
    of payments. `late_ranks`: the ranks that keep the others waiting, in a sentence."""

    at: float
    looked_at: float
    look_time: float | None = None
    state: str = "not started"
    stake: int | None = None
    deadline: int | None = None
    block: int | None = None
    block_time: int | None = None
    chain_error: str | None = None
    agreement: NodeAgreement = ALONE
    games: tuple[GameState, ...] = ()
    due: tuple[int, int] | None = None
    balance: int | None = None
    needed: int | None = None
    store_error: str | None = None
    disk_free: int | None = None
    reserve_missing: int = 0
    late_ranks: str = ""

    @property
    def silent(self) -> float:
        """Seconds since the end of the last look."""
        return self.at - self.looked_at


def games_of(
    jobs: dict[int, JobView], games: dict[int, GameView], account: ChecksumAddress, now: int
) -> tuple[GameState, ...]:
    """Return the live games in which an account is a party, or which ask it as their referee. now: the chain's time."""
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


def due_of(deadline: int | None, games: tuple[GameState, ...], now: int) -> tuple[int, int] | None:
    """Return `Situation.due`, unless the role's next deadline is a game's. now: the chain's time."""
    if deadline is None:
        return None
    left = max(0, deadline - now)
    return None if any(left == game.left for game in games) else (deadline, left)


@dataclass(frozen=True, slots=True)
class Alert:
    """A cause in a situation. `holds`: whether it is there; None: not known, or too near the limit to tell. `seconds`:
    that this has to last before a person is told. An alert that does not hold tells that an alarm has ended."""

    cause: Cause
    text: str
    holds: bool | None
    seconds: float = 0.0
    job: int | None = None
    game: int | None = None


class Alarms:
    """The alarms of one role."""

    def __init__(self) -> None:
        self._active: dict[tuple[Cause, int | None], Alert] = {}
        """Raised alarms by cause and game."""
        self._since: dict[tuple[Cause, int | None], float] = {}
        """Instants since which causes are otherwise than they were told."""
        self._windows: dict[int, int] = {}
        """Seconds that were left when a deadline was first seen, by the deadline: the window of an opening or an appeal
        opens when the role can first act in it."""

    @property
    def active(self) -> Counter[Cause]:
        """The number of active alarms by cause."""
        return Counter(cause for cause, _ in self._active)

    def judge(self, now: Situation) -> list[Alert]:
        """Return the alerts that are due now."""
        due = []
        found = {(one.cause, one.game): one for one in self._causes(now)}
        for key, one in self._active.items():
            if key not in found:
                found[key] = replace(one, text="it is over", holds=False)
        for key, one in found.items():
            if one.holds is None:
                continue  # no reason to begin anew: a node that answers every other question is away
            if one.holds is (key in self._active):
                self._since.pop(key, None)
            elif now.at - self._since.setdefault(key, now.at) >= one.seconds:
                del self._since[key]
                if one.holds:
                    self._active[key] = one
                else:
                    del self._active[key]
                due.append(one)
        return due

    def _causes(self, now: Situation) -> Iterator[Alert]:
        yield from _of_machine(now)
        yield from _of_nodes(now)
        for game in now.games:
            if game.left is not None:
                where = f"on our clock in game {game.game}"
                yield _half_gone(game.left, game.allowance, where, game.job, game.game)
            asked = f"game {game.game} asks the referee: make sure that it answers"
            yield Alert(Cause.REFEREE_CALLED, asked, game.called, job=game.job, game=game.game)
        if now.due is not None:
            at, left = now.due
            # Several jobs take turns in having the nearest deadline.
            self._windows = {one: whole for one, whole in self._windows.items() if one >= at}
            yield _half_gone(left, self._windows.setdefault(at, left), f"for what is due ({now.state})")


def _half_gone(left: int, whole: int, where: str, job: int | None = None, game: int | None = None) -> Alert:
    text = f"{in_time(left)} of {in_time(whole)} are left {where}: see what keeps the role from moving"
    return Alert(Cause.CLOCK_HALF_GONE, text, 2 * left < whole, job=job, game=game)


def _of_machine(now: Situation) -> Iterator[Alert]:
    """Yield funds, disk, and whether the role runs."""
    low, text = None, ""
    if now.balance is not None and now.needed is not None:
        has, needs = in_ether(now.balance), in_ether(now.needed)
        low, text = _is_low(now.balance, now.needed), f"the account has {has}, and its disputes may take {needs} of gas"
    yield Alert(Cause.FUNDS_LOW, f"{text}: send it more", low)
    low, text = None, ""
    if now.disk_free is not None:
        low, text = _is_low(now.disk_free, LEAST_DISK), f"{now.disk_free / (1 << 30):.1f} GiB are free"
    yield Alert(Cause.DISK_NEARLY_FULL, f"{text} on the role's disk: make room", low)
    text = "the role's disk is full, and what is paid is written into the bytes that are kept for it: make room now"
    yield Alert(Cause.DISK_FULL, text, now.reserve_missing > 0)
    text = f"the role has ended no look at the chain for {int(now.silent)} seconds"
    yield Alert(Cause.ROLE_STUCK, text, now.silent > STUCK_SECONDS)


def _is_low(value: int, least: int) -> bool | None:
    """Whether a value is below its least; None up to a quarter above, so that one that swings calls once."""
    return True if value < least else None if 4 * value < 5 * least else False


def _of_nodes(now: Situation) -> Iterator[Alert]:
    """Yield outages of what the role asks and waits for."""
    for cause, error, well in (
        (Cause.CHAIN_UNREACHABLE, now.chain_error, "the chain answers"),
        (Cause.STORE_UNREACHABLE, now.store_error, "the content store answers"),
        (Cause.NODE_MISSING, "; ".join(now.agreement.missing), "all nodes answer"),
        (Cause.RANK_LATE, now.late_ranks, "no rank keeps the others waiting"),
    ):
        yield Alert(cause, error or well, None if error is None else bool(error), OUTAGE_SECONDS)
    apart = now.agreement.contradiction
    wait = "no new bond is paid until they agree" if now.agreement.undecided else "more than half are believed"
    yield Alert(Cause.NODES_DISAGREE, f"{apart}: {wait}" if apart else "the nodes agree", bool(apart))
