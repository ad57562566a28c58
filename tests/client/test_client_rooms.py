"""The client as a house: rooms import each other one way; files have names of their own, and are not tiny."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from measure_house import depth_of_imports

ROOT = Path(__file__).resolve().parents[2] / "client" / "tiebreak"
DEMO = ROOT.with_name("tiebreak_demo")
"""The demo and, in a package of its own inside, parties that break the rules."""
ENGINE = ROOT.parents[1] / "engine" / "roundlog"
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
FILES = [*ROOT.rglob("*.py"), *DEMO.rglob("*.py")]

LEVELS = 8
"""Most levels of imports at the top of files within a room."""
CHAIN = 8
"""Most files in a chain of imports at the top of files, through all rooms. What only annotations name is imported for
the type checker alone."""
SHORTEST = 60
"""Fewest lines of a file; the most are a limit of `measure_house.py --gate`. A room's `__init__` is its face, and
may be shorter."""


def imported(file: Path, *, at_the_top: bool = False) -> set[str]:
    """Modules of the client that a file imports, at the top or in a function."""
    found: set[str] = set()
    tree = ast.parse(file.read_text())
    for node in tree.body if at_the_top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tiebreak"):
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names if one.name.startswith("tiebreak.")}
    return found


def faces() -> dict[str, set[str]]:
    """Faces of the engine, its own, its rooms' and those of rooms within rooms -> the names that they have."""
    found: dict[str, set[str]] = {}
    for path in ENGINE.rglob("__init__.py"):
        name = ".".join(("roundlog", *path.parent.relative_to(ENGINE).parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("roundlog."):
                found.setdefault(name, set()).update(one.asname or one.name for one in node.names)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                found.setdefault(name, set()).add(node.name)
    return found


def imports() -> dict[str, set[str]]:
    """Room -> the other rooms that any file of it imports."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room in ROOMS:
        for file in (ROOT / room).glob("*.py"):
            found[room] |= {name.split(".")[1] for name in imported(file) if "." in name}
        found[room] = found[room] & {*ROOMS} - {room}
    return found


def test_no_rooms_import_each_other_in_a_circle() -> None:
    found = imports()
    assert {"cli", "contract", "devnet", "game", "roles", "rpc", "store", "transactions"} <= set(found)
    list(TopologicalSorter(found).static_order())


def test_the_rooms_of_the_chain_stand_on_each_other() -> None:
    found = imports()
    assert found["rpc"] == set()
    assert found["transactions"] == {"rpc"}
    assert found["contract"] == {"rpc", "transactions"}
    assert found["devnet"] == {"rpc", "transactions"}


@pytest.mark.parametrize(
    "room", [*(ROOT / name for name in ROOMS), DEMO, DEMO / "adversary"], ids=lambda room: room.name
)
def test_a_room_has_few_levels_and_no_circle(room: Path) -> None:
    package = ".".join(room.relative_to(ROOT.parent).parts)
    files = {f"{package}.{path.stem}": path for path in room.glob("*.py") if path.stem != "__init__"}
    anywhere = {name: imported(path) & {*files} - {name} for name, path in files.items()}
    list(TopologicalSorter(anywhere).static_order())
    at_the_top = {name: imported(path, at_the_top=True) & {*files} - {name} for name, path in files.items()}
    levels: dict[str, int] = {}
    for name in TopologicalSorter(at_the_top).static_order():
        levels[name] = 1 + max((levels[one] for one in at_the_top[name]), default=0)
    assert max(levels.values()) <= LEVELS


def test_no_chain_of_imports_is_long() -> None:
    assert 4 < depth_of_imports(ROOT) <= CHAIN


def test_the_client_imports_the_engine_by_its_faces() -> None:
    """A room of one file, such as `roundlog.spec`, is its own face."""
    known = faces()
    assert {"roundlog", "roundlog.training", "roundlog.execution.ranks"} <= set(known)
    deep = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                deep += [(path.name, one.name) for one in node.names if one.name.startswith("roundlog.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "roundlog":
                module = node.module or ""
                if module == "roundlog.rounding.ovt":  # OVT's policy, in one file
                    continue
                if (ENGINE.parent / f"{module.replace('.', '/')}.py").exists() and module.count(".") == 1:
                    continue
                names = {one.name for one in node.names} - known.get(module, set())
                deep += [(path.name, f"{module}.{name}") for name in names if f"{module}.{name}" not in known]
    assert deep == []


def test_every_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in FILES if path.name not in ("__init__.py", "__main__.py")]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert sorted({*names} & {path.name for path in ENGINE.rglob("*.py")}) == []


def test_files_are_not_tiny() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    faces = ("__init__.py", "__main__.py")
    assert [path.name for path, count in lines.items() if count < SHORTEST and path.name not in faces] == []


def public_classes(files: Iterable[Path]) -> list[str]:
    return [
        node.name
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_every_public_class_has_a_name_of_its_own() -> None:
    """In the engine, too, whose own tests look at its classes alone."""
    names = public_classes(FILES)
    assert len(names) > 300
    assert sorted({name for name in names if names.count(name) > 1}) == []
    engine = {*public_classes(ENGINE.rglob("*.py"))}
    assert len(engine) > 200
    assert sorted({*names} & engine) == []


def test_no_honest_room_imports_the_demo_or_dishonest_parties() -> None:
    """The command of the demo imports its package while it runs; no other file does."""
    known = {path.name: imported(path) for path in ROOT.rglob("*.py")}
    assert [name for name, found in known.items() if any(one.startswith("tiebreak_demo") for one in found)] == [
        "demo.py"
    ]
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tiebreak", "demo", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tiebreak.cli.demo" in done.stderr and "tiebreak_demo" not in done.stderr


def test_dishonest_parties_know_nothing_of_the_demo() -> None:
    found = {one for path in (DEMO / "adversary").glob("*.py") for one in imported(path)}
    assert any(one.startswith("tiebreak_demo.adversary.") for one in found)
    assert {one for one in found if one.startswith("tiebreak_demo") and "adversary" not in one} == set()


OVT = re.compile(r"\btrits?\b|\bOVT\b|\bthresholds?\b", re.IGNORECASE)


def test_ovts_policy_is_mentioned_where_a_user_types_its_name_alone() -> None:
    """Elsewhere a rounding is one of `roundlog.rounding`, and its policy's name is the spec's."""
    assert {path.name for path in FILES if OVT.search(path.read_text())} == {"jobs.py", "training.py"}
