"""The player of a party's games: asks the strategy for moves, and has the trees computed that it needs.

A role that profits from the end of a game whose clocks have run out claims the timeout; the game's parties come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import Level, Phase, Side
from tiebreak.roles.background_jobs import Lane, Priority
from tiebreak.roles.notices import Progress, What
from tiebreak.strategy import (
    CLAIM_TIMEOUT,
    FORCED,
    RUNNING,
    Decision,
    Helpless,
    Known,
    Move,
    Need,
    NeedRow,
    Row,
    Wait,
    describe_move,
    forced_move,
    next_move,
    place_of,
    timeout_is_due,
)

if TYPE_CHECKING:
    from tiebreak.contract.game import VerificationGame
    from tiebreak.contract.structs import GameView, JobView
    from tiebreak.roles.engine import DisputeTrees
    from tiebreak.roles.job_role import JobRole
    from tiebreak.roles.long_work import LongWork


class Games:
    """The games of one side under one claim. It remembers nothing that the chain could take back."""

    def __init__(self, role: JobRole, long_work: LongWork, side: Side) -> None:
        self._role = role
        self._long_work = long_work
        self._side = side
        self._told: dict[int, str] = {}

    def play_running(
        self,
        posted: JobView,
        games: Mapping[int, GameView],
        stake: int,
        get_trees: Callable[[Priority], DisputeTrees | None],
    ) -> Progress:
        """Play the games that have begun, of a party's games. stake: wei at stake. get_trees: returns the trees that
        they are played with; None until they are ready."""
        running = {number: game for number, game in games.items() if game.phase not in (Phase.OVER, Phase.QUEUED)}
        # While all own games are queued, games of others whose clocks ran out hold them up. A silent party loses by the
        # clock, for which nothing has to be computed.
        end_overdue(self._role, running or self._role.live_games())
        due = earliest_deadline(running.values(), self._side)
        later = self._role.now() + posted.terms.clock_allowance
        trees = get_trees(Priority(deadline=due or later, stake=stake, bonded=True))
        if trees is None:
            return Progress(working=True, state="gets its run ready for a game", deadline=due)
        return self.play(running, trees) if running else Progress(state="waits until its game begins")

    def play(self, games: Mapping[int, GameView], trees: DisputeTrees) -> Progress:
        """Make every move that can be made now, and start the work that other moves need."""
        waits: list[Wait] = []
        deadlines: list[int] = []
        working = False
        for game_id, game in games.items():
            if game.phase is Phase.OVER:
                continue
            if game.deadlines[self._side]:
                deadlines.append(game.deadlines[self._side])
            decision = self._decide(game_id, game, trees)
            if decision is None:
                working = True
            elif isinstance(decision, Helpless):
                self._tell(
                    What.WARNING, f"cannot move in game {game_id}: {decision.why}; {self._advice(game)}", game_id
                )
            elif isinstance(decision, Wait):
                waits.append(decision)
            elif isinstance(decision, Move):
                self._order(game_id, game, decision)
        deadline = min(deadlines, default=None)
        if not waits:
            return Progress(working=working, state=f"plays {len(deadlines)} games", deadline=deadline)
        first = min(waits, key=lambda wait: math.inf if wait.until is None else wait.until)
        return Progress(working=working, state=f"waits for {first.what}", until=first.until, deadline=deadline)

    def _advice(self, game: GameView) -> str:
        """Return advice to the person who runs this role, about a game in which it cannot move."""
        if self._role.now() > game.deadlines[self._side]:
            return "that game is lost: keep this role running, so that no other is"
        return (
            "let this role run in the directory that the claim or the challenge was made from, on a sound machine, "
            "before its clock runs out"
        )

    def tell_ended(self, games: Mapping[int, GameView]) -> None:
        """Tell the outcome of each game that is over; once, unless it changes."""
        for game_id, game in games.items():
            if game.phase is Phase.OVER:
                self._tell(What.COMPUTED, f"game {game_id} ended: {game.outcome.name}", game_id)

    def help_along(self, game_id: int, game: GameView, trees: DisputeTrees) -> None:
        """Make forced moves for a silent party that holds the same trees. Only the party itself can open a level or
        name an element, so this helps with the moves between."""
        if game.phase not in RUNNING or not game.deadlines[self._side]:
            return
        clock, now = game.clocks[self._side], self._role.now()
        # The first half of its time is left to the party: of two equal moves one fails.
        if not clock.started_at + clock.remaining // 2 < now <= game.deadlines[self._side]:
            return
        decision = self._decide(game_id, game, trees)
        if isinstance(decision, Move):
            moves = decision.arguments if decision.function == "inTurn" else (decision,)
            if all(move.function in FORCED for move in moves):
                self._order(game_id, game, decision)

    def _order(self, game_id: int, game: GameView, move: Move) -> None:
        """Order the call that makes a move."""
        self._role.order(describe_move(game, move), call_of(self._role.calls, game_id, move), game=game_id)

    def _decide(self, game_id: int, game: GameView, trees: DisputeTrees) -> Decision | None:
        """Return the decision in a game; None while it is computed, or what the other side has shown cannot be had."""
        now = self._role.now()
        moves = game.phase in RUNNING and game.deadlines[self._side] and now <= game.deadlines[self._side]
        if not moves:
            return next_move(game, self._side, Known(), now)
        rows: tuple[Row, ...] = ()
        # A move that takes long is computed once, with all that it may need.
        opened = game.phase is Phase.OPENING and not game.deadlines[self._side.other]
        if not _is_quick(game) and (opened or game.phase is Phase.BISECTION):
            rows = self._role.context.queue.watch.shown_rows(game_id)
        decision = self._decided(game_id, game, trees, rows)
        for everywhere in (False, True):
            if isinstance(decision, NeedRow):
                rows = self._role.context.queue.watch.shown_rows(game_id, everywhere=everywhere)
                decision = self._decided(game_id, game, trees, rows)
        if isinstance(decision, NeedRow):
            self._tell(What.WARNING, f"the node does not show the opponent's last move in game {game_id}", game_id)
            return None
        return decision

    def _decided(self, game_id: int, game: GameView, trees: DisputeTrees, rows: tuple[Row, ...]) -> Decision | None:
        if _is_quick(game):
            place = place_of(game)
            at_hand = {place[:n]: tree for n in range(len(place) + 1) if (tree := trees.at_hand(place[:n])) is not None}
            decision = forced_move(game, self._side, Known(at_hand, rows=rows))
            if not isinstance(decision, Need):
                return decision
        chunk = None
        if game.phase is Phase.PROVING and game.current.level is Level.CHUNK:
            chunk = self._chunk(game_id)
            if chunk is None:
                return None
        what = f"a move in game {game_id}"
        return self._long_work.result(
            Lane.GAMES,
            what,
            lambda background_job: computed_move(game, self._side, trees, chunk, rows),
            Priority(deadline=game.deadlines[self._side], stake=game.trainer_bond, bonded=True),
            what,
            about=(game, rows),
        )

    def _chunk(self, game_id: int) -> bytes | None:
        """Return the posted chunk. Its hash is known, so it needs no confirmations. None if the node does not show
        it."""
        found = self._role.context.queue.watch.posted_chunk(game_id)
        if found is None:
            self._tell(What.WARNING, f"the node does not show the chunk that was posted in game {game_id}", game_id)
        return found

    def _tell(self, what: What, text: str, game_id: int) -> None:
        if self._told.get(game_id) != text:
            self._told[game_id] = text
            self._role.tell(what, text, game=game_id)


def earliest_deadline(games: Iterable[GameView], side: Side) -> int | None:
    """Return the earliest instant at which a clock of this side runs out; None while it waits for others in all games,
    where a view shows a deadline of zero."""
    return min((game.deadlines[side] for game in games if game.deadlines[side]), default=None)


def _is_quick(game: GameView) -> bool:
    """Return whether the move takes no computation but reads trees in memory; all other moves hash or compute."""
    return game.phase is Phase.BISECTION and game.current.level is not Level.PARTIAL


def computed_move(
    game: GameView, side: Side, trees: DisputeTrees, chunk: bytes | None, rows: tuple[Row, ...]
) -> Decision:
    """Return the move that is due from a side; executes all that it needs."""
    known = Known({(): trees.claim}, chunk, rows)
    while isinstance(decision := forced_move(game, side, known), Need):
        known.trees[decision.place] = trees.tree(decision.place)
    return decision


def call_of(contract: VerificationGame, game: int, move: Move) -> ContractCall:
    """Return the contract's call that makes a move."""
    if move.function == "inTurn":
        return contract.in_turn([call_of(contract, game, one) for one in move.arguments])
    return ContractCall(move.function, (game, *move.arguments))


