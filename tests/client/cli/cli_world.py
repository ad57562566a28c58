"""Equipment of the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tiebreak.contract.game import VerificationGame
from tiebreak.transactions.keys import devnet_account
from typer.testing import Result

Run = Callable[..., Result]


def refused(result: Result, *parts: str, code: int = 1) -> str:
    """The one sentence with which a command has failed, as text or as JSON; it has to contain all the parts."""
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    if lines[0].startswith("{"):
        error = json.loads(lines[0])["error"]
        assert error["exit_code"] == code
        lines[0] = f"Error: {error['message']}"
    assert lines[0].startswith("Error: ") and lines[0].endswith("."), lines[0]
    assert "Traceback" not in result.output
    assert result.stdout == ""
    for part in parts:
        assert part in lines[0], f"{part!r} is not in {lines[0]!r}"
    return lines[0]


@dataclass(frozen=True)
class Trained:
    """A job directory and a whole run of it."""

    job: Path
    run: Path
    root: bytes


@dataclass(frozen=True)
class Chain:
    """An embedded chain behind HTTP."""

    game: VerificationGame
    url: str

    def environment(self, account: int | None = None) -> dict[str, str]:
        """The variables that point a command here, with the key of one of the funded accounts."""
        names = {"TIEBREAK_CHAIN": self.url, "TIEBREAK_CONTRACT": self.game.address}
        if account is not None:
            names["TIEBREAK_PRIVATE_KEY"] = bytes(devnet_account(account).key).hex()
        return names
