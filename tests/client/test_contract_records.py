"""The client's structs, events, enums and calls are the contract's, field for field and in its order; and bytes that no
contract gives."""

from __future__ import annotations

import re
import time
import tracemalloc
from dataclasses import fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from roundlog.spec import TrainingSpec
from tiebreak import strategy
from tiebreak.contract import code, enums, events, structs
from tiebreak.contract.abi import ContractAbi
from tiebreak.contract.code import ADJUDICATORS_PARTS, LIBRARIES, load_artifact
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.events import snake_case
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import ANYONE
from tiebreak.rpc.chain_errors import OF_A_MOVE, REMEDIES, ContractError, InvalidAnswer, remedy
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import HttpTransport
from tiebreak.strategy import FORCED

ENTRIES: list[dict[str, Any]] = load_artifact("VerificationGame")["abi"]
FUNCTIONS = [entry for entry in ENTRIES if entry["type"] == "function"]
OURS = ContractAbi.load("VerificationGame", *LIBRARIES, "Adjudicator", *ADJUDICATORS_PARTS)


def aliased(elements: int, size: int) -> bytes:
    """A result of `batch` all of whose elements lead to the same bytes."""
    element = (1).to_bytes(32, "big") + (64).to_bytes(32, "big") + size.to_bytes(32, "big") + bytes(size)
    offsets = (32 * elements).to_bytes(32, "big") * elements
    return (32).to_bytes(32, "big") + elements.to_bytes(32, "big") + offsets + element


@pytest.mark.slow_but("1000-100000")
@pytest.mark.parametrize(("elements", "size"), [(1_000, 100_000), (20_000, 32)])
def test_an_answer_whose_parts_are_one_and_the_same_is_refused_at_once(elements: int, size: int) -> None:
    """Regression: 260 KB of offsets to the same bytes made 400 MB of values."""
    data = aliased(elements, size)
    tracemalloc.start()
    begun = time.monotonic()
    try:
        with pytest.raises(InvalidAnswer, match="data that does not fit batch: use another node"):
            OURS.decode_result("batch", data)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(data)
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < 20


SOURCES = Path(__file__).resolve().parents[2] / "contracts" / "src"
ARTIFACTS = sorted(path.stem for path in (Path(code.__file__).parent / "artifacts").glob("*.json"))


def test_structs_and_events_have_exactly_the_fields_of_the_contracts() -> None:
    seen: set[str] = set()

    def check(parameter: dict[str, Any]) -> None:
        family, _, name = str(parameter.get("internalType", "")).partition(" ")
        name = name.split("[")[0].rsplit(".", 1)[-1]
        if family == "struct":
            names = [snake_case(item["name"]) for item in parameter["components"]]
            if name == "TrainingSpec":
                assert names == [*(field.name for field in fields(TrainingSpec)), "referee", "adjudicator"]
            else:
                assert names == [field.name for field in fields(getattr(structs, name))]
            seen.add(name)
            for item in parameter["components"]:
                check(item)

    for entry in ENTRIES:
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
    assert len(ours) == 8
    for name, kind in ours.items():
        found = re.search(rf"^enum {name} {{\n(.*?)^}}", declared, re.MULTILINE | re.DOTALL)
        assert found and issubclass(kind, IntEnum), name
        members = [line.strip(" ,") for line in found[1].splitlines() if not line.strip().startswith("//")]
        assert [(one.name, one.value) for one in kind] == [(one, place) for place, one in enumerate(members)]
    abi = ContractAbi.load("VerificationGame", "Adjudicator")
    (selector,) = (selector for selector, known in abi._errors.items() if known["name"] == "MalformedDescriptor")
    assert "=17" in str(abi.decode_error(selector + (17).to_bytes(32, "big"))), "its Fault is told by its number"


def test_every_error_of_the_contract_says_what_to_do() -> None:
    abi = ContractAbi.load("VerificationGame", *ARTIFACTS)
    names = {entry["name"] for entry in abi._errors.values()}
    assert set(REMEDIES) <= names, "a remedy for an error that the contract does not have"
    for name in names:
        assert str(ContractError(name, {})).endswith(f"): {remedy(name)}.")
    assert remedy("TooEarly") == "wait until the deadline is over" and remedy("WrongProof") == OF_A_MOVE


# Calls: typed methods for those that pay, and names for all others.


GAME = VerificationGame(ChainNode(HttpTransport("http://127.0.0.1:1")), ANYONE)
"""Nobody is asked for anything."""


SENT = [entry for entry in FUNCTIONS if entry["stateMutability"] in ("nonpayable", "payable")]


@pytest.mark.parametrize(
    "entry", [one for one in SENT if one["stateMutability"] == "payable"], ids=lambda one: one["name"]
)
def test_a_call_that_pays_has_its_arguments_in_the_contracts_order(entry: dict[str, Any]) -> None:
    names = [snake_case(item["name"]) for item in entry["inputs"]]
    if entry["name"] == "postJob":
        terms = SimpleNamespace(reward=30, audit_fee=12)
        assert GAME.post_job("spec", terms, "cid") == ContractCall("postJob", ("spec", terms, "cid"), 42)  # type: ignore[arg-type]
        return
    given = {name: name.encode() for name in reversed(names[1:])}
    call = GAME.paying(entry["name"], 7, bond=42, **given)  # type: ignore[arg-type]
    assert (call.arguments, call.value) == ((7, *(name.encode() for name in names[1:])), 42)
    with pytest.raises(TypeError, match=f"{entry['name']} takes spec_hash"):
        GAME.paying(entry["name"], 7, bond=42, **given, another=b"")  # type: ignore[arg-type]


def test_all_functions_are_tried() -> None:
    assert len(SENT) > 25
    sources = "".join(path.read_text() for path in Path(structs.__file__).parents[1].rglob("*.py"))
    called = re.findall(r"(?:ContractCall\.of|\.paying)\(\s*\"(\w+)\"", sources)
    names = {entry["name"] for entry in FUNCTIONS}
    assert len(called) > 12 and names.issuperset(called), "what is called without a method"
    moves = {*re.findall(r"Move\(\"(\w+)\"", Path(strategy.__file__).read_text())}
    assert len(moves) > 10 and names > moves > FORCED, "tests of games play each of them on the contract"


def test_a_call_that_pays_is_not_put_where_its_payment_would_be_lost() -> None:
    paying, free = (GAME.paying("appeal", 7, spec_hash=bytes(32), bond=bond) for bond in (5, 0))
    for several in (GAME.batch, GAME.in_turn):
        with pytest.raises(ValueError, match="appeal pays 5 wei, and cannot be in a batch: send it alone"):
            several([free, paying])
        assert several([free]).arguments == ([GAME.encode(free)],)


def test_an_address_in_other_letters_is_the_same_contract() -> None:
    """Regression: a payment had another name, under which it was made once more, and no event was the contract's."""
    address = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    seals = [
        VerificationGame(GAME.node, given).paying("sealClaim", 7, spec_hash=bytes(32), seal=bytes(32), bond=5)  # type: ignore[arg-type]
        for given in (address, address.lower(), "0x" + address[2:].upper())
    ]
    assert {seal.purpose for seal in seals} == {f"sealClaim in job 7 of {address} with spec 0x{'00' * 32}"}
