"""Whole disputes through the wrappers: over the chain in this process, the same behind HTTP, and anvil."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace

import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak
from roundlog.commitments.merkle import MerkleTree
from roundlog.spec import TrainingSpec
from tiebreak.chain import events as ev
from tiebreak.chain.abi import ENUMS, STRUCTS, ContractAbi, snake_case
from tiebreak.chain.accounts import devnet_account
from tiebreak.chain.errors import AccountError, ContractError, DeploymentError, InsufficientFunds
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Node, connect
from tiebreak.chain.records import (
    NO_CHILDREN,
    Children,
    JobStatus,
    LeafOpening,
    Level,
    NextRoot,
    Outcome,
    Phase,
    Reason,
    Side,
    Terms,
)
from tiebreak.chain.sender import Sender
from tiebreak.chain.spec import spec_hash

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


@pytest.mark.parametrize("wrong", [33])
def test_a_dispute_finds_the_wrong_step_and_the_referee_decides_it(node: Node, wrong: int) -> None:
    cast = Cast.on(node)
    job = cast.post()
    honest, cheat = Run.of(), Run.of(wrong)
    cast.commit(job, cheat)
    game = cast.dispute(job, cheat, honest)

    state = cast.customer.game(game)
    assert state.phase is Phase.REFEREE
    assert state.levels[0].index * INTERVAL + state.levels[1].index + 1 == wrong
    assert state.agreed == honest.states[wrong - 2] == cheat.states[wrong - 2]
    assert state.current.payloads == (cheat.states[wrong - 1], honest.states[wrong - 1])
    assert state.party(Side.CHALLENGER) == devnet_account(2).address

    before = node.balance(devnet_account(2).address)
    cast.referee.adjudicate(game, honest.states[wrong - 1])
    state = cast.customer.game(game)
    assert (state.phase, state.outcome, state.reason) == (Phase.OVER, Outcome.CHALLENGER_WON, Reason.VERDICT)
    assert cast.customer.job(job).status is JobStatus.REJECTED

    credit = cast.auditor.credit_of(devnet_account(2).address)
    assert credit == TERMS.challenger_bond + TERMS.trainer_bond // 2
    amount, receipt = cast.auditor.withdraw()
    assert amount == credit
    assert node.balance(devnet_account(2).address) == before + credit - receipt.fee
    with pytest.raises(ContractError) as caught:
        cast.auditor.withdraw()
    assert caught.value.name == "NothingToWithdraw"
    assert caught.value.values == {"account": devnet_account(2).address}

    # The events alone tell the same story, in order.
    told = cast.customer.events(game=game)
    assert [(event.block, event.index) for event in told] == sorted({(event.block, event.index) for event in told})
    assert isinstance(told[0], ev.Challenged)
    assert isinstance(told[-1], ev.ClaimRejected)
    assert [event.leaf_index for event in told if isinstance(event, ev.LeafFound)] == [
        (wrong - 1) // INTERVAL,
        (wrong - 1) % INTERVAL,
    ]
    movers = [event.mover for event in told if isinstance(event, ev.Bisected) and event.level is Level.CHECKPOINT]
    assert movers == [Side.CHALLENGER, Side.TRAINER, Side.CHALLENGER, Side.TRAINER]
    over = next(event for event in told if isinstance(event, ev.GameOver))
    assert (over.job, over.outcome, over.reason) == (job, Outcome.CHALLENGER_WON, Reason.VERDICT)


def test_an_undisputed_claim_becomes_final_when_its_window_has_closed(node: Node) -> None:
    cast = Cast.on(node)
    job = cast.post()
    run = Run.of()
    cast.commit(job, run)
    cast.auditor.attest(job, run.checkpoints.root)
    assert cast.auditor.has_attested(job, devnet_account(2).address)
    assert not cast.auditor.has_attested(job, devnet_account(1).address)

    seen = cast.customer.job(job)
    assert seen.status is JobStatus.CLAIMED
    assert seen.spec.training == SPEC
    assert seen.spec.referee == devnet_account(3).address
    assert seen.spec_hash == spec_hash(SPEC, devnet_account(3).address) == seen.spec.hash
    assert seen.terms == TERMS
    assert seen.job_cid == seen.claim.log_cid == seen.claim.model_cid == JOB_CID
    assert seen.claim.checkpoint_root == run.checkpoints.root
    assert seen.claim.challenge_deadline == seen.claim.committed_at + TERMS.challenge_window
    assert (seen.live_games, seen.game_count, seen.attestations) == (0, 0, 1)

    with pytest.raises(ContractError) as caught:
        cast.trainer.finalize(job)
    assert caught.value.name == "TooEarly"
    assert caught.value.values["deadline"] == seen.claim.challenge_deadline
    node.advance_time(TERMS.challenge_window + 1)
    cast.trainer.finalize(job)
    assert cast.customer.job(job).status is JobStatus.FINAL
    assert cast.trainer.withdraw()[0] == TERMS.reward + TERMS.trainer_bond
    assert [type(event).__name__ for event in cast.customer.events(job=job)] == [
        "JobPosted",
        "Committed",
        "Attested",
        "ClaimFinal",
    ]


def test_whoever_falls_silent_loses_the_bond(node: Node) -> None:
    cast = Cast.on(node)
    job = cast.post()
    cast.commit(job, Run.of())
    game, _ = cast.auditor.challenge(job, Run.of(40).checkpoints.root, bond=TERMS.challenger_bond)
    with pytest.raises(ContractError) as caught:
        cast.trainer.claim_timeout(game)
    assert caught.value.name == "TooEarly"
    node.advance_time(TERMS.clock_allowance + 1)
    cast.trainer.claim_timeout(game)
    assert cast.customer.game(game).outcome is Outcome.TRAINER_WON
    assert cast.trainer.credit_of(devnet_account(1).address) == TERMS.challenger_bond // 2
    assert cast.customer.games_of(job) == [game]
    assert (cast.customer.job_count(), cast.customer.game_count()) == (1, 1)


@pytest.fixture
def cast() -> Cast:
    return Cast.on(connect("embedded"))


def test_errors_of_the_contract_have_their_names_and_values_before_anything_is_spent(cast: Cast) -> None:
    job = cast.post()
    cast.commit(job, Run.of())
    before = cast.auditor.node.balance(devnet_account(2).address)
    cases = {
        "AnotherRootWasCommitted": lambda: cast.auditor.attest(job, root("other")),
        "RootIsTheTrainers": lambda: cast.auditor.challenge(job, Run.of().checkpoints.root, bond=ETHER),
        "WrongPayment": lambda: cast.auditor.challenge(job, root("other"), bond=ETHER - 1),
        "WrongJobStatus": lambda: cast.auditor.attest(job + 1, root("other")),
        "WrongPhase": lambda: cast.auditor.bisect(1, NO_CHILDREN, NO_CHILDREN),
    }
    for name, action in cases.items():
        with pytest.raises(ContractError) as caught:
            action()
        assert caught.value.name == name
        assert "\n" not in str(caught.value)
    with pytest.raises(ContractError) as caught:
        cast.customer.job(99)
    assert caught.value.values == {"job": 99, "actual": JobStatus.NONE, "expected": JobStatus.OPEN}
    assert "expected=OPEN" in str(caught.value)
    with pytest.raises(ContractError) as caught:
        cast.customer.post_job(replace(SPEC, interval=7), devnet_account(3).address, TERMS, JOB_CID)
    assert str(caught.value) == "the contract refused with IntervalDoesNotDivideSteps(interval=7, steps=60)."
    with pytest.raises(ContractError) as caught:
        cast.customer.post_job(replace(SPEC, state_count=0), devnet_account(3).address, TERMS, JOB_CID)
    assert (caught.value.name, caught.value.values["field"]) == ("FieldOutOfRange", "stateCount")
    assert cast.auditor.node.balance(devnet_account(2).address) == before


def test_values_that_do_not_fit_are_refused_before_they_are_sent(cast: Cast) -> None:
    for bad in (root("x")[:31], root("x") + b"x", "text", None, 7):
        with pytest.raises(ValueError, match="attest"):
            cast.auditor.attest(1, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="postJob"):
        cast.customer.post_job(replace(SPEC, steps=2**64), devnet_account(3).address, TERMS, JOB_CID)


def test_a_reward_that_the_account_does_not_have_is_one_clear_error(cast: Cast) -> None:
    with pytest.raises(InsufficientFunds, match=devnet_account(0).address):
        cast.customer.post_job(SPEC, devnet_account(3).address, replace(TERMS, reward=10**24), JOB_CID)


def test_writing_without_an_account_is_one_clear_error(cast: Cast) -> None:
    with pytest.raises(AccountError, match="keystore"):
        VerificationGame(cast.customer.node, cast.customer.address).withdraw()


def test_an_address_without_this_contract_is_refused(cast: Cast) -> None:
    node = cast.customer.node
    assert VerificationGame.at(node, cast.customer.address).job_count() == 0
    with pytest.raises(DeploymentError, match=devnet_account(0).address):
        VerificationGame.at(node, devnet_account(0).address)


def test_the_spec_hash_is_the_contracts(cast: Cast) -> None:
    referee = devnet_account(3).address
    for spec in (SPEC, replace(SPEC, seed=0, rounding_bits=23, log_guard=255), replace(SPEC, steps=1, interval=1)):
        assert cast.customer.hash_spec(spec, referee) == spec_hash(spec, referee)


def test_the_spec_hash_is_that_of_seventeen_words() -> None:
    referee = devnet_account(3).address
    words = [getattr(SPEC, field.name) for field in fields(SPEC)]
    joined = b"".join(word if isinstance(word, bytes) else word.to_bytes(32, "big") for word in words)
    assert len(joined) == 16 * 32
    assert spec_hash(SPEC, referee) == keccak(joined + bytes(12) + bytes.fromhex(referee[2:]))


def test_a_job_with_hostile_text_hides_no_other_job(cast: Cast) -> None:
    cast.customer.post_job(SPEC, devnet_account(3).address, TERMS, "\x1b[2Jé\n")
    call = cast.customer._abi.encode_call("postJob", cast.customer.job(1).spec, TERMS, "PLACEHOLDER-OF-SIXTEEN")
    sender = Sender(cast.customer.node, devnet_account(0))
    sender.send(cast.customer.address, call.replace(b"PLACEHOLDER", b"\xff\xfe\x00\x80\xc0PLACE1"), value=TERMS.reward)
    good = cast.post()
    posted = [event for event in cast.customer.events() if isinstance(event, ev.JobPosted)]
    assert [event.job for event in posted] == [1, 2, good]
    assert posted[2].job_cid == JOB_CID
    for event in posted:
        assert event.job_cid.isprintable()
        assert cast.customer.job(event.job).job_cid == event.job_cid


def test_the_records_have_exactly_the_fields_of_the_contracts_structs_and_events() -> None:
    abi = ContractAbi.load("VerificationGame")
    assert set(abi.event_topics()) == set(ev.EVENTS)
    seen: set[str] = set()

    def check(parameter: dict[str, object]) -> None:
        family, _, name = str(parameter.get("internalType", "")).partition(" ")
        name = name.split("[")[0]
        if family == "enum":
            assert name in ENUMS
        if family == "struct":
            components = parameter["components"]
            assert isinstance(components, list)
            names = {snake_case(item["name"]) for item in components}
            if name == "TrainingSpec":
                assert names == {field.name for field in fields(TrainingSpec)} | {"referee"}
            else:
                assert names == {field.name for field in fields(STRUCTS[name])}
            seen.add(name)
            for item in components:
                check(item)

    for entry in (*abi._functions.values(), *abi._events.values()):
        for parameter in (*entry["inputs"], *entry.get("outputs", [])):
            check(parameter)
    assert seen == {*STRUCTS, "TrainingSpec"}
    base = {field.name for field in fields(ev.Event)}
    for entry in abi._events.values():
        names = {"leaf_index" if item["name"] == "index" else snake_case(item["name"]) for item in entry["inputs"]}
        assert names == {field.name for field in fields(ev.EVENTS[entry["name"]])} - base


def test_unknown_and_malformed_errors_are_still_contract_errors() -> None:
    abi = ContractAbi.load("VerificationGame")
    message = bytes.fromhex("08c379a0") + encode(["string"], ["out of luck"])
    assert str(abi.decode_error(message)) == "the contract refused with Error(message=out of luck)."
    panic = abi.decode_error(bytes.fromhex("4e487b71") + encode(["uint256"], [0x11]))
    assert (panic.name, panic.values) == ("Panic", {"code": 0x11})
    for data in (b"", b"\x00", b"\xde\xad\xbe\xef", message[:20], message[:4], panic.name.encode()):
        assert abi.decode_error(data).name == "Unknown"
