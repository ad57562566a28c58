"""Calls of the contract have typed methods, one for each function, and nobody names a function by a string."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from tiebreak.contract.code import load_artifact
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.struct_bases import ANYONE
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import HttpTransport

ROOT = Path(__file__).resolve().parents[2] / "client" / "tiebreak"
CALLS = ("order", "send", "submit")
"""Methods that take a call of the contract."""


GAME = VerificationGame(ChainNode(HttpTransport("http://127.0.0.1:1")), ANYONE)
"""Nobody is asked for anything."""


def snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_every_function_that_changes_something_has_a_method_with_its_arguments() -> None:
    functions = {
        entry["name"]: len(entry["inputs"])
        for entry in load_artifact("VerificationGame")["abi"]
        if entry["type"] == "function" and entry["stateMutability"] in ("nonpayable", "payable")
    }
    assert len(functions) > 25
    for function, count in functions.items():
        method = getattr(GAME, snake_case(function))
        own = [name for name in inspect.signature(method).parameters if name not in ("bond", "purpose")]
        assert len(own) == count, function


def test_roles_and_commands_name_no_function_by_a_string() -> None:
    found = []
    for path in sorted([*(ROOT / "roles").glob("*.py"), *(ROOT / "cli").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "ContractCall" in ast.unparse(node.func):
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
                strings = [one for one in node.args[1:] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                found += [f"{path.name}:{one.lineno}" for one in strings]
    assert found == []


def test_a_payment_has_a_name_of_its_own() -> None:
    name = f"job 7 of {ANYONE} with spec 0x{'22' * 32}"
    seal = GAME.seal_claim(7, spec_hash=b"\x22" * 32, seal=bytes(32), bond=5)
    assert seal == ContractCall("sealClaim", (7, b"\x22" * 32, bytes(32)), 5, f"seal a claim on {name}")
    assert GAME.appeal(7, spec_hash=b"\x22" * 32, bond=5, purpose="again").purpose == "again"
    assert GAME.attest(7, spec_hash=b"\x22" * 32, checkpoint_root=bytes(32)).purpose is None
