"""The training spec as the contract stores it: the engine's spec, and who decides disputes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from eth_abi.abi import encode
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from roundlog.spec import TrainingSpec

_TYPES = (
    *("uint64", "uint64", "bytes32", "uint64", "bytes32", "uint64", "bytes32", "uint64", "uint64", "bytes32"),
    *("uint64", "uint32", "uint8", "uint8", "uint8", "uint8", "address", "address"),
)
"""Solidity types of the struct TrainingSpec, in its order, which is the order of the engine's fields plus
`referee` and `adjudicator`.
"""


@dataclass(frozen=True, slots=True)
class PostedSpec:
    """A spec on the chain. The contract checks its ranges only roughly: call `training.validate()` before using it."""

    training: TrainingSpec
    referee: ChecksumAddress
    """The account that decides about an element where the adjudicator's precision does not."""
    adjudicator: ChecksumAddress
    """The contract that computes disputed elements."""

    def as_tuple(self) -> tuple[object, ...]:
        """The fields in the order of the Solidity struct."""
        return (*(getattr(self.training, field.name) for field in fields(TrainingSpec)), self.referee, self.adjudicator)

    @property
    def hash(self) -> bytes:
        """keccak256(abi.encode(spec)), 32 bytes: the spec's name on the chain."""
        return bytes(keccak(encode(_TYPES, self.as_tuple())))
