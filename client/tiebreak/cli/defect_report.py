"""The file that a defect of this program leaves for its authors: what failed where, and nothing of a job's data."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import tempfile
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("tiebreak", "torch", "numpy", "numba", "transformers", "safetensors")


def written(error: BaseException, command: str | None) -> str:
    """Writes the report into the working directory, or, where that cannot be written, the folder for temporary files.
    Gives the sentence that says what to do with it. command: that was running, without its options."""
    name = f"tiebreak-defect-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            path = folder() / name
            path.write_text(report(error, command), encoding="utf-8")
        except OSError:
            continue
        return f"please send {path} to Tiebreak's authors: it has the traceback and versions, and no data"
    return "please run it again as `tiebreak --debug ...` and send what it prints to Tiebreak's authors"


def report(error: BaseException, command: str | None) -> str:
    """The text of the report. Of Python's frames it has files and lines, and no values."""
    lines = [
        f"command: tiebreak {command or ''}".rstrip(),
        f"error: {type(error).__name__}: {error}",
        f"operator: {getattr(error, 'operator', '') or 'none'}",
        f"system: {platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        f"packages: {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}",
        "",
        *traceback.format_exception(error),
    ]
    text = "\n".join(line.rstrip("\n") for line in lines) + "\n"
    # Paths say who has been working where.
    for place, short in ((str(Path.home()), "~"), (sys.prefix, "<environment>")):
        text = text.replace(place, short) if len(place) > 1 else text
    return text


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