HEAD_START = 2
"""Blocks in which only the parties of a game claim its timeout, so that not all roles pay for the same call."""


def start_waiting(role: JobRole, posted: JobView) -> None:
    """Start the next game of a job with blind audits. There no game starts by itself before all audits are open."""
    opened = posted.audits.audit_opening_deadline
    free = posted.live_games < posted.terms.concurrent_games
    if opened and posted.queued_games and free and role.now() > opened:
        role.order("start the next game", ContractCall.of("startGame", role.job))


def await_appeals(role: JobRole, posted: JobView) -> Progress:
    """Wait for the appeals of others in a job in status APPEALABLE, and end what holds them up; have the verdict paid
    once nobody can appeal any more."""
    if appeals := posted.live_games + posted.queued_games:
        end_overdue(role, role.live_games())
        return Progress(state=f"waits for {appeals} {'appeal' if appeals == 1 else 'appeals'} of others")
    return finalize_after(role, posted.audits.appeal_deadline, "waits for appeals")


def finalize_after(role: JobRole, deadline: int, waits: str) -> Progress:
    """Finalize the claim on a job, once a deadline (chain time) is over. waits: what the role does until then."""
    if role.now() <= deadline:
        return Progress(state=waits, until=deadline + 1)
    role.order("finalize", ContractCall.of("finalize", role.job))
    return Progress(state="finalizes")


