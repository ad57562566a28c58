"""The model of coalitions pays what the contract pays, to the wei."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audit_coalitions import Coalition, End, Rule
from tiebreak.contract.enums import JobStatus
from tiebreak.devnet.embedded import embedded_node
from tiebreak.game.moves import next_root_of
from tiebreak.roles.sealing import audit_seal, claim_seal
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import JOB_CID, TERMS, Cast, Run

FEE = 10**18 + 5
SALT = bytes(range(32))
CUSTOMER, TRAINER = devnet_account(0), devnet_account(1)


def coalition(needed: int, places: tuple[bool | None, ...], end: End) -> Coalition:
    bond = TERMS.challenger_bond + 1
    return Coalition(fee=FEE, needed=needed, trainer_bond=3 * FEE, bond=bond, places=places, end=end)


@pytest.fixture(scope="module")
def node() -> ChainNode:
    return embedded_node()


@pytest.fixture(scope="module")
def cast(node: ChainNode) -> Cast:
    return Cast.on(node)


def play(cast: Cast, node: ChainNode, one: Coalition) -> tuple[list[int], int]:
    """(wei of the fee by place, wei that those in league have lost) of a coalition whose end has no game."""
    run, contract = Run.of(), cast.trainer
    tree = run.checkpoints
    terms = replace(
        TERMS,
        trainer_bond=one.trainer_bond,
        challenger_bond=one.bond,
        attestations_needed=one.needed,
        audit_fee=one.fee,
        attestation_bond=one.bond,
        audit_window=3600,
        opening_window=3600,
    )
    job = cast.post(terms)
    parties = [contract.by(Sender(node, devnet_account(4 + place))) for place in range(len(one.places))]
    accounts = [devnet_account(4 + place).address for place in range(len(one.places))]
    league = [CUSTOMER.address, TRAINER.address]
    league += [account for account, puppet in zip(accounts, one.places, strict=True) if puppet is not None]
    before = {account: contract.credit_of(account) for account in [*league, *accounts]}
    facts = {"final_state_root": run.states[-1], "log_cid": JOB_CID, "model_cid": JOB_CID}
    about = node.chain_id, contract.address, job
    seal = claim_seal(*about, TRAINER.address, checkpoint_root=tree.root, **facts, salt=SALT)
    contract.send(contract.seal_claim(job, spec_hash=cast.spec().hash, seal=seal, bond=one.trainer_bond))
    for party, account in zip(parties, accounts, strict=True):
        sealed = audit_seal(*about, account, checkpoint_root=tree.root, salt=SALT)
        party.send(party.seal_audit(job, spec_hash=cast.spec().hash, seal=sealed, bond=one.bond))
    if one.end is End.UNOPENED:
        node.advance_time(7201)
        contract.send(contract.reclaim(job))
    else:
        node.advance_time(3601)
        contract.send(contract.open_claim(job, claimed=next_root_of(tree), **facts, salt=SALT))
        for party, puppet in reversed(list(zip(parties, one.places, strict=True))):
            if puppet is not False:
                party.send(
                    party.open_audit(job, checkpoint_root=tree.root, log_cid=JOB_CID, model_cid=JOB_CID, salt=SALT)
                )
        node.advance_time(terms.challenge_window + 1)
        contract.send(contract.finalize(job))
    for account in accounts:
        contract.send(contract.collect(job, account))
    gained = {account: contract.credit_of(account) - wei for account, wei in before.items()}
    puppets = sum(puppet is not None for puppet in one.places)
    paid_in = terms.reward + one.fee + one.trainer_bond + puppets * one.bond
    assert contract.job(job).status is not JobStatus.CLAIMED
    return [max(0, gained[account] - one.bond) for account in accounts], paid_in - sum(gained[one] for one in league)


@pytest.mark.parametrize("end", [End.WINDOW, End.UNOPENED])
@pytest.mark.parametrize("needed", [1, 2, 3])
@pytest.mark.parametrize(
    "places",
    [(None, True, True), (False, None, True, None), (True, False, None, True), (None, None), (False, False, None)],
)
def test_the_model_pays_what_the_contract_pays(
    cast: Cast, node: ChainNode, places: tuple[bool | None, ...], needed: int, end: End
) -> None:
    one = coalition(needed, places, end)
    fees, lost = play(cast, node, one)
    assert fees == [one.fees(Rule.PLACES).get(place, 0) for place in range(len(places))]
    assert lost == one.costs(Rule.PLACES)
