"""A program that was changed somewhere is refused, or is the canonical text of another program."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roundlog.program import ProgramError, to_json

from tests.engine.operators.program_texts import TEXT, canonical, load, small


def _mutated(document: Any, rng: Random) -> Any:
    """One random change somewhere in the tree: replaced, dropped, doubled or swapped."""
    path: list[tuple[Any, Any]] = []
    target = document
    while isinstance(target, (list, dict)) and target and (rng.random() < 0.85 or not path):
        key = rng.choice(sorted(target)) if isinstance(target, dict) else rng.randrange(len(target))
        path.append((target, key))
        target = target[key]
    parent, key = path[-1]
    action = rng.randrange(5)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, list):
        parent.insert(key, target)
    elif action == 2 and isinstance(parent, list):
        other = rng.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif action == 3 and type(target) is int:
        parent[key] = target + rng.choice((-1, 1, 2**31, 2**63, -(2**64)))
    else:
        junk = [None, True, 0, -1, 2**64, 1.5, "", "f32", "bool", "add", [], {}, [0], {"slot": 0}, "\ud800", 2**63 - 1]
        parent[key] = rng.choice(junk)
    return document


def _refused_or_valid(text: bytes) -> None:
    start = time.process_time()
    try:
        program = load(text)
    except ProgramError as error:
        assert str(error).isprintable()
    else:
        assert to_json(program) == text
    assert time.process_time() - start < 2.0


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_program_is_refused_or_valid(rng: Random, changes: int, large: bool) -> None:
    document = json.loads(TEXT) if large else small()
    for _ in range(changes):
        document = _mutated(document, rng)
    _refused_or_valid(canonical(document))


@given(st.integers(0, len(TEXT) - 1), st.binary(max_size=3), st.integers(0, 3))
@settings(max_examples=60)
def test_flipped_bytes_are_refused_or_valid(place: int, inserted: bytes, removed: int) -> None:
    _refused_or_valid(TEXT[:place] + inserted + TEXT[place + removed :])
