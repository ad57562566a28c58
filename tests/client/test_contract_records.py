"""The client's records and events are the contract's: generated from its artifact, field for field and in its order."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any

import make_contract_records
import pytest
from make_contract_records import ROOM, pages, snake_case
from roundlog.spec import TrainingSpec
from tiebreak.contract import enums, events, struct_bases, structs
from tiebreak.contract.abi import ContractAbi
from tiebreak.contract.code import load_artifact
from tiebreak.rpc.chain_errors import OF_A_MOVE, REMEDIES, ContractError, DeploymentError, remedy

ABI = json.loads((ROOM / "artifacts" / "VerificationGame.json").read_text())["abi"]


@pytest.mark.parametrize("name", ["enums.py", "structs.py", "events.py"])
def test_what_is_shipped_is_what_the_script_makes_of_the_artifacts(name: str) -> None:
    assert (ROOM / name).read_text() == pages()[ROOM / name], "run scripts/make_contract_records.py"


def test_the_records_have_exactly_the_fields_of_the_contracts_structs_and_events() -> None:
    seen: set[str] = set()

    def check(parameter: dict[str, Any]) -> None:
        family, _, name = str(parameter.get("internalType", "")).partition(" ")
        name = name.split("[")[0].rsplit(".", 1)[-1]
        if family == "enum":
            assert issubclass(getattr(enums, name), IntEnum)
        if family == "struct":
            names = [snake_case(item["name"]) for item in parameter["components"]]
            if name == "TrainingSpec":
                assert names == [*(field.name for field in fields(TrainingSpec)), "referee", "adjudicator"]
                assert tuple(item["type"] for item in parameter["components"]) == struct_bases._TYPES
            else:
                assert names == [field.name for field in fields(getattr(structs, name))]
            seen.add(name)
            for item in parameter["components"]:
                check(item)

    logged = [entry for entry in ABI if entry["type"] == "event"]
    for entry in (*(entry for entry in ABI if entry["type"] == "function"), *logged):
        for parameter in (*entry["inputs"], *entry.get("outputs", [])):
            check(parameter)
    made = {name for name, kind in vars(structs).items() if isinstance(kind, type) and is_dataclass(kind)}
    assert seen == (made - {"PostedSpec"}) | {"TrainingSpec"}
    base = [field.name for field in fields(events.Event)]
    for entry in logged:
        names = ["leaf_index" if item["name"] == "index" else snake_case(item["name"]) for item in entry["inputs"]]
        assert [field.name for field in fields(getattr(events, entry["name"]))] == base + names
    assert {kind.__name__ for kind in events.Event.__subclasses__()} == {entry["name"] for entry in logged}


def test_an_enum_has_the_members_of_the_contracts() -> None:
    # An ABI has no members, so these are read from the sources: the same text that the compiler read.
    declared = make_contract_records._Sources().items("enum", "Fault")
    assert list(declared) == [member.name for member in enums.Fault] and len(declared) == 18
    assert (enums.Fault.DIVISOR, enums.Fault.REDUCTION, enums.Fault.ALIAS) == (9, 10, 17)


def test_a_malformed_descriptor_is_refused_by_the_fault_that_the_contract_named() -> None:
    """Regression: the list by hand had a member that the contract has not, so that all after it had another's name."""
    abi = ContractAbi.load("VerificationGame", "Adjudicator")
    (selector,) = (selector for selector, known in abi._errors.items() if known["name"] == "MalformedDescriptor")
    error = abi.decode_error(selector + (17).to_bytes(32, "big"))
    assert isinstance(error, ContractError) and "ALIAS" in str(error)


def test_a_comment_of_the_contract_is_the_docstring() -> None:
    assert structs.Terms.__doc__ == "Terms of a job: the customer's offer and conditions. Amounts in wei."


def test_every_error_of_the_contract_says_what_to_do() -> None:
    abi = ContractAbi.load("VerificationGame", *(path.stem for path in sorted(ROOM.glob("artifacts/*.json"))))
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
