"""Pipes in the place of files: a command that reads one would wait for a writer that never comes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.client.cli.cli_world import Chain, Run, Trained, refused

SECONDS = 10.0


@contextmanager
def in_time() -> Iterator[None]:
    """A block that fails if it waits."""

    def too_late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it has waited for {SECONDS:g} seconds")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def room(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, the present one, with a `pipe`, and copies of a `job` and its `run`."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    shutil.copytree(trained.job, tmp_path / "job")
    shutil.copytree(trained.run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "account import new.json --from pipe",
        "job create pipe:task --out new",
        "job publish job --store pipe",
        "job publish job --store store --pin-service http://127.0.0.1:1 --pin-token pipe",
        "train job --run new --thresholds pipe",
        "audit job --run new --claim pipe",
        "log inspect pipe",
        "export pipe --to new.safetensors",
        "verify pipe --job job --dir new",
        "trainer run --job 1 --keystore pipe --dir role",
        "devnet --state pipe",
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_at_once(run: Run, room: Path, chain: Chain, words: str) -> None:
    account = None if "--keystore" in words else 1
    with in_time():
        said = run(*words.split(), env={**chain.environment(account), "TIEBREAK_KEYSTORE_PASSWORD": "x"})
    assert said.exit_code in (1, 2) and isinstance(said.exception, SystemExit), said.output
    assert "Error" in said.stderr and "Traceback" not in said.output
    assert "import" not in words or "the key file pipe cannot be read (it is not a regular file)" in said.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("job/data.safetensors", "audit job --run new"),
        ("run/roots", "audit job --run new --claim run"),
        ("state/embedded.jsonl", "devnet --state state --kind embedded --port 0"),
        ("store/lock", "job publish job --store store"),
    ],
)
def test_a_pipe_in_a_directory_that_is_read_keeps_nobody_waiting(run: Run, room: Path, place: str, words: str) -> None:
    path = room / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with in_time():
        refused(run(*words.split()))
