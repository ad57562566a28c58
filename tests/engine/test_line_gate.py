"""The gate on lines: rooms above their limits, files that are too long, limits that rise, and ways around it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from measure_house import gate

CODE = '''"""A module
of two lines."""

A = 1


def f() -> int:
    """Return A.

    Never raises.
    """
    return A
'''
"""12 lines as `ruff format` writes them, 6 of them docstrings."""
TABLE = """[tool.house.rooms]
"low" = {{ files = ["low/*.py"], lines = {low}, docstrings = 1.0 }}
"rest" = {{ files = ["*.py"], lines = {rest} }}
"""


class Checkout:
    """A small repository with two rooms of 12 lines, and its limits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "low").mkdir()
        (root / "low" / "one.py").write_text(CODE)
        (root / "two.py").write_text(CODE)
        self._git("init", "-q")
        self.limit(12, 12)
        self.commit()

    def limit(self, low: int, rest: int) -> None:
        (self.root / "pyproject.toml").write_text(TABLE.format(low=low, rest=rest))

    def commit(self) -> None:
        self._git("add", ".")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", self.root, *arguments], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (CODE + "B = 2; C = 3\n", 20),
        (CODE + "# fmt: off\n", 18),
        (CODE.replace("A = 1", "A = 1\nB = 1").replace('    """Return A.\n\n    Never raises.\n    """\n', ""), 14),
        (CODE.replace("return A", "if A: return 1  # fmt: skip"), 14),
    ],
    ids=["two in one", "a comment", "a docstring for a line", "unformatted"],
)
def test_a_room_above_its_limit_is_named(
    checkout: Checkout, capsys: pytest.CaptureFixture[str], change: str, lines: int
) -> None:
    """Each line of code counts as two where docstrings have a share of 1."""
    (checkout.root / "low" / "one.py").write_text(change)
    assert gate(checkout.root) == 1
    assert f"low has {lines} lines and may have 12: take {lines - 12} away" in capsys.readouterr().out


def test_limits_fall_together_and_move_between_rooms(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.limit(14, 12)
    assert gate(checkout.root) == 1
    assert "the limits of Python add up to 26 lines, and to 24 in commit" in capsys.readouterr().out
    (checkout.root / "two.py").write_text("A = 1\n")
    checkout.limit(22, 1)
    assert gate(checkout.root) == 0
    checkout.commit()
    checkout.limit(22, 2)
    checkout.commit()
    assert gate(checkout.root) == 1, "a limit that was committed in spite of the gate"


def test_a_file_that_is_too_long_and_names_that_are_shared_are_named(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.limit(12, 2000)
    (checkout.root / "two.py").write_text("A = 1\n" * 901)
    for place in ("engine/a/one.py", "client/b/one.py"):
        (checkout.root / place).parent.mkdir(parents=True)
        (checkout.root / place).write_text("class Same: ...\n")
    assert gate(checkout.root) == 1
    said = capsys.readouterr().out
    assert "two.py has 901 lines and may have 900" in said
    assert "one.py is in client/b/one.py and in engine/a/one.py: give each" in said and "Same is in client" in said
