"""Overdue games: games whose clocks have run out, or whose turn has come. A role that profits from the end of such a
game claims the timeout; the game's parties come first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tiebreak.contract.enums import Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.game import ClaimTimeout, timeout_is_due
from tiebreak.game.moves import describe_move
from tiebreak.roles.job_decisions import Decisions, MakeCall
from tiebreak.roles.job_on_chain import JobOnChain
from tiebreak.roles.notices import Progress

HEAD_START = 2
"""Blocks in which only the parties of a game claim its timeout, so that not all roles pay for the same call."""


def start_waiting(chain: JobOnChain, posted: JobView) -> Decisions[None]:
    """Starts the next game of a job with blind audits. There no game starts by itself before all audits are open."""
    opened = posted.audits.audit_opening_deadline
    free = posted.live_games < posted.terms.concurrent_games
    if opened and posted.queued_games and free and chain.now() > opened:
        yield MakeCall("start the next game", chain.calls.start_game(chain.job))


def end_appeals(chain: JobOnChain, posted: JobView) -> Decisions[Progress]:
    """Has a verdict paid once nobody can appeal any more; for jobs in status APPEALABLE, in which no appeal is live."""
    deadline = posted.audits.appeal_deadline
    if chain.now() <= deadline:
        return Progress(state="waits for appeals", until=deadline + 1)
    yield MakeCall("finalize", chain.calls.finalize(chain.job))
    return Progress(state="finalizes")


def end_claim(chain: JobOnChain, posted: JobView) -> Decisions[Progress]:
    """Finalizes a claim that this account has attested to, once its window is closed and no game is left; after a head
    start for trainer and customer, who mostly do it."""
    ready = posted.claim.challenge_deadline + _head_start(chain)
    if chain.now() <= ready:
        return Progress(state="waits for the end of the claim", until=ready + 1)
    yield MakeCall("finalize", chain.calls.finalize(chain.job))
    return Progress(state="finalizes")


def end_unopened(chain: JobOnChain, posted: JobView) -> Decisions[Progress]:
    """Ends a job whose sealed claim was not opened in time, so that sealed audits get their bonds back; after a head
    start for the customer."""
    ready = posted.audits.opening_deadline + _head_start(chain)
    if chain.now() <= ready:
        return Progress(state="waits until the claim is opened", until=ready + 1)
    yield MakeCall("end the job, whose claim was not opened", chain.calls.reclaim(chain.job))
    return Progress(state="ends a job whose claim was not opened")


def _head_start(chain: JobOnChain) -> int:
    """Seconds of `HEAD_START`."""
    return math.ceil(HEAD_START * chain.block_seconds())


def end_overdue(chain: JobOnChain, games: Mapping[int, GameView]) -> Decisions[None]:
    """Ends games in which every running clock, or the referee's, is out; games of others after a head start.

    Colluding parties would never end their games, and other games are queued behind them. This needs no trees, and
    only games that are at hand."""
    now = chain.now()
    for number, game in games.items():
        side = next((side for side in Side if game.party(side) == chain.address), None)
        if side is None:
            late = _head_start(chain)
            text = "end a game of others whose clock ran out"
        elif game.deadlines[side]:
            continue  # a party does not profit from the end of a game that it has lost
        else:
            late, text = 0, describe_move(game, ClaimTimeout())
        if timeout_is_due(game, now - late):
            yield MakeCall(text, chain.calls.claim_timeout(number), game=number)
