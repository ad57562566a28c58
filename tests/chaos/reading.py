"""A reader without an account: it fetches a job without its data, and trains it from blocks that lie elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tiebreak.cli import app as command_line


def read_elsewhere(words: Sequence[str]) -> None:
    """JOB DIRECTORY. Commands that end with an error are given again; a run that was killed is carried on."""
    job, place = words[0], Path(words[1])
    if not (place / "job").exists():
        _until_done("job", "fetch", job, "--without-data", "--out", str(place / "job"), "--json")
    _until_done("train", str(place / "job"), "--run", str(place / "run"), "--json")


def _until_done(*words: str) -> None:
    while True:
        sys.argv = ["tiebreak", *words]
        try:
            command_line.main()
        except SystemExit as ended:
            if not ended.code:
                return
        time.sleep(0.5)
