"""The client's structs, events and enums are the contract's, field for field and in its order."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from roundlog.spec import TrainingSpec
from tiebreak.contract import code, enums, events, structs
from tiebreak.contract.abi import ContractAbi
from tiebreak.contract.code import load_artifact
from tiebreak.contract.events import snake_case
from tiebreak.rpc.chain_errors import OF_A_MOVE, REMEDIES, ContractError, DeploymentError, remedy

SOURCES = Path(__file__).resolve().parents[2] / "contracts" / "src"
ARTIFACTS = sorted(path.stem for path in (Path(code.__file__).parent / "artifacts").glob("*.json"))
ABI = load_artifact("VerificationGame")["abi"]


def test_structs_and_events_have_exactly_the_fields_of_the_contracts() -> None:
    seen: set[str] = set()

    def check(parameter: dict[str, Any]) -> None:
        family, _, name = str(parameter.get("internalType", "")).partition(" ")
        name = name.split("[")[0].rsplit(".", 1)[-1]
        if family == "struct":
            names = [snake_case(item["name"]) for item in parameter["components"]]
            if name == "TrainingSpec":
                assert names == [*(field.name for field in fields(TrainingSpec)), "referee", "adjudicator"]
                assert tuple(item["type"] for item in parameter["components"]) == structs._TYPES
            else:
                assert names == [field.name for field in fields(getattr(structs, name))]
            seen.add(name)
            for item in parameter["components"]:
                check(item)

    for entry in ABI:
        for parameter in (*entry.get("inputs", []), *entry.get("outputs", [])):
            check(parameter)
    made = {name for name, kind in vars(structs).items() if isinstance(kind, type) and is_dataclass(kind)}
    assert seen == (made - {"PostedSpec"}) | {"TrainingSpec"}
    assert [field.name for field in fields(events.Bisected)] == [
        *("block", "index", "transaction", "game", "level", "mover", "leaf_index", "height", "to", "next")
    ]


def test_an_enum_has_the_members_of_the_contracts() -> None:
    """An ABI has none, so they are read from the sources. Regression: a list by hand had one that the contract lacks,
    so that all after it had another's name."""
    declared = "\n".join(path.read_text() for path in sorted(SOURCES.rglob("*.sol")))
    ours = {
        name: kind for name, kind in vars(enums).items() if isinstance(kind, type) and kind.__module__ == enums.__name__
    }
    assert len(ours) == 9
    for name, kind in ours.items():
        found = re.search(rf"^enum {name} {{\n(.*?)^}}", declared, re.MULTILINE | re.DOTALL)
        assert found and issubclass(kind, IntEnum), name
        members = [line.strip(" ,") for line in found[1].splitlines() if not line.strip().startswith("//")]
        assert [(one.name, one.value) for one in kind] == [(one, place) for place, one in enumerate(members)]
    abi = ContractAbi.load("VerificationGame", "Adjudicator")
    (selector,) = (selector for selector, known in abi._errors.items() if known["name"] == "MalformedDescriptor")
    assert "ALIAS" in str(abi.decode_error(selector + (17).to_bytes(32, "big")))


def test_every_error_of_the_contract_says_what_to_do() -> None:
    abi = ContractAbi.load("VerificationGame", *ARTIFACTS)
    names = {entry["name"] for entry in abi._errors.values()}
    assert set(REMEDIES) <= names, "a remedy for an error that the contract does not have"
    for name in names:
        assert str(ContractError(name, {})).endswith(f"): {remedy(name)}.")
    assert remedy("TooEarly") == "wait until the deadline is over" and remedy("WrongProof") == OF_A_MOVE


@pytest.mark.parametrize("artifact", [{}, {"abi": None}, {"abi": [{"type": "function"}]}])
def test_a_damaged_artifact_says_how_to_get_it_back(artifact: dict[str, Any]) -> None:
    with pytest.raises(DeploymentError, match="install tiebreak again, or run `make contracts-build`"):
        ContractAbi(artifact)
    with pytest.raises(DeploymentError, match=r"NoSuchContract.*install tiebreak again, or run `make contracts-build`"):
        load_artifact("NoSuchContract")
