"""`--sample N` takes one of N tests, another one with every commit, so that no test is left out for good."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]

_spec = importlib.util.spec_from_file_location("conftest_of_tests", ROOT / "tests" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)


def test_every_test_is_taken_with_some_commit_and_one_of_three_with_each() -> None:
    tests = [f"test_{number}" for number in range(600)]
    taken = [{test for test in tests if _conftest.in_sample(test, f"commit {n}", 3)} for n in range(40)]
    assert set.union(*taken) == set(tests)
    assert all(140 < len(each) < 260 for each in taken)


def test_without_a_commit_no_test_is_left_out() -> None:
    assert all(_conftest.in_sample(f"test_{number}", "", 3) for number in range(50))
