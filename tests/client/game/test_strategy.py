"""The strategy against a second implementation of the rules: every divergence of small trees, every silence."""

from __future__ import annotations

import itertools
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import cast

import pytest
from roundlog.commitments import MerkleTree
from roundlog.dispute import StepTrace
from roundlog.spec import TrainingSpec
from tiebreak.contract.enums import Outcome, Phase, Reason, Side
from tiebreak.game.moves import (
    Bisect,
    ClaimTimeout,
    Decision,
    Helpless,
    InTurn,
    Leaves,
    Move,
    Need,
    NeedRow,
    OpenLevel,
    Over,
    ProveStore,
    Trace,
    Wait,
    row,
)
from tiebreak.game.strategy import Known, descent, forced_move, next_move, timeout_is_due
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.job_role import JobOnChain
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import What
from tiebreak.roles.player import Games

from tests.client.game.contract_model import ContractModel
from tests.client.game.disputes_below import send
from tests.client.game.model_trees import Refused, depth, root_of

INITIAL = sha256(b"initial").digest()
SHAPES = [*itertools.product(range(1, 7), range(1, 7)), (9, 3), (13, 1), (1, 11)]
OPERATORS, SLOTS = 5, 3


def slots(step: int, wrong_from: int | None, who: str) -> list[bytes]:
    """The tensor roots of the state after `step`; a party that goes wrong at a step is wrong in all that follow. In the
    step in which it goes wrong, only one slot is."""
    wrong = [
        wrong_from is not None and (step > wrong_from or (step == wrong_from and slot == step % SLOTS))
        for slot in range(SLOTS)
    ]
    return [sha256(f"{step} {slot} {who if wrong[slot] else ''}".encode()).digest() for slot in range(SLOTS)]


def state(step: int, wrong_from: int | None, who: str) -> bytes:
    return MerkleTree(slots(step, wrong_from, who)).root


def trace(step: int, wrong_from: int | None, who: str) -> Trace:
    """All operators are right in the step in which a party goes wrong: it has stored something else."""
    honest = wrong_from is None or step <= wrong_from
    computed = [sha256(f"{step} operator {q} {'' if honest else who}".encode()).digest() for q in range(OPERATORS)]
    stored = slots(step, None, who) if honest else slots(step, wrong_from, who)
    return Trace(StepTrace(operators=computed + stored, states=slots(step, wrong_from, who), stop=None))


class Party:
    """The trees of one side: `intervals` x `interval` steps, wrong from step `wrong_from` on."""

    def __init__(self, shape: tuple[int, int], wrong_from: int | None, who: str = "liar") -> None:
        intervals, k = self.shape = shape
        self.steps = [[state(i * k + j, wrong_from, who) for j in range(k)] for i in range(intervals)]
        self.trace = lambda step: trace(step, wrong_from, who)
        self.claim = Leaves([steps[-1] for steps in self.steps])
        self.known = Known({(): self.claim})
        self.asked: list[tuple[int, ...]] = []

    def decide(self, model: ContractModel, side: Side) -> Decision:
        self.known.rows = None
        while isinstance(decision := next_move(model.view(), side, self.known, model.now), Need | NeedRow):
            if isinstance(decision, NeedRow):
                self.known.rows = tuple(model.rows)
            else:
                self.asked.append(decision.place)
                self.provide(decision.place)
        return decision

    def provide(self, place: tuple[int, ...]) -> None:
        interval, *rest = place
        tree = self.trace(interval * self.shape[1] + rest[0]) if rest else Leaves(self.steps[interval])
        self.known.trees[place] = tree


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


def start(shape: tuple[int, int], trainer: Party, challenger: Party) -> ContractModel:
    last = trainer.claim
    roots = (last.root, challenger.claim.root)
    return ContractModel(
        spec_of(shape), roots, (last.payloads[-1], last.as_next_root().last_leaf_proof, last.as_next_root().row)
    )


def play(model: ContractModel, parties: dict[Side, Party], order: tuple[Side, Side] = tuple(Side)) -> None:
    """Both sides move whenever they can, until nobody can move any more."""
    for _ in range(200):
        for side in order:
            decision = parties[side].decide(model, side) if side in parties else None
            if isinstance(decision, Move):
                send(model, decision)
                break
        else:
            return
    raise AssertionError("the game does not end")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("liar", Side, ids=lambda side: side.name.lower())
