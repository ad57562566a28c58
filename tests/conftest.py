"""Marks the tests that `slow.toml` names: `make test-slow` runs them, and `make test` the others."""

from __future__ import annotations

import gc
import os
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent

SLOW: dict[str, dict[str, list[str]]] = tomllib.loads((HERE / "slow.toml").read_text())


# Thousands of modules and traces stay until the end: to walk over them every 700 objects took a twentieth of the time.
gc.set_threshold(50_000, 20, 20)

# A shell has what it runs in the background ignore Ctrl-C, and so would every process that a test starts and ends.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def disk_without_waits() -> Iterator[None]:
    """No test cuts the power, and an eighth of the time would be spent waiting for the disk. Processes that tests start
    have the real `os.fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


def _matches(name: str, patterns: list[str]) -> list[str]:
    """`*` stands for anything; parameters stand in brackets, as pytest prints them."""
    return [found for found in patterns if re.fullmatch(re.escape(found).replace(r"\*", ".*"), name)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    used: set[tuple[str, str]] = set()
    for item in items:
        file = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        if file not in SLOW:
            continue
        quick = _matches(item.name, SLOW[file].get("quick", []))
        slow = _matches(item.name, SLOW[file].get("slow", ["*"]))
        used |= {(file, pattern) for pattern in quick + slow}
        if slow and not quick:
            item.add_marker(pytest.mark.slow)
    if config.args_source is config.ArgsSource.TESTPATHS:
        named = {(file, pattern) for file, kinds in SLOW.items() for patterns in kinds.values() for pattern in patterns}
        if unused := sorted(named - used):
            # A test that was renamed would be quick, or slow, without anybody having said so.
            raise pytest.UsageError(f"tests/slow.toml: no test of {unused[0][0]} is called {unused[0][1]}")
