"""Definitions of the operators, one for each, which every other room may read: their table, and what is looked up in it
by a program's names and by a descriptor's numbers.

Nothing is copied out of the table when it is imported: a definition is all that a new operator needs, for each of
these."""

from __future__ import annotations

from collections.abc import Iterator

from roundlog.definitions import definition, tensor_operators
from roundlog.definitions.definition import (
    FLOATS,
    Copy,
    Extreme,
    Family,
    InputReads,
    OperatorDefinition,
    OperatorKind,
    Signature,
)

DEFINITIONS: dict[str, OperatorDefinition] = {
    one.name: one
    for group in (
        tensor_operators.SOURCES,
        tensor_operators.MOVEMENTS,
        tensor_operators.ENDS,
        definition.ELEMENTWISE,
        definition.FUNCTIONS,
        tensor_operators.REDUCTIONS,
        tensor_operators.CONTRACTIONS,
        tensor_operators.CHAINS,
    )
    for one in group
}
"""Every operator, by name."""


def of_family(*families: Family) -> Iterator[OperatorDefinition]:
    """Definitions of these families, in the table's order."""
    return (one for one in DEFINITIONS.values() if one.family in families)


def signatures(family: Family, code: int) -> list[Signature]:
    """Signatures under a number of a descriptor; none if no operator has it."""
    return [each for one in DEFINITIONS.values() if one.family == family for each in one.formats if each.code == code]


def code_names(family: Family) -> Iterator[tuple[int, str]]:
    """Codes of MAP or FUNCTION, with the names that the reference and the contract have for them."""
    return ((each.code, one.code_name(each)) for one in of_family(family) for each in one.formats)


def code_name(family: Family, code: int) -> str:
    """Name of one of them. Raises KeyError."""
    for one in of_family(family):
        for each in one.formats:
            if each.code == code:
                return one.code_name(each)
    raise KeyError(code)


def opcodes() -> dict[str, int]:
    """Instructions of tapes, by the operators that they compute."""
    return {one.name: one.opcode for one in DEFINITIONS.values() if one.opcode is not None}
