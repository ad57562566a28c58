"""Writes docs/reference/codes.md: exit codes, codes of errors, and environment variables.

.venv/bin/python scripts/make_code_docs.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import write_or_check
from tiebreak.cli.app import app
from tiebreak.cli.failures import ERROR_CODES, EXIT_CODES
from typer.main import get_command

_FILE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "codes.md"

READ_IN_THE_CODE = {
    "TIEBREAK_PRIVATE_KEY": "Private key of the account, where no keystore is named. It is seen by those who see the "
    "process's environment: for development chains.",
    "TIEBREAK_KEYSTORE_PASSWORD": "Password of the keystore; without it the password is asked for.",
    "TIEBREAK_ANVIL": "Anvil's binary, for development chains; empty: do without it.",
}
"""Variables that are no option's, and what they mean."""


def page() -> str:
    """The page, from the code as it is."""
    parts = [
        "# Codes and variables\n\nWritten by `scripts/make_code_docs.py` from the code; a test holds it fresh.\n",
        "\n## Exit codes\n\n| code | meaning |\n| --- | --- |\n",
        *(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()),
        "\n## Errors under --json\n\nAn error is one object on one line of standard error; standard output has none of "
        'it:\n\n```json\n{"error": {"code": "chain-unavailable", "exit_code": 1, "message": "..."}}\n```\n\n'
        "`message` is the sentence that a person would read, and may change. `code` is stable:\n\n"
        "| code | meaning |\n| --- | --- |\n",
        *(f"| `{code}` | {meaning} |\n" for code, meaning in ERROR_CODES.items()),
        "\n## Environment variables\n\nAn option on the command line counts before its variable.\n\n"
        "| variable | option | meaning |\n| --- | --- | --- |\n",
        *(f"| `{name}` | {option} | {meaning} |\n" for name, (option, meaning) in sorted(variables().items())),
    ]
    return "".join(parts)


def variables() -> dict[str, tuple[str, str]]:
    """Name of every environment variable -> its option, if it has one, and its meaning."""
    found = {name: ("", meaning) for name, meaning in READ_IN_THE_CODE.items()}
    for parameter in _parameters(get_command(app)):
        meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
        if isinstance(parameter.envvar, str):
            found[parameter.envvar] = (f"`{parameter.opts[0]}`", meaning)
    return found


def _parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for one in getattr(command, "commands", {}).values():
        yield from _parameters(one)


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {_FILE: page()}))
