"""Code at an address: the game over its libraries, the adjudicator over its functions, nothing else. A whole dispute
through the wrappers, and the contract's errors, events and hashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eth_abi.abi import encode
from eth_typing import ChecksumAddress
from eth_utils.address import to_canonical_address, to_checksum_address
from roundlog.commitments import leaf_hash
from roundlog.spec import TrainingSpec
from tiebreak.contract import events as ev
from tiebreak.contract.abi import ContractAbi
from tiebreak.contract.code import (
    ADJUDICATORS_PARTS,
    LIBRARIES,
    ContractCode,
    deploy_adjudicator,
    is_adjudicator,
    is_game,
)
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import snake_case
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import Descent, PostedSpec
from tiebreak.devnet.embedded import embedded_node
from tiebreak.rpc.chain_errors import AccountError, ContractError, DeploymentError, NoCode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import ETHER, INTERVAL, JOB_CID, TERMS, Cast, Party, Run, made, root


@pytest.fixture(scope="module")
def sender() -> Sender:
    return Sender(embedded_node(), devnet_account(0))


def word(address: ChecksumAddress) -> bytes:
    return bytes(12) + to_canonical_address(address)


def deploy_raw(sender: Sender, code: bytes) -> ChecksumAddress:
    """A contract with exactly this code."""
    # PUSH2 length, DUP1, PUSH1 11, PUSH0, CODECOPY, PUSH0, RETURN
    start = b"\x61" + len(code).to_bytes(2, "big") + bytes.fromhex("80600a5f395ff3")
    assert len(start) == 10
    address = sender.send(None, start + code).contract
    assert address is not None and sender.node.code(address) == code
    return address


def test_the_game_is_known_by_its_code_and_by_that_of_its_libraries(sender: Sender) -> None:
    game = VerificationGame.deploy(sender)
    node = sender.node
    assert is_game(node, game.address) and is_adjudicator(node, game.adjudicator())
    assert not is_game(node, game.adjudicator()) and not is_adjudicator(node, game.address)
    with pytest.raises(NoCode, match="caught up"):
        is_game(node, sender.address)
    found = ContractCode.load("VerificationGame").at(node, game.address)
    assert found is not None and found[1] == [word(game.adjudicator())]
    assert set(found[0]) == set(LIBRARIES)
    code = node.code(game.address)
    for position in (0, 100, len(code) - 1):
        changed = bytearray(code)
        changed[position] ^= 1
        other = deploy_raw(sender, bytes(changed))
        assert not is_game(node, other)
        with pytest.raises(DeploymentError, match=other):
            VerificationGame.at(node, other)
    assert is_game(node, deploy_raw(sender, code))
    assert not is_game(node, deploy_raw(sender, code[:-1]))


def test_a_game_over_another_library_is_another_game(sender: Sender) -> None:
    game = VerificationGame.deploy(sender)
    deployed = ContractCode.load("VerificationGame").at(sender.node, game.address)
    assert deployed is not None
    code = sender.node.code(game.address)
    stranger = deploy_raw(sender, b"\x00")
    for name, places in ContractCode.load("VerificationGame").deployed_links.items():
        changed, once = code, code
        for number, (start, length) in enumerate(places):
            changed = changed[:start] + to_canonical_address(stranger) + changed[start + length :]
            if number == 0:
                once = changed
        assert not is_game(sender.node, deploy_raw(sender, changed)), name
        assert not is_game(sender.node, deploy_raw(sender, once)), name
    # Another library's code under a library's name, and a library that believes to stand elsewhere.
    for other in ("LevelOpenings", "a copy"):
        ours = deployed[0]
        another = deploy_raw(sender, sender.node.code(ours["Proofs"])) if other == "a copy" else ours[other]
        made = ContractCode.load("VerificationGame").deploy(
            sender, links={**ours, "Proofs": another}, argument=word(game.adjudicator())
        )
        assert made.contract is not None and not is_game(sender.node, made.contract), other


def test_an_adjudicator_over_other_contracts_is_another_one(sender: Sender) -> None:
    node = sender.node
    adjudicator = deploy_adjudicator(sender)
    assert is_adjudicator(node, adjudicator)
    stranger = deploy_raw(sender, node.code(adjudicator)[:50])
    found = ContractCode.load("Adjudicator").at(node, adjudicator)
    assert found is not None and len(found[1]) == len(ADJUDICATORS_PARTS)
    functions, reducer = found[1]
    for parts in ((word(stranger), reducer), (functions, word(stranger)), (reducer, functions)):
        other = ContractCode.load("Adjudicator").deploy(sender, argument=b"".join(parts)).contract
        assert other is not None and not is_adjudicator(node, other)
    # One place shows the contract that everybody knows, the other calls a different one.
    code = node.code(adjudicator)
    for places in ContractCode.load("Adjudicator").immutables:
        assert len(places) > 1
        for start, length in places:
            assert not is_adjudicator(node, deploy_raw(sender, code[:start] + word(stranger) + code[start + length :]))
        dirty = code
        for start, length in places:
            dirty = dirty[:start] + b"\x01" + dirty[start + 1 : start + length] + dirty[start + length :]
        assert not is_adjudicator(node, deploy_raw(sender, dirty))
    assert is_adjudicator(node, deploy_raw(sender, code))


@pytest.fixture(scope="module")
def cast() -> Cast:
    return Cast.on(embedded_node())


def test_a_dispute_finds_the_wrong_slot_and_the_contract_decides_it(cast: Cast) -> None:
    node, wrong = cast.customer.node, 33
    cast.post()
    job = cast.post()
    assert job > 1  # so that the numbers of job, game, levels and sides cannot be taken for each other
    honest, cheat = Run.of(), Run.of(wrong)
    cast.commit(job, cheat)
    game = cast.dispute(job, cheat, honest, until=Phase.PROVING)

    state = cast.customer.game(game)
    assert state.levels[0].index * INTERVAL + state.levels[1].index + 1 == wrong
    assert state.agreed == honest.states[wrong - 2] == cheat.states[wrong - 2]
    assert (state.current.level, state.current.index) == (Level.OPERATOR, 128 + 2)
    assert state.search.nodes == tuple(leaf_hash(run.slots(wrong)[2]) for run in (cheat, honest))
    assert state.party(Side.CHALLENGER) == devnet_account(2).address

    before = node.balance(devnet_account(2).address)
    settled = Party(cast.auditor, honest, Side.CHALLENGER).move(game)
    assert settled is not None
    state = cast.customer.game(game)
    assert (state.phase, state.outcome, state.reason) == (Phase.OVER, Outcome.CHALLENGER_WON, Reason.PROOF)
    assert cast.customer.job(job).status is JobStatus.REJECTED

    credit = cast.auditor.credit_of(devnet_account(2).address)
    assert 0 < state.spent[Side.CHALLENGER] < TERMS.trainer_bond // 4
    rest = TERMS.trainer_bond - state.spent[Side.CHALLENGER]
    assert credit == TERMS.challenger_bond + state.spent[Side.CHALLENGER] + rest // 2
    amount, receipt = made(cast.auditor, ContractCall.of("withdraw"))
    assert amount == credit
    assert node.balance(devnet_account(2).address) == before + credit - settled.fee - receipt.fee
    with pytest.raises(ContractError) as caught:
        cast.auditor.send(ContractCall.of("withdraw"))
    assert caught.value.name == "NothingToWithdraw"
    assert caught.value.values == {"account": devnet_account(2).address}

    # The events alone tell the same story, in order, whoever selects them.
    every = cast.customer.events()
    for about in ({"job": job}, {"game": game}, {"job": job, "game": game}):
        assert cast.customer.events(**about) == [
            event for event in every if all(getattr(event, name, None) == wanted for name, wanted in about.items())
        ]
    told = cast.customer.events(game=game)
    assert [(event.block, event.index) for event in told] == sorted({(event.block, event.index) for event in told})
    assert isinstance(told[0], ev.Challenged)
    assert [type(event) for event in told[-2:]] == [ev.ClaimRejected, ev.Burnt]
    assert [event.leaf_index for event in told if isinstance(event, ev.LeafFound)] == [
        (wrong - 1) // INTERVAL,
        (wrong - 1) % INTERVAL,
        128 + 2,
    ]
    movers = [event.mover for event in told if isinstance(event, ev.Bisected) and event.level is Level.CHECKPOINT]
    assert movers == [Side.CHALLENGER]  # of twelve checkpoints: one move
    over = next(event for event in told if isinstance(event, ev.GameOver))
    assert (over.job, over.outcome, over.reason) == (job, Outcome.CHALLENGER_WON, Reason.PROOF)


def test_errors_of_the_contract_have_their_names_and_values_before_anything_is_spent(cast: Cast) -> None:
    job = cast.post()
    cast.commit(job, Run.of())
    before = cast.auditor.node.balance(devnet_account(2).address)
    cases = {
        "AnotherRootWasCommitted": lambda: cast.attest(job, root("other")),
        "RootIsTheTrainers": lambda: cast.challenge(job, Run.of().checkpoints.root),
        "WrongPayment": lambda: cast.challenge(job, root("other"), bond=ETHER - 1),
        "WrongJobStatus": lambda: cast.attest(job + 1, root("other")),
        "WrongPhase": lambda: cast.auditor.send(ContractCall.of("bisect", 1, Descent(mine=(), theirs=(), next=()))),
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
        cast.customer.send(cast.customer.post_job(cast.spec(interval=7), TERMS, JOB_CID))
    assert str(caught.value) == (
        "the contract refused with IntervalDoesNotDivideSteps(interval=7, steps=60): "
        "create the job again with a value that fits."
    )
    with pytest.raises(ContractError) as caught:
        cast.customer.send(cast.customer.post_job(cast.spec(state_count=0), TERMS, JOB_CID))
    assert (caught.value.name, caught.value.values["field"]) == ("FieldOutOfRange", "stateCount")
    assert cast.auditor.node.balance(devnet_account(2).address) == before


def test_writing_without_an_account_is_one_clear_error(cast: Cast) -> None:
    with pytest.raises(AccountError, match="keystore"):
        VerificationGame(cast.customer.node, cast.customer.address).send(ContractCall.of("withdraw"))


def test_the_spec_hash_is_the_one_that_solidity_computes_from_the_shared_vectors() -> None:
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "spec.json").read_text())
    assert len(vectors) >= 4
    for vector in vectors:
        words = {snake_case(name): value for name, value in vector["spec"].items()}
        referee, adjudicator = (to_checksum_address(words.pop(name)) for name in ("referee", "adjudicator"))
        spec = TrainingSpec(
            **{name: bytes.fromhex(word[2:]) if isinstance(word, str) else word for name, word in words.items()}
        )
        assert PostedSpec(spec, referee, adjudicator).hash.hex() == vector["hash"].removeprefix("0x")


def test_a_job_with_hostile_text_hides_no_other_job(cast: Cast) -> None:
    cast.customer.send(cast.customer.post_job(cast.spec(), TERMS, "\x1b[2Jé\n"))
    call = cast.customer._abi.encode_call("postJob", cast.spec(), TERMS, "PLACEHOLDER-OF-SIXTEEN")
    sender = Sender(cast.customer.node, devnet_account(5))
    sender.send(cast.customer.address, call.replace(b"PLACEHOLDER", b"\xff\xfe\x00\x80\xc0PLACE1"), value=TERMS.reward)
    good = cast.post()
    posted = [event for event in cast.customer.events() if isinstance(event, ev.JobPosted)][-3:]
    assert [event.job for event in posted] == [good - 2, good - 1, good]
    assert posted[2].job_cid == JOB_CID
    for event in posted:
        assert event.job_cid.isprintable()
        assert cast.customer.job(event.job).job_cid == event.job_cid


def test_unknown_and_malformed_errors_are_still_contract_errors() -> None:
    abi = ContractAbi.load("VerificationGame")
    message = bytes.fromhex("08c379a0") + encode(["string"], ["out of luck"])
    assert str(abi.decode_error(message)) == (
        "the contract refused with Error(message=out of luck): check that the address holds this version's contract."
    )
    panic = abi.decode_error(bytes.fromhex("4e487b71") + encode(["uint256"], [0x11]))
    assert (panic.name, panic.values) == ("Panic", {"code": 0x11})
    for data in (b"", b"\x00", b"\xde\xad\xbe\xef", message[:20], message[:4], panic.name.encode()):
        assert abi.decode_error(data).name == "Unknown"
