"""The strategy against the contract itself, with trees of any numbers: no training, every divergence."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest
from roundlog.commitments import MerkleTree
from roundlog.dispute import StepTrace
from tiebreak.contract.contract_watch import find_rows
from tiebreak.contract.enums import Outcome, Phase, Reason, Side
from tiebreak.game.moves import Leaves, Move, Need, NeedChunk, NeedRow, Place, Trace, Tree, moves_in
from tiebreak.game.strategy import Known, next_move
from tiebreak.roles.player import call_of

from tests.client.disputes import made
from tests.client.game.test_strategy import INITIAL, spec_of
from tests.e2e.world import TERMS, World

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


def trees(shape: tuple[int, int], wrong_from: int | None) -> Known:
    intervals, k = shape
    steps = [[root(i * k + j, wrong_from) for j in range(k)] for i in range(intervals)]
    known: dict[Place, Tree] = {(): Leaves([row[-1] for row in steps])}
    known |= {(i,): Leaves(row) for i, row in enumerate(steps)}
    return Known(known | {(i, j): trace(i * k + j, wrong_from) for i in range(intervals) for j in range(k)})


@pytest.mark.slow_but("trainer-(2, 5)")
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 1), (1, 6), (2, 5)], ids=str)
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_every_divergence_is_found_by_the_contract_too(quick_world: World, shape: tuple[int, int], liar: Side) -> None:
    world = quick_world
    contracts = {
        Side.TRAINER: world.contract.by(world.senders["trainer"]),
        Side.CHALLENGER: world.contract.by(world.senders["auditor"]),
    }
    customer = world.contract.by(world.senders["customer"])
    for step in range(shape[0] * shape[1]):
        posted = world.spec(replace(spec_of(shape), operator_count=OPERATORS + SLOTS, state_count=SLOTS))
        job, _ = made(customer, customer.post_job(posted, TERMS, "job"))
        known = {liar: trees(shape, step), liar.other: trees(shape, None)}
        claim = known[Side.TRAINER].trees[()]
        believed = known[Side.CHALLENGER].trees[()]
        assert isinstance(claim, Leaves) and isinstance(believed, Leaves)
        contracts[Side.TRAINER].send(
            contracts[Side.TRAINER].commit(
                job,
                spec_hash=posted.hash,
                claimed=claim.as_next_root(),
                final_state_root=claim.payloads[-1],
                log_cid="log",
                model_cid="model",
                bond=TERMS.trainer_bond,
            )
        )
        game_id, _ = made(
            contracts[Side.CHALLENGER],
            contracts[Side.CHALLENGER].challenge(
                job,
                spec_hash=posted.hash,
                claimed_root=claim.root,
                checkpoint_root=believed.root,
                bond=TERMS.challenger_bond,
            ),
        )
        moves = 0
        while world.contract.game(game_id).phase is not Phase.OVER:
            moved = False
            for side in Side:
                known[side].rows = None
                decision = next_move(world.contract.game(game_id), side, known[side], world.node.now())
                if isinstance(decision, NeedRow):
                    known[side].rows = find_rows(world.contract, game_id, world.contract.game(game_id))
                    decision = next_move(world.contract.game(game_id), side, known[side], world.node.now())
                assert not isinstance(decision, Need | NeedChunk | NeedRow)
                if isinstance(decision, Move):
                    contracts[side].send(call_of(world.contract, game_id, decision))
                    moved = True
                    moves += 1
            assert moved
        game = world.contract.game(game_id)
        # Of the eight leaves of a half, five are operators; the second slot follows the first.
        assert tuple(level.index for level in game.levels) == (*divmod(step, shape[1]), 8 + 1)
        assert game.agreed == (root(step - 1) if step else INITIAL)
        # Two openings a level, the second with the first of its moves; the trace takes one, and a store is proven.
        searched = [moves_in((count - 1).bit_length()) for count in shape]
        assert moves == searched[0] + 2 + max(0, searched[1] - 1) + 2 + 0 + 1
        right = Outcome.CHALLENGER_WON if liar is Side.TRAINER else Outcome.TRAINER_WON
        assert (game.outcome, game.reason) == (right, Reason.PROOF)
