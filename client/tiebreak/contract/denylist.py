"""Contracts that are known to be broken, as this release lists them in denylist.json.

Nobody can pause or replace a contract that stands on a chain, so clients have to refuse one that turns out to be wrong.
The file is a list of objects with `contract` (a name of `ContractCode`), `reason` (a clause), and what is meant, one of

    fingerprint          every deployment of a code: 0x and 64 digits, keccak256 of the artifact's `deployedBytecode`,
                         that is of the code with zeros where addresses and immutables are filled in
    chain_id, address    one deployment
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.contract.code import ContractCode
from tiebreak.rpc.chain_errors import DeploymentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One entry of the list: every deployment of a code, or one deployment."""

    contract: str
    reason: str
    fingerprint: bytes | None = None
    chain_id: int | None = None
    address: ChecksumAddress | None = None

    def means(self, contract: str, chain_id: int, address: ChecksumAddress) -> bool:
        if self.contract != contract:
            return False
        if self.fingerprint is not None:
            return self.fingerprint == fingerprint(contract)
        return (self.chain_id, self.address) == (chain_id, address)


def fingerprint(contract: str) -> bytes:
    """keccak256 of this version's code of a contract, 32 bytes, with zeros where a deployment fills in."""
    return bytes(keccak(ContractCode.load(contract).deployed))


@functools.cache
def shipped() -> tuple[Broken, ...]:
    """The list of this release. Raises DeploymentError when its file is damaged."""
    try:
        return parse((resources.files("tiebreak.contract") / "denylist.json").read_text("utf-8"))
    except OSError as error:
        raise DeploymentError("the list of broken contracts is missing: install tiebreak again.") from error


def parse(text: str) -> tuple[Broken, ...]:
    """Reads a list. Raises DeploymentError for one that is malformed: an entry that is passed over would be trusted."""
    try:
        return tuple(_entry(**raw) for raw in json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DeploymentError("the list of broken contracts is malformed: install tiebreak again.") from error


def _entry(
    *,
    contract: str,
    reason: str,
    fingerprint: str | None = None,
    chain_id: int | None = None,
    address: str | None = None,
) -> Broken:
    if (fingerprint is None) == (address is None) or (address is None) != (chain_id is None):
        raise ValueError("an entry has a fingerprint, or a chain and an address")
    code = None if fingerprint is None else bytes.fromhex(fingerprint.removeprefix("0x"))
    if code is not None and len(code) != 32:
        raise ValueError("a fingerprint has 32 bytes")
    where = None if address is None else to_checksum_address(address)
    return Broken(contract=contract, reason=reason, fingerprint=code, chain_id=chain_id, address=where)


def why_broken(
    contract: str, chain_id: int, address: ChecksumAddress, listed: Sequence[Broken] | None = None
) -> str | None:
    """Reason why nobody should put money on a contract of this version at an address; None if nothing is known
    against it. contract: its name, with which the libraries and functions that it calls are looked for as well; listed:
    instead of the list of this release.
    """
    parts = ContractCode.load("VerificationGame").links if contract == "VerificationGame" else ("Functions",)
    for part in (contract, *parts):
        for entry in shipped() if listed is None else listed:
            if entry.means(part, chain_id, address):
                return entry.reason
    return None
