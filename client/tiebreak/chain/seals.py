"""Seals of claims and audits: hashes that hide a root until their owner opens them (`contracts/src/Seals.sol`)."""

from __future__ import annotations

import secrets

from eth_abi.abi import encode
from eth_typing import ChecksumAddress
from eth_utils.crypto import keccak

SALT_BYTES = 32


def new_salt() -> bytes:
    """A salt of 32 random bytes. Without it anybody who guesses the root could find it in the seal. Whoever loses it
    cannot open the seal any more."""
    return secrets.token_bytes(SALT_BYTES)


def claim_seal(
    chain_id: int,
    contract: ChecksumAddress,
    job: int,
    trainer: ChecksumAddress,
    *,
    checkpoint_root: bytes,
    final_state_root: bytes,
    log_cid: str,
    model_cid: str,
    salt: bytes,
) -> bytes:
    """The seal of a trainer's claim, 32 bytes. It counts for this chain, contract, job and account only."""
    types = ["uint256", "address", "uint64", "address", "bytes32", "bytes32", "string", "string", "bytes32"]
    values = [chain_id, contract, job, trainer, checkpoint_root, final_state_root, log_cid, model_cid, salt]
    return keccak(encode(types, values))


def audit_seal(
    chain_id: int,
    contract: ChecksumAddress,
    job: int,
    auditor: ChecksumAddress,
    *,
    checkpoint_root: bytes,
    salt: bytes,
) -> bytes:
    """The seal of an auditor's root, 32 bytes. It counts for this chain, contract, job and account only."""
    types = ["uint256", "address", "uint64", "address", "bytes32", "bytes32"]
    return keccak(encode(types, [chain_id, contract, job, auditor, checkpoint_root, salt]))
