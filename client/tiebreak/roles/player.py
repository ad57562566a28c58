"""Plays a party's games: asks the strategy, computes what it needs, sends what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from roundlog.commitments import state_root
from roundlog.storage import replace_file, save_tensors

from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Receipt
from tiebreak.chain.records import Game, Phase, Side
from tiebreak.game import (
    Bisect,
    ClaimTimeout,
    Decision,
    Helpless,
    Leaves,
    Move,
    Need,
    OpenLevel,
    Over,
    Place,
    ReleaseBond,
    RevealLeaf,
    Wait,
    forced_move,
    next_move,
)
from tiebreak.roles.evidence import RUN_ENDS, Evidence
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.role import Role


def play(role: Role, game_id: int, side: Side, evidence: Evidence) -> tuple[bool, Decision, Game]:
    """All moves of one side that can be made now. Returns whether any was sent, the decision that ended it, and the
    game as it stands then."""
    station = role.station
    trees: dict[Place, Leaves] = {(): evidence.claim}
    acted = False
    while True:
        game = station.contract.game(game_id)
        decision = next_move(game, side, trees, station.now())
        if isinstance(decision, Need):
            trees[decision.place] = evidence.leaves(decision.place)
        elif isinstance(decision, Wait | Helpless | Over):
            return acted, decision, game
        elif not _send(role, game_id, game, decision):
            return acted, Wait("another look at the game", station.now() + 1), game
        else:
            acted = True


def help_along(role: Role, game_id: int, side: Side, evidence: Evidence) -> bool:
    """Makes the forced moves of a silent side that holds the same trees as we do. Nobody but the party itself can open
    a level, so this helps within one."""
    game = role.station.contract.game(game_id)
    if game.phase not in (Phase.BISECTION, Phase.OPENING) or not game.deadlines[side]:
        return False
    clock = game.clocks[side]
    # The first half of its time is the party's own: two who send the same move only get in each other's way.
    if not clock.started_at + clock.remaining // 2 < role.station.now() <= game.deadlines[side]:
        return False
    trees: dict[Place, Leaves] = {(): evidence.claim}
    while isinstance(decision := forced_move(game, side, trees), Need):
        trees[decision.place] = evidence.leaves(decision.place)
    return isinstance(decision, Bisect | RevealLeaf) and _send(role, game_id, game, decision)


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
        case RevealLeaf(side, leaf):
            return contract.reveal_leaf(game_id, side, leaf)
        case ClaimTimeout():
            return contract.claim_timeout(game_id)
        case ReleaseBond():
            return contract.release_bond(game_id)


def describe(game: Game, move: Move) -> str:
    """A move in words."""
    level = game.current
    match move:
        case Bisect():
            return f"bisect {level.level.name} at height {level.height}, from leaf {level.index}"
        case OpenLevel():
            return f"open leaf {level.index} of {level.level.name} and the level below it"
        case RevealLeaf():
            return f"reveal leaf {level.index} of {level.level.name}"
        case ClaimTimeout():
            return "claim the timeout of the referee" if game.phase is Phase.REFEREE else "claim the opponent's timeout"
        case ReleaseBond():
            return "fetch the bond of a void game back"


class Games:
    """The games of one side under one claim: plays those that are live, and remembers those that are over."""

    def __init__(self, role: Role, job: int, side: Side, room: Path) -> None:
        self._role = role
        self._job = job
        self._side = side
        self._room = room
        self._over: set[int] = set()
        self._warned: set[int] = set()

    def play(self, games: Iterable[int], evidence: Callable[[], Evidence]) -> Progress:
        """Every move that can be made now. `evidence` is asked only if there is a game to play."""
        acted = False
        waits: list[Wait] = []
        for game_id in games:
            if game_id in self._over:
                continue
            moved, decision, game = play(self._role, game_id, self._side, evidence())
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
                if game.phase is Phase.REFEREE:
                    self._offer_state(game_id, game, evidence())
        if not waits:
            return Progress(acted=acted)
        first = min(waits, key=lambda wait: wait.until)
        return Progress(acted=acted, state=f"waiting for {first.what}", until=first.until)

    def _offer_state(self, game_id: int, game: Game, evidence: Evidence) -> None:
        """Once the referee is called, publishes the agreed state before the disputed step, so that the referee need not
        repeat all the steps before it."""
        record = self._room / f"offer-{game_id}.cid"
        if record.exists():
            return
        path = self._room / "offer.safetensors"
        try:
            states = evidence.state_before(disputed_step(game, evidence.job.spec.interval))
            if state_root(states) != game.agreed:
                return
            save_tensors(path, dict(zip(evidence.job.program.state_names, states, strict=True)))
            cid = self._role.station.store.add_file(path)
        except RUN_ENDS as error:
            self._tell(What.WARNING, f"has no state to offer to the referee: {error}", game_id)
            return
        path.unlink()
        with replace_file(record) as file:
            file.write(cid.encode())
        self._tell(What.PUBLISHED, f"offers the state before the disputed step to the referee as {cid}", game_id)

    def _tell(self, what: What, text: str, game_id: int) -> None:
        self._role.tell(what, text, job=self._job, game=game_id)


def disputed_step(game: Game, interval: int) -> int:
    """The step, counted from 0, that a game has found."""
    first, inside = (level.index for level in game.levels)
    return first * interval + inside
