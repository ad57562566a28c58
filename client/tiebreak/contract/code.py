"""Compiled contracts: deploys them, and recognises them at an address by their code. Nobody can pause or replace a
contract that stands on a chain: a release whose contract is mended refuses the code of the one before."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from eth_abi.abi import encode
from eth_typing import ChecksumAddress
from eth_utils.address import to_canonical_address, to_checksum_address

from tiebreak.rpc.chain_errors import DeploymentError, InvalidAnswer, NoCode

if TYPE_CHECKING:
    from tiebreak.rpc.answers import TransactionReceipt
    from tiebreak.rpc.node import ChainNode
    from tiebreak.transactions.sender import Sender

_PUSH_20 = 0x73
"""A deployed library begins with this instruction and its own address (Solidity, "Call Protection For Libraries")."""

LIBRARIES = ("Claims", "Auditing", "LevelOpenings", "Proofs", "Verdicts", "Display")
"""Libraries that the verification game is linked with."""

ADJUDICATORS_PARTS = ("Functions", "Reducer")
"""Contracts that an adjudicator calls, in the order of its constructor's arguments and of its immutables."""

Places = Sequence[Sequence[int]]
"""(offset, length) in bytes of a code."""


class ContractCode:
    """One compiled contract. Zeros stand in the code where addresses of libraries and immutables go."""

    def __init__(self, artifact: Mapping[str, Any]) -> None:
        self.is_library = artifact["kind"] == "library"
        self.creation = bytes.fromhex(artifact["bytecode"].removeprefix("0x"))
        self.deployed = bytes.fromhex(artifact["deployedBytecode"].removeprefix("0x"))
        self.links: Mapping[str, Places] = artifact["linkReferences"]
        """Library -> places of its address in `creation`."""
        self.deployed_links: Mapping[str, Places] = artifact["deployedLinkReferences"]
        self.immutables: Sequence[Places] = artifact["immutableReferences"]
        """Places in the deployed code of every value (32 bytes) that the constructor sets, in their order."""

    @staticmethod
    @functools.cache
    def load(name: str) -> ContractCode:
        """Read the artifact that is part of this package. Raises DeploymentError."""
        return ContractCode(load_artifact(name))

    def deploy(
        self, sender: Sender, *, links: Mapping[str, ChecksumAddress] | None = None, argument: bytes = b""
    ) -> TransactionReceipt:
        """Put the contract on the chain; its address is `receipt.contract`. argument: the constructor's, encoded."""
        code = self.creation
        for library, places in self.links.items():
            code = _filled(code, places, to_canonical_address((links or {})[library]))
        receipt = sender.send(None, code + argument)
        if receipt.contract is None:
            raise InvalidAnswer(f"{sender.node.name} gave no address for the new contract: use another node.")
        return receipt

    def at(self, node: ChainNode, address: ChecksumAddress) -> tuple[dict[str, ChecksumAddress], list[bytes]] | None:
        """Return the libraries of the contract at an address, and its immutables (32 bytes each) in the order of
        declaration, if its code is this one; None if it is another.

        Codes are compared byte by byte, but for the places that were filled in: each value is the same at all of its
        places."""
        found = node.code(address)
        if not found:
            raise NoCode(
                f"{node.name} shows no code at {address}: check the address, or wait until the node has caught up."
            )
        if len(found) != len(self.deployed):
            return None
        code = self.deployed
        if self.is_library:
            code = bytes([_PUSH_20]) + to_canonical_address(address) + code[21:]
        libraries: dict[str, ChecksumAddress] = {}
        for library, places in self.deployed_links.items():
            (start, length), *_ = places
            libraries[library] = to_checksum_address(found[start : start + length])
            code = _filled(code, places, found[start : start + length])
        immutables = []
        for places in self.immutables:
            (start, length), *_ = places
            immutables.append(found[start : start + length])
            code = _filled(code, places, immutables[-1])
        return (libraries, immutables) if code == found else None


@functools.cache
def load_artifact(name: str) -> Mapping[str, Any]:
    """Return one of the artifacts of this package. Raises DeploymentError."""
    try:
        text = (resources.files("tiebreak.contract") / "artifacts" / f"{name}.json").read_text("utf-8")
        artifact: dict[str, Any] = json.loads(text)
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"the artifact of {name} is missing or damaged: install tiebreak again, or run `make contracts-build`."
        ) from error
    return artifact


def deploy_adjudicator(sender: Sender) -> ChecksumAddress:
    """Deploy an adjudicator with the contracts that it needs, and return its address."""
    parts = [_address(ContractCode.load(name).deploy(sender)) for name in ADJUDICATORS_PARTS]
    argument = encode(["address"] * len(parts), parts)
    return _address(ContractCode.load("Adjudicator").deploy(sender, argument=argument))


def deploy_game(sender: Sender, adjudicator: ChecksumAddress) -> TransactionReceipt:
    """Deploy the verification game with the libraries that it needs; `adjudicator` is the one that it shows."""
    game = ContractCode.load("VerificationGame")
    libraries = {name: _address(ContractCode.load(name).deploy(sender)) for name in game.links}
    return game.deploy(sender, links=libraries, argument=encode(["address"], [adjudicator]))


def is_game(node: ChainNode, address: ChecksumAddress) -> bool:
    """Return whether this version's verification game stands there, linked with this version's libraries."""
    found = ContractCode.load("VerificationGame").at(node, address)
    return found is not None and all(
        ContractCode.load(name).at(node, library) is not None for name, library in found[0].items()
    )


def is_adjudicator(node: ChainNode, address: ChecksumAddress) -> bool:
    """Return whether this version's adjudicator stands there, with this version's contracts as its parts.

    Nothing is known of what another one computes."""
    found = ContractCode.load("Adjudicator").at(node, address)
    return found is not None and all(
        part[:12] == bytes(12) and ContractCode.load(name).at(node, to_checksum_address(part[12:])) is not None
        for name, part in zip(ADJUDICATORS_PARTS, found[1], strict=True)
    )


def _address(receipt: TransactionReceipt) -> ChecksumAddress:
    assert receipt.contract is not None
    return receipt.contract


def _filled(code: bytes, places: Places, value: bytes) -> bytes:
    for start, length in places:
        code = code[:start] + value + code[start + length :]
    return code
