"""Made-up training runs and parties that play whole disputes over them; no tensors involved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from roundlog.commitments.merkle import MerkleTree
from roundlog.spec import TrainingSpec
from tiebreak.chain.accounts import devnet_account
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Node
from tiebreak.chain.records import NO_CHILDREN, Children, LeafOpening, Level, NextRoot, Phase, Side, Terms
from tiebreak.chain.sender import Sender

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
    clock_allowance=600,
    referee_allowance=300,
)


@dataclass
class Run:
    """What a party believes: the state root after every step. A run that goes wrong at step `wrong` stays wrong."""

    states: list[bytes]

    @classmethod
    def of(cls, wrong: int = STEPS + 1) -> Run:
        return cls([root("state", step, "wrong" if step >= wrong else "") for step in range(1, STEPS + 1)])

    @property
    def checkpoints(self) -> MerkleTree:
        return MerkleTree(self.states[INTERVAL - 1 :: INTERVAL])

    def inside(self, interval: int) -> MerkleTree:
        return MerkleTree(self.states[interval * INTERVAL : (interval + 1) * INTERVAL])


@dataclass
class Party:
    """Plays one side of a game from its own run, knowing nothing of the other's."""

    contract: VerificationGame
    run: Run
    side: Side

    def tree(self, game: int) -> MerkleTree:
        levels = self.contract.game(game).levels
        return self.run.checkpoints if levels[-1].level is Level.CHECKPOINT else self.run.inside(levels[0].index)

    def bisect(self, game: int) -> int:
        at, tree = self.contract.game(game).current, self.tree(game)
        opened = children(tree, at.height, at.index >> at.height)
        left = opened.left != at.revealed.left
        below = 2 * (at.index >> at.height) + (0 if left else 1)
        next_children = children(tree, at.height - 1, below) if at.height > 1 else NO_CHILDREN
        return self.contract.bisect(game, opened, next_children).gas_used

    def opening(self, game: int) -> LeafOpening:
        levels, tree = self.contract.game(game).levels, self.tree(game)
        index = levels[-1].index
        if levels[-1].level is Level.CHECKPOINT:
            states = self.run.states[INTERVAL - 1 :: INTERVAL]
        else:
            states = self.run.states[levels[0].index * INTERVAL :]
        if index == 0:
            return LeafOpening(payload=states[0], agreed=levels[-1].agreed_before, agreed_proof=())
        return LeafOpening(payload=states[index], agreed=states[index - 1], agreed_proof=tuple(tree.proof(index - 1)))

    def open_level(self, game: int) -> None:
        below = self.run.inside(self.contract.game(game).current.index)
        proof = tuple(below.proof(INTERVAL - 1))
        self.contract.open_level(game, self.side, self.opening(game), NextRoot(root=below.root, last_leaf_proof=proof))

    def reveal(self, game: int) -> None:
        self.contract.reveal_leaf(game, self.side, self.opening(game))


def children(tree: MerkleTree, height: int, index: int) -> Children:
    return Children(left=tree.node(height - 1, 2 * index), right=tree.node(height - 1, 2 * index + 1))


@dataclass
class Cast:
    """One contract and four accounts around it."""

    customer: VerificationGame
    trainer: VerificationGame
    auditor: VerificationGame
    referee: VerificationGame

    @classmethod
    def on(cls, node: Node) -> Cast:
        senders = [Sender(node, devnet_account(i), patience=20.0) for i in range(4)]
        customer = VerificationGame.deploy(senders[0])
        return cls(customer, *(customer.by(sender) for sender in senders[1:]))

    def post(self, terms: Terms = TERMS) -> int:
        job, _ = self.customer.post_job(SPEC, devnet_account(3).address, terms, JOB_CID)
        return job

    def commit(self, job: int, run: Run) -> None:
        tree = run.checkpoints
        self.trainer.commit(
            job,
            checkpoint_root=tree.root,
            final_state_root=run.states[-1],
            proof=tree.proof(tree.count - 1),
            log_cid=JOB_CID,
            model_cid=JOB_CID,
            bond=TERMS.trainer_bond,
        )

    def dispute(self, job: int, claimed: Run, believed: Run) -> int:
        """Plays a game from the challenge to the call of the referee."""
        game, _ = self.auditor.challenge(job, believed.checkpoints.root, bond=TERMS.challenger_bond)
        parties = [Party(self.trainer, claimed, Side.TRAINER), Party(self.auditor, believed, Side.CHALLENGER)]
        for _ in range(100):
            state = self.customer.game(game)
            if state.phase is Phase.BISECTION:
                parties[state.current.turn].bisect(game)
            elif state.phase is Phase.OPENING:
                for party in parties:
                    (party.reveal if state.current.level.is_last else party.open_level)(game)
            else:
                return game
        raise AssertionError("the game does not end")
