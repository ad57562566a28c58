"""Parts of the structs: the training spec as the contract stores it, and the methods of a game's view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from eth_abi.abi import encode
from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from roundlog.spec import TrainingSpec

if TYPE_CHECKING:
    from tiebreak.contract.enums import Side

_TYPES = (
    *("uint64", "uint64", "bytes32", "uint64", "bytes32", "uint64", "bytes32", "uint64", "uint64", "bytes32"),
    *("uint64", "uint32", "uint8", "uint8", "uint8", "uint8", "address", "address"),
)
"""Solidity types of the struct TrainingSpec. By hand, so that no artifact is loaded to hash a spec; a test holds them
against it."""

LevelT = TypeVar("LevelT")
"""`LevelView` of `structs`, which imports this file."""

ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)
"""The zero address; as the trainer of a job's terms, it lets any account commit."""


@dataclass(frozen=True, slots=True)
class PostedSpec:
    """A spec on the chain. The contract checks its ranges only roughly: call `training.validate()` before using it."""

    training: TrainingSpec
    referee: ChecksumAddress
    """The account that decides about an element where the adjudicator's precision does not."""
    adjudicator: ChecksumAddress
    """The contract that computes disputed elements."""

    @staticmethod
    def of(values: Sequence[Any]) -> PostedSpec:
        """Build a spec from the fields of the Solidity struct, in its order: the engine's, then the two addresses."""
        *training, referee, adjudicator = values
        names = (field.name for field in fields(TrainingSpec))
        return PostedSpec(TrainingSpec(**dict(zip(names, training, strict=True))), referee, adjudicator)

    def as_tuple(self) -> tuple[object, ...]:
        """Return the fields in the order of the Solidity struct."""
        return (*(getattr(self.training, field.name) for field in fields(TrainingSpec)), self.referee, self.adjudicator)

    @property
    def hash(self) -> bytes:
        """keccak256(abi.encode(spec)), 32 bytes: the spec's name on the chain."""
        return bytes(keccak(encode(_TYPES, self.as_tuple())))


class GameMethods(Generic[LevelT]):
    """Methods of `GameView`."""

    __slots__ = ()
    trainer: ChecksumAddress
    challenger: ChecksumAddress
    levels: tuple[LevelT, ...]
    clocks: tuple[Any, Any]

    @property
    def current(self) -> LevelT:
        """The deepest level reached."""
        return self.levels[-1]

    def left(self, side: Side, now: int) -> int:
        """Return seconds on a side's clock at the instant `now`."""
        clock = self.clocks[side]
        left: int = clock.remaining - (now - clock.started_at if clock.started_at else 0)
        return max(0, left)

    def party(self, side: Side) -> ChecksumAddress:
        return (self.trainer, self.challenger)[side]
