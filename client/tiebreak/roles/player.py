"""Plays a party's games: asks the strategy, computes what it needs, sends what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import get_args

from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Receipt
from tiebreak.chain.posted import find_chunk
from tiebreak.chain.records import Game, Level, Phase, Side
from tiebreak.game import (
    Bisect,
    ClaimTimeout,
    Decision,
    DisputeSum,
    ForcedMove,
    Helpless,
    Known,
    Move,
    Need,
    NeedChunk,
    OpenLevel,
    OpenOperator,
    OpenPartials,
    Over,
    PostChunk,
    ProveElement,
    ProveSegment,
    ProveStore,
    ReleaseBond,
    Wait,
    forced_move,
    next_move,
)
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.role import Role


def play(role: Role, game_id: int, side: Side, evidence: Evidence) -> tuple[bool, Decision, Game]:
    """All moves of one side that can be made now. Returns whether any was sent, the decision that ended it, and the
    game as it stands then."""
    station = role.station
    known = Known({(): evidence.claim})
    acted = False
    while True:
        game = station.contract.game(game_id)
        decision = next_move(game, side, known, station.now())
        if isinstance(decision, Need | NeedChunk):
            if not _provide(role, game_id, game, known, decision, evidence):
                return acted, Wait("the bytes that the trainer has posted", station.now() + 1), game
        elif isinstance(decision, Wait | Helpless | Over):
            return acted, decision, game
        elif not _send(role, game_id, game, decision):
            return acted, Wait("another look at the game", station.now() + 1), game
        else:
            acted = True


def help_along(role: Role, game_id: int, side: Side, evidence: Evidence) -> bool:
    """Makes the forced moves of a silent side that holds the same trees as we do. Nobody but the party itself can open
    a level or name an element, so this helps in between."""
    game = role.station.contract.game(game_id)
    if game.phase in (Phase.REFEREE, Phase.OVER) or not game.deadlines[side]:
        return False
    clock = game.clocks[side]
    # The first half of its time is the party's own: two who send the same move only get in each other's way.
    if not clock.started_at + clock.remaining // 2 < role.station.now() <= game.deadlines[side]:
        return False
    known = Known({(): evidence.claim})
    while isinstance(decision := forced_move(game, side, known), Need | NeedChunk):
        if not _provide(role, game_id, game, known, decision, evidence):
            return False
    return isinstance(decision, get_args(ForcedMove)) and _send(role, game_id, game, decision)


def _provide(role: Role, game_id: int, game: Game, known: Known, need: Need | NeedChunk, evidence: Evidence) -> bool:
    """Whether what the strategy asks for could be had."""
    if isinstance(need, Need):
        known.trees[need.place] = evidence.tree(need.place)
        return True
    known.chunk = find_chunk(role.station.contract, game_id, game)
    return known.chunk is not None


def _send(role: Role, game_id: int, game: Game, move: Move) -> bool:
    contract = role.station.contract
    return role.send(describe(game, move), lambda: execute(contract, game_id, move), job=game.job, game=game_id)


def execute(contract: VerificationGame, game_id: int, move: Move) -> Receipt:
    """Sends a move."""
    match move:
        case Bisect(opened, below):
            return contract.bisect(game_id, opened, below)
        case OpenLevel(side, leaf, root):
            return contract.open_level(game_id, side, leaf, root)
        case OpenOperator(side, opening):
            return contract.open_operator(game_id, side, opening)
        case ProveStore(payload, proof):
            return contract.prove_store(game_id, payload, proof)
        case PostChunk(chunk):
            return contract.post_chunk(game_id, chunk)
        case ProveElement(proof):
            return contract.prove_element(game_id, proof)
        case DisputeSum(descriptor, chunk, position):
            return contract.dispute_sum(game_id, descriptor, chunk, position)
        case OpenPartials(side, opening):
            return contract.open_partials(game_id, side, opening)
        case ProveSegment(proof):
            return contract.prove_segment(game_id, proof)
        case ClaimTimeout():
            return contract.claim_timeout(game_id)
        case ReleaseBond():
            return contract.release_bond(game_id)


def describe(game: Game, move: Move) -> str:
    """A move in words."""
    level, index = game.current.level, game.search.index
    match move:
        case Bisect():
            return f"bisect {level.name} at height {game.search.height}, from leaf {index}"
        case OpenLevel():
            return f"open leaf {index} of {level.name} and the level below it"
        case OpenOperator():
            return f"open the output of operator {index}"
        case ProveStore():
            return "prove what a store of the state keeps"
        case PostChunk():
            return f"post chunk {index} of the output of operator {game.levels[Level.OPERATOR].index}"
        case ProveElement(proof):
            return f"have the contract compute element {proof.position} of chunk {index}"
        case DisputeSum(_, _, position):
            return f"dispute the sum that is element {position} of chunk {index}"
        case OpenPartials():
            return f"open the running results of element {game.disputed.element}"
        case ProveSegment():
            return f"have the contract compute segment {index} of element {game.disputed.element}"
        case ClaimTimeout():
            return "claim the timeout of the referee" if game.phase is Phase.REFEREE else "claim the opponent's timeout"
        case ReleaseBond():
            return "fetch the bond of a void game back"


class Games:
    """The games of one side under one claim: plays those that are live, and remembers those that are over."""

    def __init__(self, role: Role, job: int, side: Side) -> None:
        self._role = role
        self._job = job
        self._side = side
        self._over: set[int] = set()
        self._warned: set[int] = set()

    def play(self, games: Iterable[int], evidence: Callable[[], Evidence]) -> Progress:
        """Every move that can be made now. `evidence` is asked only if there is a game to play."""
        acted = False
        waits: list[Wait] = []
        for game_id in games:
            if game_id in self._over:
                continue
            moved, decision, _ = play(self._role, game_id, self._side, evidence())
            acted |= moved
            if isinstance(decision, Over):
                self._over.add(game_id)
                self._tell(What.COMPUTED, f"game {game_id} ended: {decision.outcome.name}", game_id)
            elif isinstance(decision, Helpless):
                if game_id not in self._warned:
                    self._warned.add(game_id)
                    self._tell(What.WARNING, f"cannot move in game {game_id}: {decision.why}", game_id)
            elif isinstance(decision, Wait):
                waits.append(decision)
        if not waits:
            return Progress(acted=acted)
        first = min(waits, key=lambda wait: math.inf if wait.until is None else wait.until)
        return Progress(acted=acted, state=f"waiting for {first.what}", until=first.until)

    def _tell(self, what: What, text: str, game_id: int) -> None:
        self._role.tell(what, text, job=self._job, game=game_id)
