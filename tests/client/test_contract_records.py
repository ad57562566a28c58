"""The client's structs, events, enums and calls are the contract's, field for field and in its order; the ABI coding is
web3's, on random values; and bytes that no contract gives."""

from __future__ import annotations

import inspect
import random
import re
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes
from roundlog.spec import TrainingSpec
from tiebreak import strategy
from tiebreak.contract import code, enums, events, structs
from tiebreak.contract.abi import ContractAbi, _typed
from tiebreak.contract.code import ADJUDICATORS_PARTS, LIBRARIES, load_artifact
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.events import snake_case
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import ANYONE
from tiebreak.rpc.answers import Log
from tiebreak.rpc.chain_errors import OF_A_MOVE, REMEDIES, ContractError, DeploymentError, InvalidAnswer, remedy
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import HttpTransport
from tiebreak.strategy import FORCED
from web3 import Web3

ENTRIES: list[dict[str, Any]] = load_artifact("VerificationGame")["abi"]
FUNCTIONS = [entry for entry in ENTRIES if entry["type"] == "function"]
EVENTS = [entry for entry in ENTRIES if entry["type"] == "event"]
OURS = ContractAbi.load("VerificationGame", *LIBRARIES, "Adjudicator", *ADJUDICATORS_PARTS)
THEIRS = Web3().eth.contract(address=to_checksum_address("0x" + "77" * 20), abi=ENTRIES)

Parameter = Mapping[str, Any]


def value_of(parameter: Parameter, dice: random.Random) -> Any:
    """A random value as eth-abi takes it; a third of all numbers are extremes."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        start = kind.rindex("[")
        count = int(kind[start + 1 : -1] or dice.choice((0, 1, 2, 5)))
        return tuple(value_of({**parameter, "type": kind[:start]}, dice) for _ in range(count))
    family, _, name = parameter.get("internalType", "").partition(" ")
    if family == "enum":
        return dice.choice(list(getattr(enums, name.rsplit(".", 1)[-1]))).value
    if kind == "tuple":
        return tuple(value_of(item, dice) for item in parameter["components"])
    if kind.startswith("uint"):
        most = 2 ** int(kind[4:]) - 1
        return dice.choice((0, most, dice.randint(0, most)))
    if kind == "address":
        return to_checksum_address(dice.randbytes(20))
    if kind == "string":
        return "".join(dice.choices("abcXYZ019-_/", k=dice.choice((0, 1, 46, 128))))
    if kind.startswith("bytes"):
        return dice.randbytes(int(kind[5:]) if kind[5:] else dice.choice((0, 1, 31, 32, 33, 1024)))
    return dice.random() < 0.5


def typed(parameters: list[Parameter], values: tuple[Any, ...]) -> list[Any]:
    """Values as this project's records."""
    found = []
    for parameter, value in zip(parameters, values, strict=True):
        found.append(_typed(parameter, _with_bytes(parameter, value)))
    return found


def _with_bytes(parameter: Parameter, value: Any) -> Any:
    """Values with texts as bytes, as they are decoded."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = {**parameter, "type": kind[: kind.rindex("[")]}
        return tuple(_with_bytes(item, one) for one in value)
    if kind == "tuple":
        return tuple(_with_bytes(item, one) for item, one in zip(parameter["components"], value, strict=True))
    return value.encode() if kind == "string" else value


def encoded(parameters: list[Parameter], values: tuple[Any, ...]) -> bytes:
    return encode([collapse_if_tuple(dict(item)) for item in parameters], values)


def log_of(entry: Parameter, values: tuple[Any, ...]) -> Log:
    """The log of an event."""
    pairs = list(zip(entry["inputs"], values, strict=True))
    topics = [encoded([item], (value,)) for item, value in pairs if item["indexed"]]
    others = [(item, value) for item, value in pairs if not item["indexed"]]
    data = encoded([item for item, _ in others], tuple(value for _, value in others))
    hashes = bytes(32), bytes(32)
    return Log(THEIRS.address, (event_abi_to_log_topic(dict(entry)), *topics), data, 5, hashes[0], hashes[1], 3)


def by_web3(entry: Parameter, log: Log) -> dict[str, Any]:
    """The arguments of an event by web3."""
    receipt = {
        "address": log.address,
        "topics": [HexBytes(topic) for topic in log.topics],
        "data": HexBytes(log.data),
        "blockNumber": log.block,
        "blockHash": HexBytes(log.block_hash),
        "transactionHash": HexBytes(log.transaction),
        "transactionIndex": 0,
        "logIndex": log.index,
    }
    args = getattr(THEIRS.events, entry["name"])().process_log(receipt)["args"]
    return {name: _flat(value) for name, value in args.items()}


def _flat(value: Any) -> Any:
    """A value with structs as tuples, in place of web3's dictionaries."""
    if isinstance(value, Mapping):
        return tuple(_flat(item) for item in value.values())
    return tuple(_flat(item) for item in value) if isinstance(value, list | tuple) else value


def aliased(elements: int, size: int) -> bytes:
    """A result of `batch` all of whose elements lead to the same bytes."""
    element = (1).to_bytes(32, "big") + (64).to_bytes(32, "big") + size.to_bytes(32, "big") + bytes(size)
    offsets = (32 * elements).to_bytes(32, "big") * elements
    return (32).to_bytes(32, "big") + elements.to_bytes(32, "big") + offsets + element


