"""Methods that the client adds to the contract's records; `records`, which is generated, inherits them."""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, Self, TypeVar, cast

from eth_typing import ChecksumAddress

LevelT = TypeVar("LevelT")
"""`LevelView`, which is generated."""

ANYONE = cast(ChecksumAddress, "0x" + "00" * 20)
"""The zero address; as the trainer of a job's terms, it lets any account commit."""


class SideMethods(IntEnum):
    """Methods of `Side`."""

    @property
    def other(self) -> Self:
        return type(self)(1 - self)


class GameMethods(Generic[LevelT]):
    """Methods of `GameView`."""

    __slots__ = ()
    trainer: ChecksumAddress
    challenger: ChecksumAddress
    levels: tuple[LevelT, ...]

    @property
    def current(self) -> LevelT:
        """The deepest level reached."""
        return self.levels[-1]

    def party(self, side: SideMethods) -> ChecksumAddress:
        return (self.trainer, self.challenger)[side]
