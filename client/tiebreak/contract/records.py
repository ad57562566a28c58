"""Records of the contract as frozen dataclasses, made of its ABI when they are loaded, with its names in snake_case."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import make_dataclass
from typing import Any

from tiebreak.contract.code import load_artifact

Parameter = Mapping[str, Any]
"""One entry of `inputs`, `outputs` or `components` in an ABI."""


def snake_case(name: str) -> str:
    """Return a name of Solidity as Python writes it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def make_record(module: str, name: str, names: Sequence[str], base: type = object) -> type[Any]:
    """Return a class with the fields of these names after those of the base."""
    return make_dataclass(
        name,
        names,
        bases=(base,),
        namespace={"__module__": module, "__doc__": f"{name} of the contract."},
        frozen=True,
        slots=True,
        kw_only=True,
    )


def events() -> Iterator[tuple[str, Sequence[Parameter]]]:
    """Yield the name and the parameters of each event of the game. Raises DeploymentError for a damaged artifact."""
    for entry in load_artifact("VerificationGame")["abi"]:
        if entry["type"] == "event":
            yield entry["name"], entry["inputs"]


def structs() -> dict[str, Sequence[Parameter]]:
    """Return the components of each struct of the game, by its name. Raises DeploymentError for a damaged artifact."""
    found: dict[str, Sequence[Parameter]] = {}
    waiting = [
        one
        for entry in load_artifact("VerificationGame")["abi"]
        for one in (*entry.get("inputs", ()), *entry.get("outputs", ()))
    ]
    while waiting:
        parameter = waiting.pop()
        family, name = kind_of(parameter)
        if family == "struct" and name not in found:
            found[name] = parameter["components"]
            waiting += parameter["components"]
    return found


def kind_of(parameter: Parameter) -> tuple[str, str]:
    """Return (struct, enum or another word, name) of a parameter's type in Solidity, or of its elements'."""
    family, _, name = parameter.get("internalType", "").partition(" ")
    return family, name.rsplit(".", 1)[-1].split("[")[0]
