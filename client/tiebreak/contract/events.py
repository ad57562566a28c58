"""Events of the contract: a frozen dataclass for each event of its ABI, made when this module is loaded.

    from tiebreak.contract.events import Challenged, JobPosted

A class has the event's name, and after the fields of `Event` the event's parameters in their order; `index`, which is
the place of the log here, becomes `leaf_index`. IVerificationGame.sol says what each event means and when it is
emitted. Enums, structs and amounts are those of `enums` and `structs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebreak.contract.records import events, make_record, snake_case


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event and its place in the chain. `index` counts the logs of a block, so (block, index) orders all events."""

    block: int
    index: int
    transaction: bytes
    """Hash of the transaction, 32 bytes."""


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a class of an event, whose name and fields a type checker cannot know."""

else:
    for _name, _inputs in events():
        _fields = [{"index": "leaf_index"}.get(item["name"]) or snake_case(item["name"]) for item in _inputs]
        globals()[_name] = make_record(__name__, _name, _fields, Event)