def test_every_divergence_is_found_at_its_step_in_a_move_for_four_levels(shape: tuple[int, int], liar: Side) -> None:
    intervals, k = shape
    for step in range(intervals * k):
        parties = {liar: Party(shape, step), liar.other: Party(shape, None)}
        model = start(shape, parties[Side.TRAINER], parties[Side.CHALLENGER])
        order = tuple(Side) if step % 2 else tuple(reversed(Side))
        play(model, parties, order)
        game = model.view()
        found = [*divmod(step, k), 8 + step % SLOTS]
        assert [level.index for level in game.levels] == found
        assert game.agreed == (state(step - 1, None, "") if step else INITIAL)
        searched = [-(-depth(leaves) // 4) for leaves in (intervals, k, 8 + SLOTS)]
        assert model.moves == sum(searched) + 2 + 2 + 1
        # Only the disputed interval and step were ever computed again.
        assert [party.asked for party in parties.values()] == [[(step // k,), divmod(step, k)]] * 2
        assert (model.outcome, model.reason) == (
            Outcome.CHALLENGER_WON if liar is Side.TRAINER else Outcome.TRAINER_WON,
            Reason.PROOF,
        )
        assert parties[Side.TRAINER].decide(model, Side.TRAINER) == Over(model.outcome)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (6, 2), (5, 1), (1, 6)], ids=str)
@pytest.mark.parametrize("silent", Side, ids=lambda side: side.name.lower())
def test_a_side_that_falls_silent_after_any_move_loses_by_the_clock_and_not_one_second_too_early(
    shape: tuple[int, int], silent: Side
) -> None:
    steps = shape[0] * shape[1]
    for step in range(steps):
        moves = 0
        while True:
            parties = {silent: Party(shape, step), silent.other: Party(shape, None)}
            model = start(shape, parties[Side.TRAINER], parties[Side.CHALLENGER])
            spent = 0
            while model.phase is not Phase.OVER:
                decision = parties[silent.other].decide(model, silent.other)
                if not isinstance(decision, Move):
                    if spent == moves:
                        break
                    decision = parties[silent].decide(model, silent)
                    assert isinstance(decision, Move)
                    spent += 1
                send(model, decision)
            if model.phase is Phase.OVER:
                break
            waiting = parties[silent.other].decide(model, silent.other)
            deadline = model.view().deadlines[silent]
            assert waiting == Wait(f"the {silent.name.lower()}'s move", deadline + 1)
            model.now = deadline
            assert isinstance(parties[silent].decide(model, silent), Bisect | OpenLevel | InTurn | ProveStore)
            assert not timeout_is_due(model.view(), model.now)
            with pytest.raises(Refused):
                model.claim_timeout()
            model.now += 1
            assert isinstance(parties[silent].decide(model, silent), Helpless)
            late = next_move(model.view(), silent.other, parties[silent.other].known, model.now + 10**6)
            assert parties[silent.other].decide(model, silent.other) == late == ClaimTimeout()
            model.claim_timeout()
            won = Outcome.TRAINER_WON if silent is Side.CHALLENGER else Outcome.CHALLENGER_WON
            assert (model.outcome, model.reason) == (won, Reason.TIMEOUT)
            moves += 1
        assert moves >= 2  # at least both openings were tried


def test_a_side_in_time_moves_even_though_the_other_one_is_out() -> None:
    shape = (1, 4)
    parties = {Side.TRAINER: Party(shape, 2), Side.CHALLENGER: Party(shape, None)}
    model = start(shape, parties[Side.TRAINER], parties[Side.CHALLENGER])
    model.remaining[Side.TRAINER] = 10
    model.now += 11
    move = parties[Side.CHALLENGER].decide(model, Side.CHALLENGER)
    assert isinstance(move, OpenLevel)
    send(model, move)
    assert parties[Side.CHALLENGER].decide(model, Side.CHALLENGER) == ClaimTimeout()
    model.claim_timeout()
    assert model.outcome is Outcome.CHALLENGER_WON


def test_a_silent_referee_is_timed_out_by_either_side() -> None:
    parties = {Side.TRAINER: Party((2, 2), 1), Side.CHALLENGER: Party((2, 2), None)}
    model = start((2, 2), parties[Side.TRAINER], parties[Side.CHALLENGER])
    model.phase, model.running = Phase.REFEREE, [0, 0]
    model.referee_deadline = deadline = model.now = 5000
    for side in Side:
        assert parties[side].decide(model, side) == Wait("the referee's verdict", deadline + 1)
    model.now += 1
    for side in Side:
        assert parties[side].decide(model, side) == ClaimTimeout()
    model.claim_timeout()
    assert model.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_a_tree_whose_padding_is_forged_loses_without_a_referee(count: int) -> None:
    honest = Party((count, 2), None)
    for place in range(count, 2 ** depth(count)):
        hashes = [MerkleTree([payload]).root for payload in honest.claim.payloads]
        hashes += [sha256(b"\x02").digest()] * (2 ** depth(count) - count)
        hashes[place] = sha256(b"not PAD").digest()
        forged = MerkleTree.of_leaf_hashes(hashes)
        last = honest.claim.payloads[-1]
        model = ContractModel(
            spec_of((count, 2)),
            (forged.root, honest.claim.root),
            (last, tuple(forged.proof(count - 1)), row(forged, forged.depth, 0)),
        )
        while model.phase is Phase.BISECTION:
            if model.turn is Side.CHALLENGER:
                move = honest.decide(model, Side.CHALLENGER)
                assert isinstance(move, Bisect)
                send(model, move)
            else:
                send(model, descent(forged, model.height, model.index, model.rows[-1]))
        assert (model.outcome, model.reason) == (Outcome.CHALLENGER_WON, Reason.PADDING)
        assert model.index == place


def test_whoever_has_no_tree_under_its_root_is_helpless_and_says_why() -> None:
    shape = (3, 2)
    honest, stranger = Party(shape, None), Party(shape, 3)
    model = start(shape, honest, stranger)
    lost = next_move(model.view(), Side.CHALLENGER, honest.known, model.now)
    assert lost == Helpless("the challenger's root at level CHECKPOINT is not over the states at hand")
    short = Known({(): Leaves(stranger.claim.payloads[:-1])})
    assert isinstance(next_move(model.view(), Side.CHALLENGER, short, model.now), Helpless)


def test_a_player_that_cannot_move_says_what_to_do() -> None:
    shape, told = (3, 2), list[str]()

    def tell(what: What, text: str, *, game: int | None = None) -> None:
        told.append(text)

    honest, stranger = Party(shape, None), Party(shape, 3)
    model = start(shape, honest, stranger)
    chain = cast(JobOnChain, SimpleNamespace(now=lambda: model.now, tell=tell))
    player = Games(chain, cast(LongWork, None), Side.CHALLENGER)
    trees = cast(DisputeTrees, SimpleNamespace(at_hand=honest.known.trees.get))
    game = model.view()
    player.play({7: game}, trees)
    model.now = game.deadlines[Side.CHALLENGER] + 1
    player.play({7: game}, trees)
    assert "not over the states at hand; let this role run in the directory that the claim" in told[0]
    assert "clock ran out" in told[1] and "keep this role running" in told[1] and len(told) == 2


def test_a_party_never_opens_a_level_that_does_not_carry_what_it_claimed_above() -> None:
    shape = (1, 3)
    trainer, challenger = Party(shape, 1), Party(shape, None)
    model = start(shape, trainer, challenger)
    challenger.known.trees[(0,)] = Leaves([*challenger.steps[0][:-1], bytes(32)])
    decision = challenger.decide(model, Side.CHALLENGER)
    assert decision == Helpless("leaf 0 at level CHECKPOINT does not follow from what is below it")
    del challenger.known.trees[(0,)]
    challenger.known.trees[0, 1] = trace(0, None, "")
    while isinstance(decision := challenger.decide(model, Side.CHALLENGER), Move):
        send(model, decision)
        while isinstance(decision := trainer.decide(model, Side.TRAINER), Move):
            send(model, decision)
    decision = challenger.decide(model, Side.CHALLENGER)
    assert decision == Helpless("leaf 1 at level STEP does not follow from what is below it")


def test_a_helper_with_the_same_trees_makes_the_moves_of_a_silent_side() -> None:
    shape = (5, 3)
    trainer, silent, helper = Party(shape, 7), Party(shape, None), Party(shape, None)
    model = start(shape, trainer, silent)
    while model.phase is Phase.BISECTION:
        if model.turn is Side.CHALLENGER:
            known = replace(helper.known, rows=tuple(model.rows))
            move = forced_move(model.view(), Side.CHALLENGER, known)
        else:
            move = trainer.decide(model, Side.TRAINER)
        assert isinstance(move, Bisect)
        send(model, move)
    assert model.index == 2


def test_rows_that_nobody_has_shown_are_never_taken() -> None:
    parties = {Side.TRAINER: Party((5, 3), 7), Side.CHALLENGER: Party((5, 3), None)}
    model = start((5, 3), parties[Side.TRAINER], parties[Side.CHALLENGER])
    known, shown = parties[Side.CHALLENGER].known, model.rows[-1]
    for rows in ((), ((bytes(32),) * len(shown),), (shown[::-1], shown[:-1], (*shown, shown[0]))):
        assert next_move(model.view(), Side.CHALLENGER, replace(known, rows=rows), model.now) == NeedRow()
    move = next_move(model.view(), Side.CHALLENGER, replace(known, rows=(shown[::-1], shown)), model.now)
    assert isinstance(move, Bisect) and move.descent.theirs == shown
    send(model, move)
    opened = parties[Side.TRAINER].decide(model, Side.TRAINER)
    assert isinstance(opened, OpenLevel) and opened.next.row
    send(model, opened)
    # Who opens last moves as well, but not upon a row that is not the one; the opening alone needs none.
    both = parties[Side.CHALLENGER].decide(model, Side.CHALLENGER)
    assert isinstance(both, InTurn) and isinstance(both.moves[0], OpenLevel) and not both.moves[0].next.row
    alone = next_move(model.view(), Side.CHALLENGER, replace(known, rows=(shown,)), model.now)
    assert alone == both.moves[0]


def test_the_trees_of_the_strategy_are_those_of_the_model() -> None:
    for count in range(1, 20):
        payloads = [sha256(b"%d" % i).digest() for i in range(count)]
        assert Leaves(payloads).root == root_of(payloads)
    with pytest.raises(ValueError, match="without leaves"):
        Leaves([])
