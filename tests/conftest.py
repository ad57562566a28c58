"""Speeds the tests up, marks the slow ones of parametrised tests, and takes samples of tests."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long a test may take is pytest's to say: hypothesis allows 200 ms, on machines that others use, too.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

# Thousands of modules and traces stay until the end: to walk over them every 700 objects took a twentieth of the time.
gc.set_threshold(50_000, 20, 20)

_MANY = 300
"""New modules after which libraries are put aside again."""

_modules_aside = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Puts libraries aside, once they are loaded, where no collection of garbage walks over them: making a job ends
    with one, which took two thirds of the time of a small job."""
    global _modules_aside
    if len(sys.modules) > _modules_aside + _MANY:
        gc.collect()
        gc.freeze()
        _modules_aside = len(sys.modules)


# A shell has what it runs in the background ignore Ctrl-C, and so would every process that a test starts and ends.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def disk_without_waits() -> Iterator[None]:
    """No test cuts the power, and an eighth of the time would be spent waiting for the disk. Processes that tests start
    have the real `os.fsync`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


def _matches(case: str, pattern: str) -> bool:
    """`*` stands for anything."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), case) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks cases of parametrised tests as slow: those that `slow_cases` names, or all but those of `slow_but`."""
    unused: set[tuple[str, str]] = set()
    used: set[tuple[str, str]] = set()
    for item in items:
        test, _, case = item.nodeid.partition("[")
        for marker in ("slow_cases", "slow_but"):
            for mark in item.iter_markers(marker):
                found = [pattern for pattern in mark.args if _matches(case.removesuffix("]"), pattern)]
                unused |= {(test, pattern) for pattern in mark.args}
                used |= {(test, pattern) for pattern in found}
                if bool(found) is (marker == "slow_cases"):
                    item.add_marker(pytest.mark.slow)
    if config.args_source is config.ArgsSource.TESTPATHS and (wrong := sorted(unused - used)):
        # A case that was renamed would be quick, or slow, without anybody having said so.
        raise pytest.UsageError(f"{wrong[0][0]} has no case {wrong[0][1]}: mend its mark")
