"""Events of the contract: a frozen dataclass for each event of its ABI, made when this module is loaded.

    from tiebreak.contract.events import Challenged, JobPosted

A class has the event's name, and after the fields of `Event` the event's parameters in their order, in snake_case;
`index`, which is the place of the log here, becomes `leaf_index`. IVerificationGame.sol says what each event means and
when it is emitted. Enums, structs and amounts are those of `enums` and `structs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Any

from tiebreak.contract.code import damaged, load_artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event and its place in the chain. `index` counts the logs of a block, so (block, index) orders all events."""

    block: int
    index: int
    transaction: bytes
    """Hash of the transaction, 32 bytes."""


_RENAMED = {"index": "leaf_index"}


def snake_case(name: str) -> str:
    """Return a name of Solidity as Python writes it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _classes() -> Iterator[tuple[str, type[Event]]]:
    """Return the classes by their names. Raises DeploymentError for an artifact that is damaged."""
    try:
        for entry in load_artifact("VerificationGame")["abi"]:
            if entry["type"] == "event":
                names = [snake_case(_RENAMED.get(item["name"], item["name"])) for item in entry["inputs"]]
                yield (
                    entry["name"],
                    make_dataclass(
                        entry["name"],
                        names,
                        bases=(Event,),
                        namespace={"__module__": __name__, "__doc__": f"Event {entry['name']} of the contract."},
                        frozen=True,
                        slots=True,
                        kw_only=True,
                    ),
                )
    except (KeyError, TypeError) as error:
        raise damaged("VerificationGame") from error


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a class of an event, whose name and fields a type checker cannot know."""

else:
    globals().update(_classes())
