"""Docstrings and pages name things that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "client", "scripts")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements of a syntax tree, and the parts of them that hold statements. Expressions hold none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield node
            yield from statements(node)


QUOTED = re.compile(r"`((?:roundlog|tiebreak)(?:\.[A-Za-z]\w*)+)(?:\(\))?`")


def defined(tree: ast.AST) -> set[str]:
    """Names that the statements of a file define or import, those of classes' members among them."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(one.asname or one.name for one in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found.update(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
    return found


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a file or folder, or to what such a file defines."""
    first, *rest = name.split(".")
    place = ROOT / ("engine" if first == "roundlog" else "client") / first
    while rest and ((place / rest[0]).is_dir() or (place / f"{rest[0]}.py").is_file()):
        place /= rest.pop(0)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return not rest or (file.is_file() and set(rest) <= defined(ast.parse(file.read_text())))


def test_quoted_names_are_those_of_things_that_there_are() -> None:
    sources = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    quoted = {
        (name, str(path.relative_to(ROOT))) for path in sources + pages for name in QUOTED.findall(path.read_text())
    }
    assert len(quoted) > 100
    assert [(name, path) for name, path in sorted(quoted) if not is_there(name)] == []


@pytest.mark.parametrize("name", ["roundlog.nothing", "roundlog.spec.Nothing", "roundlog.rounding.follow.Verdict"])
def test_a_name_of_nothing_is_found(name: str) -> None:
    assert not is_there(name)
