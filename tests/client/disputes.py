"""Made-up training runs and parties that play whole disputes over them; no tensors involved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from roundlog.commitments import MerkleTree
from roundlog.dispute import StepTrace
from roundlog.spec import TrainingSpec
from tiebreak.contract.contract_calls import ANY_PLACE, ContractCall
from tiebreak.contract.contract_watch import find_chunk, find_rows
from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.events import Appealed, Challenged, JobPosted, Withdrawn
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, PostedSpec, Terms
from tiebreak.roles.player import call_of
from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.rpc.chain_errors import ContractError
from tiebreak.rpc.node import ChainNode
from tiebreak.strategy import (
    CLAIM_TIMEOUT,
    Decision,
    Known,
    Leaves,
    Move,
    Need,
    NeedChunk,
    NeedRow,
    Place,
    Trace,
    Tree,
    next_move,
    next_root_of,
)
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

STEPS, INTERVAL = 60, 5
ETHER = 10**18
JOB_CID = "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"


def root(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


SPEC = TrainingSpec(
    steps=STEPS,
    interval=INTERVAL,
    program_root=root("program"),
    operator_count=100,
    initial_state_root=root("state", 0),
    state_count=7,
    data_root=root("data"),
    data_rows=1797,
    batch_size=32,
    schedule_root=root("schedule"),
    seed=2**64 - 1,
)
TERMS = Terms(
    reward=3 * ETHER,
    trainer_bond=2 * ETHER,
    challenger_bond=ETHER,
    commit_window=3600,
    challenge_window=7200,
    clock_allowance=3000,
    referee_allowance=600,
    concurrent_games=16,
)


@dataclass
class Run:
    """A training as a party believes it: the state (tensor roots of its slots) after every step. A run that goes wrong
    at step `wrong`, counted from 1, has stored another slot there, and stays wrong."""

    wrong: int

    @classmethod
    def of(cls, wrong: int = STEPS + 1) -> Run:
        return cls(wrong)

    def slots(self, step: int) -> list[bytes]:
        if step < self.wrong:
            return [root("slot", step, slot) for slot in range(SPEC.state_count)]
        right = Run.of().slots(step)
        return [root("wrong", step, slot) if step > self.wrong or slot == 2 else right[slot] for slot in range(7)]

    @property
    def states(self) -> list[bytes]:
        return [MerkleTree(self.slots(step)).root for step in range(1, STEPS + 1)]

    @property
    def checkpoints(self) -> MerkleTree:
        return MerkleTree(self.states[INTERVAL - 1 :: INTERVAL])

    def tree(self, place: Place) -> Tree:
        """Tree as a party's dispute trees give it."""
        if not place:
            return Leaves(self.states[INTERVAL - 1 :: INTERVAL])
        if len(place) == 1:
            return Leaves(self.states[place[0] * INTERVAL : (place[0] + 1) * INTERVAL])
        step = place[0] * INTERVAL + place[1] + 1
        # The operators compute right in the step in which the run goes wrong.
        stored = self.slots(step) if step != self.wrong else Run.of().slots(step)
        computed = [root("operator", step, q, step > self.wrong) for q in range(SPEC.operator_count - len(stored))]
        return Trace(StepTrace(operators=computed + stored, states=self.slots(step), stop=None))


def made(contract: VerificationGame, call: ContractCall) -> tuple[Any, TransactionReceipt]:
    """The result of a call, as its event tells it: a job, a game (None: it was an attestation), an amount."""
    receipt = contract.send(call)
    match call.function:
        case "postJob":
            return contract.event(receipt, JobPosted).job, receipt
        case "challenge":
            return contract.event(receipt, Challenged).game, receipt
        case "appeal":
            return contract.event(receipt, Appealed).game, receipt
        case "withdraw":
            return contract.event(receipt, Withdrawn).amount, receipt
        case "openAudit":
            games = [event.game for event in contract.decode(receipt.logs) if isinstance(event, Challenged)]
            return (games[0] if games else None), receipt
    raise AssertionError(f"{call.function} has no result")


class HasTrees(Protocol):
    """Whatever has a tree for every place of a dispute."""

    def tree(self, place: Place) -> Tree: ...


@dataclass
class Party:
    """Plays one side of a game from its own trees, knowing nothing of the other's. twist: makes what is sent of a move
    that is due, or nothing. `made`: the moves that it has made; `asked`: the places whose trees it needed."""

    contract: VerificationGame
    run: HasTrees
    side: Side
    twist: Callable[[GameView, Move], Move | None] | None = None

    def __post_init__(self) -> None:
        self.known = Known()
        self.made: list[Move] = []
        self.asked: list[Place] = []

    def decide(self, game: int, now: int | None = None) -> Decision:
        """The decision of this side, at an instant or in the next block."""
        state = self.contract.game(game)
        now = self.contract.node.now() if now is None else now
        self.known.rows = self.known.chunk = None
        while True:
            decision = next_move(state, self.side, self.known, now)
            if isinstance(decision, Need):
                self.asked.append(decision.place)
                self.known.trees[decision.place] = self.run.tree(decision.place)
            elif isinstance(decision, NeedRow):
                self.known.rows = find_rows(self.contract, game, state)
            elif isinstance(decision, NeedChunk):
                self.known.chunk = find_chunk(self.contract, game, state)
                assert self.known.chunk is not None
            else:
                return decision

    def move(self, game: int) -> TransactionReceipt | None:
        """Makes the move that is due from this side, if one is."""
        decision: object = self.decide(game)
        if isinstance(decision, Move) and self.twist is not None:
            decision = self.twist(self.contract.game(game), decision)
        if not isinstance(decision, Move):
            return None
        receipt = self.contract.send(call_of(self.contract, game, decision))
        self.made.append(decision)
        return receipt


