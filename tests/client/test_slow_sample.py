"""`--sample N` takes one of N tests, another one with every commit, so that no test is left out for good."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = "tests/engine/test_philox.py"

_spec = importlib.util.spec_from_file_location("conftest_of_tests", ROOT / "tests" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)


def _collected(*options: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", SMALL, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {line for line in done.stdout.splitlines() if line.startswith(SMALL)}


@pytest.mark.slow
def test_a_sample_is_a_part_of_the_tests_that_every_process_takes_alike() -> None:
    whole = _collected()
    assert whole
    commit = _conftest._commit()
    assert _collected("--sample", "2") == {test for test in whole if _conftest.in_sample(test, commit, 2)}


def test_every_test_is_taken_with_some_commit_and_one_of_three_with_each() -> None:
    tests = [f"test_{number}" for number in range(600)]
    taken = [{test for test in tests if _conftest.in_sample(test, f"commit {n}", 3)} for n in range(40)]
    assert set.union(*taken) == set(tests)
    assert all(140 < len(each) < 260 for each in taken)


def test_without_a_commit_no_test_is_left_out() -> None:
    assert all(_conftest.in_sample(f"test_{number}", "", 3) for number in range(50))
