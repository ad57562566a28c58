"""The tutorial with a chain, pasted as it stands into three shells that begin in one empty folder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from safetensors import safe_open

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "devnet.md"
SECONDS = 300
"""A newcomer waits for five minutes."""


def blocks() -> list[str]:
    """The commands of the page, in the order in which they are pasted."""
    found = re.findall(r'^```sh title="(\w+) terminal[^"]*"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in found] == ["First", "Second", "Third", "First"], "the page has other blocks now"
    return [text for _, text in found]


class Terminal:
    """A shell that is pasted into. What it prints is in a file."""

    def __init__(self, folder: Path, name: str, environment: dict[str, str]) -> None:
        self._output = folder.parent / f"{name}.txt"
        with self._output.open("wb") as file:
            self.shell = subprocess.Popen(
                ["/bin/bash"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def paste(self, text: str) -> None:
        """Send lines as a person would, all at once."""
        assert self.shell.stdin is not None
        self.shell.stdin.write(text.encode())
        self.shell.stdin.flush()

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, deadline: float, others: Sequence[Terminal] = ()) -> None:
        """Wait until the terminal shows a text. Fails at the deadline, and at an error here or in one of the
        `others`."""
        while text not in self.said:
            for one in (self, *others):
                assert "Error" not in one.said and one.shell.poll() is None, one.said
            assert time.monotonic() < deadline, f"{text!r} did not come:\n{self.said}"
            time.sleep(0.2)

    def close(self) -> None:
        if self.shell.poll() is None:
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.communicate(timeout=20)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    programs, folder = tmp_path / "bin", tmp_path / "empty"
    for place in (programs, folder):
        place.mkdir()
    command = programs / "tiebreak"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tiebreak.cli.app "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
    environment = kept | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        # The page's port may be taken on a machine that runs other tests.
        "TIEBREAK_DEVNET_PORT": str(port),
    }
    opened = [Terminal(folder, name, environment) for name in ("first", "second", "third")]
    yield opened
    for terminal in opened:
        terminal.close()


def test_the_page_works_when_it_is_pasted(terminals: list[Terminal], tmp_path: Path) -> None:
    first, second, third = terminals
    deadline = time.monotonic() + SECONDS
    *beginnings, end = blocks()
    for terminal, text in zip(terminals, beginnings, strict=True):
        terminal.paste(text)
    second.wait_for("commit", deadline, [first, third])
    third.wait_for("  attest", deadline, [first, second])
    first.paste(f"{end}echo $? at the end\n")
    first.wait_for("0 at the end", deadline)
    second.wait_for("finalize", deadline)
    second.wait_for("withdraw", deadline)
    assert "FINAL" in first.said and "attestations" in first.said
    with safe_open(tmp_path / "empty" / "model.safetensors", "pt") as model:
        assert list(model.keys())

    first.paste("kill %1\nwait %1\necho $? of the chain\n")
    first.wait_for("0 of the chain", time.monotonic() + 30)
    assert not (tmp_path / "empty" / "devnet" / "environment").exists()
    for terminal in (second, third):
        os.killpg(terminal.shell.pid, signal.SIGINT)
        terminal.shell.communicate(timeout=30)
        assert "Traceback" not in terminal.said
    # The chain goes on with what was on it.
    first.paste("tiebreak devnet --state devnet --json &\nuntil [ -f devnet/environment ]; do sleep 1; done\n")
    first.paste("tiebreak status 1 --json && echo found again && kill %%\n")
    first.wait_for("found again", time.monotonic() + 60)
    assert first.said.count('"status": "FINAL"') == 1