def end_claim(role: JobRole, posted: JobView) -> Progress:
    """Finalize a claim that this account has attested to, once its window is closed and no game is left; after a head
    start for trainer and customer, who mostly do it."""
    return finalize_after(role, posted.claim.challenge_deadline + _head_start(role), "waits for the end of the claim")


def end_unopened(role: JobRole, posted: JobView) -> Progress:
    """End a job whose sealed claim was not opened in time, so that sealed audits get their bonds back; after a head
    start for the customer."""
    ready = posted.audits.opening_deadline + _head_start(role)
    if role.now() <= ready:
        return Progress(state="waits until the claim is opened", until=ready + 1)
    role.order("end the job, whose claim was not opened", ContractCall.of("reclaim", role.job))
    return Progress(state="ends a job whose claim was not opened")


def _head_start(role: JobRole) -> int:
    """Return seconds of `HEAD_START`."""
    return math.ceil(HEAD_START * role.context.queue.block_seconds())


def end_overdue(role: JobRole, games: Mapping[int, GameView]) -> None:
    """End games in which every running clock, or the referee's, is out; games of others after a head start.

    Colluding parties would never end their games, and other games are queued behind them. This needs no trees, and
    only games that are at hand."""
    now = role.now()
    for number, game in games.items():
        side = next((side for side in Side if game.party(side) == role.address), None)
        if side is None:
            late = _head_start(role)
            text = "end a game of others whose clock ran out"
        elif game.deadlines[side]:
            continue  # a party does not profit from the end of a game that it has lost
        else:
            late, text = 0, describe_move(game, CLAIM_TIMEOUT)
        if timeout_is_due(game, now - late):
            role.order(text, ContractCall.of("claimTimeout", number), game=number)
