"""`tiebreak serve` as a process of its own."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tiebreak.transactions.keys import KEY_VARIABLE, devnet_account

from tests.client.server.asking import API_KEY


@contextmanager
def serving(
    model: Path,
    receipts: Path,
    *,
    positions: int = 64,
    rows: int = 2,
    environment: Mapping[str, str] | None = None,
    seconds: float = 240,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves those who bring API_KEY, and signs, killed at the end, and its address. environment: in
    place of ours."""
    file = receipts.with_suffix(".key")
    file.touch(0o600)
    file.write_text(f"{API_KEY}\n")
    how = ("--positions", str(positions), "--rows", str(rows), "--port", "0", "--sign", "--api-key-file", str(file))
    key = {KEY_VARIABLE: devnet_account(1).key.hex()}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tiebreak", "serve", "--model", str(model), "--receipts", str(receipts), *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ if environment is None else environment) | key,
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], seconds)[0], "the server does not begin"
        line = process.stdout.readline()
        found = re.search(r"http://\S+/v1", line)
        assert found is not None and devnet_account(1).address in line, line
        yield process, found[0].removesuffix("v1")
    finally:
        process.kill()
        process.wait()