@pytest.mark.parametrize("entry", FUNCTIONS, ids=lambda entry: str(entry["name"]))
def test_calls_are_encoded_as_by_web3_and_results_are_read_back(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        ours = OURS.encode_call(entry["name"], *typed(entry["inputs"], values))
        assert "0x" + ours.hex() == THEIRS.encode_abi(entry["name"], list(values))
        values = tuple(value_of(item, dice) for item in entry["outputs"])
        found = OURS.decode_result(entry["name"], encoded(entry["outputs"], values))
        assert [found] == (typed(entry["outputs"], values) or [None])


@pytest.mark.parametrize("entry", EVENTS, ids=lambda entry: str(entry["name"]))
def test_events_are_read_as_by_web3(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        log = log_of(entry, values)
        event = OURS.decode_event(log)
        assert event is not None
        args = by_web3(entry, log)
        assert tuple(args[item["name"]] for item in entry["inputs"]) == values
        assert [getattr(event, name) for name in event.__dataclass_fields__][3:] == typed(entry["inputs"], values)


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


@pytest.mark.parametrize("artifact", [{}, {"abi": None}, {"abi": [{"type": "function"}]}])
def test_a_damaged_artifact_says_how_to_get_it_back(artifact: dict[str, Any]) -> None:
    with pytest.raises(DeploymentError, match="install tiebreak again, or run `make contracts-build`"):
        ContractAbi(artifact)
    with pytest.raises(DeploymentError, match=r"NoSuchContract.*install tiebreak again, or run `make contracts-build`"):
        load_artifact("NoSuchContract")


# Calls: typed methods for those that pay, and names for all others.


GAME = VerificationGame(ChainNode(HttpTransport("http://127.0.0.1:1")), ANYONE)
"""Nobody is asked for anything."""


class Named(bytes):
    """An argument with its name, which passes for terms and for an empty list of calls."""

    reward, audit_fee = 30, 12

    def __new__(cls, name: str) -> Named:
        self = super().__new__(cls)
        self.name = name
        return self

    name: str


SENT = [entry for entry in FUNCTIONS if entry["stateMutability"] in ("nonpayable", "payable")]
ALIASES = {"id": "job", "gameId": "game", "move": "descent"}
"""The contract's names of arguments, where the methods have others."""
METHODS = [one for one in SENT if hasattr(VerificationGame, snake_case(one["name"]))]


@pytest.mark.parametrize("entry", METHODS, ids=lambda one: str(one["name"]))
def test_a_method_gives_a_function_its_arguments_in_order_and_its_payment(entry: dict[str, Any]) -> None:
    names = [ALIASES.get(item["name"], snake_case(item["name"])) for item in entry["inputs"]]
    method = getattr(GAME, snake_case(entry["name"]))
    parameters = inspect.signature(method).parameters
    assert set(names) == set(parameters) - {"bond", "purpose"}
    given: dict[str, Any] = {name: Named(name) for name in names}
    call = method(**given, **({"bond": 42} if "bond" in parameters else {}))
    assert call.function == entry["name"]
    if names == ["calls"]:
        assert call.arguments == ([],)
    else:
        assert [argument.name for argument in call.arguments] == names
    assert call.value == (42 if entry["stateMutability"] == "payable" else 0)


def test_all_functions_are_tried() -> None:
    assert len(SENT) > 25
    assert {one["name"] for one in METHODS} > {one["name"] for one in SENT if one["stateMutability"] == "payable"}
    sources = "".join(path.read_text() for path in Path(structs.__file__).parents[1].rglob("*.py"))
    called = re.findall(r"ContractCall\.of\(\"(\w+)\"", sources)
    names = {entry["name"] for entry in FUNCTIONS}
    assert len(called) > 12 and names.issuperset(called), "what is called without a method"
    moves = {*re.findall(r"Move\(\"(\w+)\"", Path(strategy.__file__).read_text())}
    assert len(moves) > 10 and names > moves > FORCED, "tests of games play each of them on the contract"


def test_a_call_that_pays_is_not_put_where_its_payment_would_be_lost() -> None:
    paying, free = GAME.appeal(7, spec_hash=bytes(32), bond=5), GAME.appeal(7, spec_hash=bytes(32), bond=0)
    for several in (GAME.batch, GAME.in_turn):
        with pytest.raises(ValueError, match="appeal pays 5 wei, and cannot be in a batch: send it alone"):
            several([free, paying])
        assert several([free]).arguments == ([GAME.encode(free)],)


def test_an_address_in_other_letters_is_the_same_contract() -> None:
    """Regression: a payment had another name, under which it was made once more, and no event was the contract's."""
    address = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    seals = [
        VerificationGame(GAME.node, given).seal_claim(7, spec_hash=bytes(32), seal=bytes(32), bond=5)  # type: ignore[arg-type]
        for given in (address, address.lower(), "0x" + address[2:].upper())
    ]
    assert {seal.purpose for seal in seals} == {f"seal a claim on job 7 of {address} with spec 0x{'00' * 32}"}


def test_a_payment_has_a_name_of_its_own() -> None:
    name = f"job 7 of {ANYONE} with spec 0x{'22' * 32}"
    seal = GAME.seal_claim(7, spec_hash=b"\x22" * 32, seal=bytes(32), bond=5)
    assert seal == ContractCall("sealClaim", (7, b"\x22" * 32, bytes(32)), 5, f"seal a claim on {name}")
    assert GAME.appeal(7, spec_hash=b"\x22" * 32, bond=5, purpose="again").purpose == "again"
    assert GAME.attest(7, spec_hash=b"\x22" * 32, checkpoint_root=bytes(32)).purpose is None
