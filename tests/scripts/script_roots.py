"""Trains jobs, and prints their roots: `python script_roots.py DIRECTORY` does so for every folder of a directory, in
a process of its own, so that the hardware profile can be another one."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from roundlog import Job, Trainer


def roots_of(directory: Path) -> dict[str, str]:
    """Root of the checkpoints, in hex, by the name of a job's folder."""
    found = {}
    for folder in sorted(directory.iterdir()):
        with tempfile.TemporaryDirectory() as run:
            found[folder.name] = Trainer(Job.read(folder), Path(run)).run().checkpoint_root.hex()
    return found


if __name__ == "__main__":
    print(json.dumps(roots_of(Path(sys.argv[1]))))
