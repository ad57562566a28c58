"""The engine as a house: rooms stand on each other one way; files have names of their own, and are not
tiny; optional parts stand behind doors; and OVT's policy stands in one room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from measure_house import path_of_a_task

ROOT = Path(__file__).resolve().parents[2] / "engine" / "roundlog"

ORDER = [
    *(
        "number_format",
        "json_text",
        "spec",
        "program",
        "definitions",
        "kernels",
        "storage",
        "arithmetic",
        "commitments",
    ),
    *("randomness", "data", "descriptors", "log", "operators", "adjudication", "rounding", "execution", "capture"),
    *("training", "examples", "dispute", "segment_audits", "generation"),
]
"""Rooms, from the lowest to the highest: each imports lower ones only."""

SHORTEST = 60
"""Fewest lines of a file; the most are a limit of `measure_house.py --gate`. A room's `__init__` is its face, and
may be shorter."""
EXCEPTIONS = {
    "examples/baseline.py": "a training that everybody writes so",
    "examples/logistic.py": "an example, the shorter the better",
}
"""Files, or folders, that may be shorter than the others, and have a name that another file has, and why."""

DOORS = (
    "roundlog.execution.ranks",
    "roundlog.kernels.cuda",
    "roundlog.segment_audits.cluster",
    "tiebreak.bounded_connections",
    "tiebreak.dashboard",
    "tiebreak.server",
)
"""Parts that few need; and what only they, or the command line, load."""
BEHIND_DOORS = ("ray", "triton", "starlette", "uvicorn", "jinja2")


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_exception(path: Path) -> bool:
    return any(named(path) == one or named(path).startswith(f"{one}/") for one in EXCEPTIONS)


def module_of(path: Path) -> str:
    parts = ("roundlog", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Modules of the engine that a file imports, at the top or in a function; a name may be a module's, or of one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "roundlog":
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "roundlog")


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else None


def test_every_room_has_its_place() -> None:
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {path.stem for path in ROOT.glob("[!_]*.py")}
    assert rooms == {*ORDER}


def test_rooms_import_lower_rooms_only() -> None:
    upward = []
    for path in files():
        room = room_of(module_of(path))
        for module in imported(path):
            other = room_of(module)
            if room and other and ORDER.index(other) > ORDER.index(room):
                upward.append(f"{named(path)} imports {module}")
    assert upward == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in files()} - {ROOT}), ids=named)
def test_a_room_has_no_circle(folder: Path) -> None:
    inside = {module_of(path): path for path in folder.glob("*.py") if path.name != "__init__.py"}
    list(
        TopologicalSorter(
            {name: {*imported(path)} & {*inside} - {name} for name, path in inside.items()}
        ).static_order()
    )


def test_every_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in files() if path.name != "__init__.py" and not is_exception(path)]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_files_are_not_tiny() -> None:
    assert len(EXCEPTIONS) <= 10 and all((ROOT / one).exists() for one in EXCEPTIONS)
    lines = {path: len(path.read_text().splitlines()) for path in files()}
    small = {path for path, count in lines.items() if count < SHORTEST and path.name != "__init__.py"}
    assert [named(path) for path in sorted(small) if not is_exception(path)] == []


def test_every_public_class_has_a_name_of_its_own() -> None:
    names = [
        node.name
        for path in files()
        if not is_exception(path) and not named(path).startswith("examples/")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(names) > 200
    assert sorted({name for name in names if names.count(name) > 1}) == []


CORE = """
import importlib, pkgutil, sys
import roundlog, tiebreak.roles

faces = [m.name for m in pkgutil.iter_modules(roundlog.__path__, "roundlog.")]
roles = [m.name for m in pkgutil.iter_modules(tiebreak.roles.__path__, "tiebreak.roles.")]
for name in [*faces, *roles, "roundlog.training.auditor", "roundlog.training.trainer", "roundlog.segment_audits.audit"]:
    importlib.import_module(name)
doors = {doors!r}
print([m for m in sorted(sys.modules) if any(m == door or m.startswith(door + ".") for door in doors)])
"""


def test_the_core_loads_nothing_behind_a_door() -> None:
    code = CORE.replace("{doors!r}", repr((*DOORS, *BEHIND_DOORS)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _defining(module: str, name: str, modules: dict[str, Path]) -> str:
    """The file's module that a name of a face, or of a module, comes from."""
    if f"{module}.{name}" in modules:
        return f"{module}.{name}"
    path = modules.get(module)
    for node in ast.parse(path.read_text()).body if path is not None and path.name == "__init__.py" else ():
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.asname or one.name for one in node.names}:
            return _defining(node.module, name, modules)
    return module


def test_capture_has_no_circle_of_imports() -> None:
    """Imports inside of functions count, and those of a face's members."""
    modules = {module_of(path): path for path in files()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        if module.startswith("roundlog.capture.") and path.name != "__init__.py":
            found = {
                _defining(node.module, one.name, modules)
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("roundlog")
                for one in node.names
            }
            graph[module] = {one for one in found if one.startswith("roundlog.capture.")} - {module}
    assert len(graph) > 20
    list(TopologicalSorter(graph).static_order())


def test_a_task_is_followed_through_few_files() -> None:
    """A reader who follows a task to its program changes files so often, among so many, and comes back so often."""
    changes, files_seen, returns = path_of_a_task()
    assert files_seen > 3
    assert changes <= 8 and files_seen <= 8 and returns <= 3


OVT = re.compile(r"\btrits?\b|\bOVT\b|\bthresholds?\b|\bAlgorithm [1-4]\b", re.IGNORECASE)


def test_ovts_policy_is_mentioned_in_its_room_alone() -> None:
    """The spec names policies, and a trainer's rounding is chosen by them; PyTorch has thresholds, too."""
    elsewhere = [
        f"{named(path)}:{number}"
        for path in files()
        if not named(path).startswith(("rounding/ovt.py", "capture/"))
        and named(path) not in ("spec.py", "rounding/policies.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OVT.search(line)
    ]
    assert elsewhere == []