@dataclass
class Cast:
    """One contract and four accounts around it."""

    customer: VerificationGame
    trainer: VerificationGame
    auditor: VerificationGame
    referee: VerificationGame

    @classmethod
    def on(cls, node: ChainNode) -> Cast:
        senders = [Sender(node, devnet_account(i), patience=20.0) for i in range(4)]
        customer = VerificationGame.deploy(senders[0])
        return cls(customer, *(customer.by(sender) for sender in senders[1:]))

    def spec(self, **changes: Any) -> PostedSpec:
        return PostedSpec(replace(SPEC, **changes), devnet_account(3).address, self.customer.adjudicator())

    def post(self, terms: Terms = TERMS) -> int:
        job, _ = made(self.customer, self.customer.post_job(self.spec(), terms, JOB_CID))
        return job

    def commit(self, job: int, run: Run) -> None:
        tree = run.checkpoints
        self.trainer.send(
            self.trainer.paying(
                "commit",
                job,
                spec_hash=self.spec().hash,
                claimed=next_root_of(tree),
                final_state_root=run.states[-1],
                log_cid=JOB_CID,
                model_cid=JOB_CID,
                bond=TERMS.trainer_bond,
            )
        )

    def attest(self, job: int, checkpoint_root: bytes) -> TransactionReceipt:
        return self.auditor.send(ContractCall.of("attest", job, self.spec().hash, checkpoint_root, "", "", ANY_PLACE))

    def challenge(self, job: int, checkpoint_root: bytes, bond: int = TERMS.challenger_bond) -> int:
        """The auditor's, of the claim that stands there."""
        seen = self.auditor.job(job)
        game, _ = made(
            self.auditor,
            self.auditor.paying(
                "challenge",
                job,
                spec_hash=seen.spec_hash,
                claimed_root=seen.claim.checkpoint_root,
                checkpoint_root=checkpoint_root,
                bond=bond,
            ),
        )
        return game

    def start(self, training: TrainingSpec, claimed: Leaves, believed: Leaves) -> int:
        """Posts a job, claims one tree's root, and challenges it by the other one's; returns the game's number."""
        posted = PostedSpec(training, devnet_account(3).address, self.customer.adjudicator())
        job, _ = made(self.customer, self.customer.post_job(posted, TERMS, JOB_CID))
        self.trainer.send(
            self.trainer.paying(
                "commit",
                job,
                spec_hash=posted.hash,
                claimed=claimed.as_next_root(),
                final_state_root=claimed.payloads[-1],
                log_cid=JOB_CID,
                model_cid=JOB_CID,
                bond=TERMS.trainer_bond,
            )
        )
        return self.challenge(job, believed.root)

    def sides(self, trainer: HasTrees, challenger: HasTrees) -> dict[Side, Party]:
        """The parties of a game, with their trees."""
        return {
            Side.TRAINER: Party(self.trainer, trainer, Side.TRAINER),
            Side.CHALLENGER: Party(self.auditor, challenger, Side.CHALLENGER),
        }

    def play(self, game: int, honest: Party, other: Party) -> GameView:
        """Plays a game to its end, or to the referee. Both move whenever they can, and every move of the honest one has
        to be accepted. Whoever falls silent loses its time."""
        node = self.customer.node
        for _ in range(300):
            state = self.customer.game(game)
            if state.phase in (Phase.OVER, Phase.REFEREE):
                return state
            if honest.move(game) is not None:
                continue
            with suppress(ContractError):
                if other.move(game) is not None:
                    continue
            # Nobody moves: the other one lets its time run out.
            node.advance_time(max(1, max(state.deadlines) + 1 - node.head().timestamp))
            assert (decision := honest.decide(game)) == CLAIM_TIMEOUT, decision
            honest.move(game)
        raise AssertionError("the game does not end")

    def dispute(self, job: int, claimed: Run, believed: Run, *, until: Phase = Phase.OVER) -> int:
        """Plays a game from the challenge to its end, or to another phase."""
        game = self.challenge(job, believed.checkpoints.root)
        parties = [Party(self.trainer, claimed, Side.TRAINER), Party(self.auditor, believed, Side.CHALLENGER)]
        for turn in range(100):
            if self.customer.game(game).phase is until:
                return game
            parties[turn % 2].move(game)
        raise AssertionError("the game does not end")
