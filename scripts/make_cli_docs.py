"""Writes docs/reference/command-line.md: what `--help` says of every command.

.venv/bin/python scripts/make_cli_docs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import write_or_check
from tiebreak.cli.app import app
from typer.main import get_command

_FILE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "command-line.md"


def page() -> str:
    """The page, from the commands as they are."""
    head = "# Command line\n\nWritten by `scripts/make_cli_docs.py` from the commands; a test holds it fresh.\n"
    return head + "".join(_sections(get_command(app), ("tiebreak",)))


def _sections(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    if commands := getattr(command, "commands", None):
        for name in sorted(commands):
            if not commands[name].hidden:
                yield from _sections(commands[name], (*words, name))
        return
    said = " ".join((command.help or "").split("\f")[0].split())
    yield f"\n## {' '.join(words)}\n\n{said}\n"
    rows: dict[str, list[str]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            rows.setdefault(panel, []).append(_row(parameter))
    for panel in sorted(rows, key="Options".__ne__):
        title = f"\n{panel}:\n" if len(rows) > 1 else ""
        yield title + "\n| option | meaning |\n| --- | --- |\n" + "".join(rows[panel])
    if command.epilog:
        _, *lines = command.epilog.splitlines()
        yield "\n```sh\n" + "".join(f"{line.strip()}\n" for line in lines) + "```\n"


def _row(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = (parameter.metavar or parameter.name).upper()
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| `{names}` | {meaning} |\n"


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {_FILE: page()}))
