"""Names of a program's states, as capture gives them.

    parameter/NAME    a parameter of the model
    buffer/NAME       a buffer that the model's `state_dict` holds
    transient/NAME    a buffer that it leaves out (`register_buffer(..., persistent=False)`)
    slot/...          a tensor of the optimizer
    attribute/...     a tensor elsewhere that a step changes
    constant/...      a large constant of the step

NAME is that of `state_dict`."""

from __future__ import annotations

from collections.abc import Iterable

from roundlog.program.model import ProgramError

SAVED = ("parameter", "buffer")
"""Kinds of states that a model's `state_dict` holds."""

TRANSIENT = "transient"
"""Kind of the buffers that it leaves out."""

BESIDE = ("slot", "attribute", "constant")
"""Kinds of states that are no tensor of a model's."""


def split(name: str) -> tuple[str, str]:
    """(kind, name behind it) of a state's name; the kind is "" for a name of another making."""
    kind, slash, rest = name.partition("/")
    return (kind, rest) if slash and kind in (*SAVED, TRANSIENT, *BESIDE) else ("", name)


def names_in_model(names: Iterable[str]) -> dict[str, str]:
    """Name in the model -> name of the state, for every tensor of a model's. A name of another making is the model's
    own. Raises ProgramError, in a clause without a subject, for one that comes twice."""
    plain: dict[str, str] = {}
    for name in names:
        kind, own = split(name)
        if kind in BESIDE:
            continue
        if own in plain:
            raise ProgramError(f"has {own} twice, as {plain[own]} and as {name}: leave one away")
        plain[own] = name
    return plain
