"""The strategy against the contract, with trees of any numbers: divergences, silences, and what nobody may be told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any
from typing import cast as typed

import pytest
from roundlog.commitments import MerkleTree
from roundlog.dispute import StepTrace
from roundlog.spec import TrainingSpec
from tiebreak.contract.contract_watch import find_rows
from tiebreak.contract.enums import Outcome, Phase, Reason, Side
from tiebreak.contract.structs import NextRoot
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import What
from tiebreak.roles.player import Games
from tiebreak.strategy import (
    CLAIM_TIMEOUT,
    Helpless,
    Known,
    Leaves,
    Move,
    NeedRow,
    Over,
    Place,
    Trace,
    Tree,
    Wait,
    forced_move,
    moves_in,
    next_move,
    row,
    timeout_is_due,
)

from tests.client.disputes import Cast


def made(decision: object, function: str) -> tuple[Any, ...]:
    """The arguments of a move with this function."""
    assert isinstance(decision, Move) and decision.function == function
    return decision.arguments


INITIAL = sha256(b"initial").digest()
OPERATORS, SLOTS = 3, 2


def slots(step: int, wrong_from: int | None) -> list[bytes]:
    """Tensor roots after a step. Where a run goes wrong, it has stored another second slot."""
    wrong = wrong_from is not None and step >= wrong_from
    return [sha256(f"{step} {slot} {'wrong' if wrong and slot else ''}".encode()).digest() for slot in range(SLOTS)]


def root(step: int, wrong_from: int | None = None) -> bytes:
    return MerkleTree(slots(step, wrong_from)).root


def trace(step: int, wrong_from: int | None) -> Trace:
    computed = [sha256(f"{step} operator {q}".encode()).digest() for q in range(OPERATORS)]
    stored = slots(step, None if step == wrong_from else wrong_from)
    return Trace(StepTrace(operators=computed + stored, states=slots(step, wrong_from), stop=None))


@dataclass
class Made:
    """Trees of a made-up run: `shape` is (intervals, steps of each), wrong from a step on. `others`: trees in place of
    its own."""

    shape: tuple[int, int]
    wrong_from: int | None = None
    others: dict[Place, Tree] = field(default_factory=dict)

    def tree(self, place: Place) -> Tree:
        if place in self.others:
            return self.others[place]
        intervals, k = self.shape
        if len(place) == 2:
            return trace(place[0] * k + place[1], self.wrong_from)
        if place:
            return Leaves([root(place[0] * k + step, self.wrong_from) for step in range(k)])
        return Leaves([root((interval + 1) * k - 1, self.wrong_from) for interval in range(intervals)])

    @property
    def claim(self) -> Leaves:
        return typed(Leaves, self.tree(()))


def spec_of(shape: tuple[int, int]) -> TrainingSpec:
    some = sha256(b"some").digest()
    return TrainingSpec(
        steps=shape[0] * shape[1],
        interval=shape[1],
        program_root=some,
        operator_count=OPERATORS + SLOTS,
        initial_state_root=INITIAL,
        state_count=SLOTS,
        data_root=some,
        data_rows=1,
        batch_size=1,
        schedule_root=some,
        seed=0,
    )


def start(cast: Cast, trainer: Made, challenger: Made) -> int:
    return cast.start(spec_of(trainer.shape), trainer.claim, challenger.claim)


@pytest.mark.slow_but("trainer-(2, 2)")
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (5, 1), (1, 6)], ids=str)
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_every_divergence_is_found_at_its_step(cast: Cast, shape: tuple[int, int], liar: Side) -> None:
    for step in range(shape[0] * shape[1]):
        runs = {liar: Made(shape, step), liar.other: Made(shape)}
        game = start(cast, runs[Side.TRAINER], runs[Side.CHALLENGER])
        parties = cast.sides(runs[Side.TRAINER], runs[Side.CHALLENGER])
        state = cast.play(game, parties[liar.other], parties[liar])
        # Of the eight leaves of a half, five are operators; the second slot follows the first.
        assert tuple(level.index for level in state.levels) == (*divmod(step, shape[1]), 8 + 1)
        assert state.agreed == (root(step - 1) if step else INITIAL)
        # Two openings a level, the second with the first of its moves; the trace takes one, and a store is proven.
        searched = [moves_in((count - 1).bit_length()) for count in shape]
        assert sum(len(party.made) for party in parties.values()) == searched[0] + 2 + max(0, searched[1] - 1) + 2 + 1
        # Only the disputed interval and step were ever computed again.
        place = divmod(step, shape[1])
        assert [party.asked for party in parties.values()] == [[(), place[:1], place]] * 2
        right = Outcome.CHALLENGER_WON if liar is Side.TRAINER else Outcome.TRAINER_WON
        assert (state.outcome, state.reason) == (right, Reason.PROOF)
        assert parties[Side.TRAINER].decide(game) == Over(right)


@pytest.mark.slow_but("trainer")
@pytest.mark.parametrize("silent", Side, ids=lambda side: side.name.lower())
def test_a_side_that_falls_silent_loses_by_the_clock_to_the_second(cast: Cast, silent: Side) -> None:
    for spoken in itertools.count():
        runs = {silent: Made((2, 3), 4), silent.other: Made((2, 3))}
        game = start(cast, runs[Side.TRAINER], runs[Side.CHALLENGER])
        parties = cast.sides(runs[Side.TRAINER], runs[Side.CHALLENGER])
        quiet, waiting = parties[silent], parties[silent.other]
        while waiting.move(game) is not None or (len(quiet.made) < spoken and quiet.move(game) is not None):
            continue
        state = cast.customer.game(game)
        if state.phase is Phase.OVER:
            break
        deadline = state.deadlines[silent]
        assert waiting.decide(game) == Wait(f"the {silent.name.lower()}'s move", deadline + 1)
        assert isinstance(quiet.decide(game, deadline), Move) and not timeout_is_due(state, deadline)
        assert isinstance(quiet.decide(game, deadline + 1), Helpless)
        late = next_move(state, silent.other, waiting.known, deadline + 10**6)
        assert waiting.decide(game, deadline + 1) == late == CLAIM_TIMEOUT
        cast.customer.node.advance_time(deadline + 1 - cast.customer.node.head().timestamp)
        assert waiting.move(game) is not None
        won = Outcome.TRAINER_WON if silent is Side.CHALLENGER else Outcome.CHALLENGER_WON
        assert (cast.customer.game(game).outcome, cast.customer.game(game).reason) == (won, Reason.TIMEOUT)
    assert spoken >= 2  # at least both openings were tried


def test_a_side_in_time_moves_even_though_the_other_one_is_out(cast: Cast) -> None:
    honest, liar = Made((3, 4)), Made((3, 4), 6)
    game, node = start(cast, honest, liar), cast.customer.node
    parties = cast.sides(honest, liar)
    node.advance_time(1000)
    assert parties[Side.CHALLENGER].move(game) is not None
    state = cast.customer.game(game)
    assert state.phase is Phase.OPENING and state.deadlines[Side.CHALLENGER] < state.deadlines[Side.TRAINER]
    node.advance_time(state.deadlines[Side.CHALLENGER] + 1 - node.head().timestamp)
    assert made(parties[Side.TRAINER].decide(game), "openLevel")
    parties[Side.TRAINER].move(game)
    assert parties[Side.TRAINER].decide(game) == CLAIM_TIMEOUT
    parties[Side.TRAINER].move(game)
    assert cast.customer.game(game).outcome is Outcome.TRAINER_WON


class ForgedLeaves(Leaves):
    """Leaves below another tree than theirs."""

    def __init__(self, payloads: Sequence[bytes], tree: MerkleTree) -> None:
        super().__init__(payloads)
        self.tree = tree

    def as_next_root(self) -> NextRoot:
        row_of_root = tuple(row(self.tree, self.tree.depth, 0))
        return NextRoot(root=self.root, last_leaf_proof=tuple(self.tree.proof(len(self.payloads) - 1)), row=row_of_root)


@pytest.mark.slow_but("3")
@pytest.mark.parametrize("count", [3, 5])
def test_a_tree_whose_padding_is_forged_loses_without_a_referee(cast: Cast, count: int) -> None:
    honest = Made((count, 2))
    depth = (count - 1).bit_length()
    for place in range(count, 2**depth):
        hashes = [MerkleTree([payload]).root for payload in honest.claim.payloads]
        hashes += [sha256(b"\x02").digest()] * (2**depth - count)
        hashes[place] = sha256(b"not PAD").digest()
        forged = Made((count, 2), others={(): ForgedLeaves(honest.claim.payloads, MerkleTree.of_leaf_hashes(hashes))})
        game, parties = start(cast, forged, honest), cast.sides(forged, honest)
        state = cast.play(game, parties[Side.CHALLENGER], parties[Side.TRAINER])
        assert (state.outcome, state.reason) == (Outcome.CHALLENGER_WON, Reason.PADDING)
        assert state.search.index == place


def test_a_player_that_cannot_move_says_what_to_do(cast: Cast) -> None:
    honest, stranger, told = Made((3, 2)), Made((3, 2), 3), list[str]()

    def tell(what: What, text: str, *, game: int | None = None) -> None:
        told.append(text)

    game = cast.customer.game(start(cast, honest, stranger))
    now = [cast.customer.node.now()]
    chain = typed(JobRole, SimpleNamespace(now=lambda: now[0], tell=tell))
    player = Games(chain, typed(LongWork, None), Side.CHALLENGER)
    trees = typed(DisputeTrees, SimpleNamespace(at_hand={(): honest.claim}.get))
    player.play({7: game}, trees)
    now[0] = game.deadlines[Side.CHALLENGER] + 1
    player.play({7: game}, trees)
    assert "not over the states at hand; let this role run in the directory that the claim" in told[0]
    assert "clock ran out" in told[1] and "keep this role running" in told[1] and len(told) == 2
    short = Known({(): Leaves(stranger.claim.payloads[:-1])})
    assert isinstance(next_move(game, Side.CHALLENGER, short, now[0] - 1), Helpless)


def test_a_party_never_opens_a_level_that_does_not_carry_what_it_claimed_above(cast: Cast) -> None:
    liar, honest = Made((1, 3), 1), Made((1, 3))
    game = start(cast, liar, honest)
    below = typed(Leaves, honest.tree((0,)))
    bent = Made((1, 3), others={(0,): Leaves([*below.payloads[:-1], bytes(32)])})
    challenger = cast.sides(liar, bent)[Side.CHALLENGER]
    assert challenger.decide(game) == Helpless("leaf 0 at level CHECKPOINT does not follow from what is below it")
    bent = Made((1, 3), others={(0, 1): trace(0, None)})
    parties = cast.sides(liar, bent)
    while any(party.move(game) is not None for party in parties.values()):
        continue
    decision = parties[Side.CHALLENGER].decide(game)
    assert decision == Helpless("leaf 1 at level STEP does not follow from what is below it")


def test_rows_that_nobody_has_shown_are_never_taken_and_anybody_moves_by_the_right_ones(cast: Cast) -> None:
    liar, honest = Made((5, 3), 7), Made((5, 3))
    game, parties = start(cast, liar, honest), cast.sides(liar, honest)
    now, state = cast.customer.node.now(), cast.customer.game(game)
    (shown,) = find_rows(cast.customer, game, state)
    known = Known({(): honest.claim})
    for rows in ((), ((bytes(32),) * len(shown),), (shown[::-1], shown[:-1], (*shown, shown[0]))):
        assert next_move(state, Side.CHALLENGER, replace(known, rows=rows), now) == NeedRow()
    move = next_move(state, Side.CHALLENGER, replace(known, rows=(shown[::-1], shown)), now)
    assert made(move, "bisect")[0].theirs == shown
    # A helper with the same trees makes the move of a silent side.
    assert forced_move(state, Side.CHALLENGER, replace(known, rows=(shown,))) == move
    assert parties[Side.CHALLENGER].move(game) is not None
    opened = parties[Side.TRAINER].decide(game)
    assert made(opened, "openLevel")[2].row
    assert parties[Side.TRAINER].move(game) is not None
    # Who opens last moves as well, but not upon a row that is not the one; the opening alone needs none.
    both = parties[Side.CHALLENGER].decide(game)
    opens, _ = made(both, "inTurn")
    assert not made(opens, "openLevel")[2].row
    wrong = replace(parties[Side.CHALLENGER].known, rows=(shown,))
    assert next_move(cast.customer.game(game), Side.CHALLENGER, wrong, now) == opens
