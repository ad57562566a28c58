"""Imports between the rooms of the client: they point one way."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "client" / "tiebreak"


def imports() -> dict[str, set[str]]:
    """Room -> the other rooms that any file of it imports, at the top or in a function."""
    found: dict[str, set[str]] = {}
    for file in ROOT.glob("*/*.py"):
        room = found.setdefault(file.parent.name, set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tiebreak."):
                room.add(node.module.split(".")[1])
            elif isinstance(node, ast.Import):
                room.update(one.name.split(".")[1] for one in node.names if one.name.startswith("tiebreak."))
        room.discard(file.parent.name)
    return found


def test_no_rooms_import_each_other_in_a_circle() -> None:
    found = imports()
    assert {"cli", "contract", "demo", "devnet", "game", "roles", "rpc", "store", "transactions"} <= set(found)
    list(TopologicalSorter(found).static_order())


def test_only_the_demo_knows_dishonest_parties() -> None:
    assert {room for room, others in imports().items() if "adversary" in others} == {"demo"}
