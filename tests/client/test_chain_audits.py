"""Bonded attestations, blind audits and appeals through the wrappers; the contract opens seals that were made here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_typing import ChecksumAddress
from tiebreak.contract.enums import JobStatus
from tiebreak.game.moves import next_root_of
from tiebreak.roles.sealing import audit_seal, claim_seal, new_salt
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account

from tests.client.disputes import JOB_CID, TERMS, Cast, Run, made

FEE = 10**17
OPEN = replace(TERMS, attestations_needed=1, audit_fee=FEE, attestation_bond=10**18)
BLIND = replace(OPEN, attestation_bond=TERMS.challenger_bond, audit_window=3600, opening_window=3600)
TRAINER, AUDITOR = devnet_account(1).address, devnet_account(2).address


@pytest.fixture
def cast(node: ChainNode) -> Cast:
    return Cast.on(node)


def sealed_claim(cast: Cast, job: int, run: Run) -> bytes:
    """Seals the trainer's claim, and returns the salt."""
    salt = new_salt()
    seal = claim_seal(
        cast.trainer.node.chain_id,
        cast.trainer.address,
        job,
        TRAINER,
        checkpoint_root=run.checkpoints.root,
        final_state_root=run.states[-1],
        log_cid=JOB_CID,
        model_cid=JOB_CID,
        salt=salt,
    )
    cast.trainer.send(cast.trainer.seal_claim(job, spec_hash=cast.spec().hash, seal=seal, bond=TERMS.trainer_bond))
    return salt


def open_claim(cast: Cast, job: int, run: Run, salt: bytes) -> None:
    cast.trainer.send(
        cast.trainer.open_claim(
            job,
            claimed=next_root_of(run.checkpoints),
            final_state_root=run.states[-1],
            log_cid=JOB_CID,
            model_cid=JOB_CID,
            salt=salt,
        )
    )


def sealed_audit(cast: Cast, job: int, run: Run, who: ChecksumAddress = AUDITOR) -> bytes:
    salt = new_salt()
    seal = audit_seal(
        cast.auditor.node.chain_id, cast.auditor.address, job, who, checkpoint_root=run.checkpoints.root, salt=salt
    )
    cast.auditor.send(cast.auditor.seal_audit(job, spec_hash=cast.spec().hash, seal=seal, bond=BLIND.attestation_bond))
    return salt


def open_audit(cast: Cast, job: int, run: Run, salt: bytes) -> int | None:
    game, _ = made(
        cast.auditor,
        cast.auditor.open_audit(
            job, checkpoint_root=run.checkpoints.root, log_cid=JOB_CID, model_cid=JOB_CID, salt=salt
        ),
    )
    return game


def attest(cast: Cast, job: int, run: Run) -> None:
    cast.auditor.send(
        cast.auditor.attest(
            job,
            spec_hash=cast.spec().hash,
            checkpoint_root=run.checkpoints.root,
            log_cid="bafylog",
            model_cid="bafymodel",
            bond=OPEN.attestation_bond,
        )
    )


def test_a_blind_audit_with_the_same_root_attests(node: ChainNode, cast: Cast) -> None:
    job, run = cast.post(BLIND), Run.of()
    claim_salt = sealed_claim(cast, job, run)
    assert cast.customer.job(job).status is JobStatus.SEALED
    audit_salt = sealed_audit(cast, job, run)
    node.advance_time(BLIND.audit_window + 1)
    open_claim(cast, job, run, claim_salt)
    assert open_audit(cast, job, run, audit_salt) is None
    assert cast.customer.job(job).attestations == 1
    node.advance_time(TERMS.challenge_window + 1)
    cast.customer.send(cast.customer.finalize(job))
    assert cast.customer.job(job).status is JobStatus.FINAL
