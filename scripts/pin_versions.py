"""Writes constraints.txt: the versions of everything that this environment has installed.

    .venv/bin/python scripts/pin_versions.py

To be run after `make CONSTRAINTS= test` has passed in a fresh environment. PyTorch is not among them: the Makefile
names its version, since a build for the CPU has another name than one for CUDA."""

from __future__ import annotations

import platform
from importlib.metadata import distributions
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "constraints.txt"
_NOT_PINNED = ("tiebreak", "torch", "pip", "setuptools", "wheel")


def main() -> None:
    found = {(d.metadata["Name"].lower().replace("_", "-"), d.version) for d in distributions()}
    lines = [f"{name}=={version}" for name, version in sorted(found) if name not in _NOT_PINNED]
    head = [
        f"# What `make test` was last passed with, on Python {platform.python_version()}: `make` installs these",
        "# versions, so that a test run of next year is one of today. `make CONSTRAINTS= test` takes the newest that",
        "# pyproject.toml allows. Written by scripts/pin_versions.py.",
    ]
    _FILE.write_text("\n".join([*head, *lines]) + "\n")
    print(f"{len(lines)} versions in {_FILE.name}")


if __name__ == "__main__":
    main()
