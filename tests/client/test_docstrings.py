"""First words of docstrings: a docstring says what the thing is, subject first (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "client", "scripts")
NO_SUBJECT = re.compile(r"\s*(What|Whatever|Whoever|Who|Whom|Whose|Of|Those|That which|The same|How)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is a statement: docstrings, and those below attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def without_subject(source: str) -> list[tuple[int, str]]:
    """Line and first line of every docstring that begins with a word that is no subject."""
    return [(line, text.splitlines()[0]) for line, text in docstrings(source) if NO_SUBJECT.match(text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_their_subject(folder: str) -> None:
    sources = {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    assert sum(1 for source in sources.values() for _ in docstrings(source)) > 100
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, source in sources.items()
        for line, text in without_subject(source)
    ]
    assert bad == [], "say first what the thing is, in a noun: " + "; ".join(bad)


@pytest.mark.parametrize(
    "source",
    [
        '"""What a role does."""',
        'def f():\n    """Of two trees, the deeper one."""',
        'async def f():\n    """How often it was called."""',
        'class A:\n    """\n    Whoever pays."""',
        'class A:\n    n: int\n    """Those that wait."""',
        'LIMIT = 3\n"""The same in seconds."""',
        'class A:\n    def f(self):\n        r"""That which is left."""',
    ],
)
def test_a_docstring_without_a_subject_is_found(source: str) -> None:
    assert len(without_subject(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        '"""Office hours of a role."""',
        'LIMIT = "What is no docstring is left alone"',
        '"""The samenesses of two runs."""',
        'def f():\n    """The root of what was claimed."""',
    ],
)
def test_other_first_words_are_left_alone(source: str) -> None:
    assert without_subject(source) == []
