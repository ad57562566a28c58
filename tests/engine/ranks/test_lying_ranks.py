"""A rank that speaks the protocol and lies: rank 0 names it, takes no memory for it, and goes on alone to the root."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from roundlog.execution.ranks import LostRankError, Ranks
from roundlog.execution.ranks.membership import Membership, _read_identity
from roundlog.execution.ranks.orders import collect
from roundlog.execution.ranks.rank_states import KeptStates
from roundlog.log.payload import encode
from roundlog.rounding import Follower, Recorder, Rounding
from roundlog.training.rank_runs import agree_without_job

from tests.engine.ranks import on_helpers
from tests.engine.ranks.on_liars import LIES, MESSAGES
from tests.engine.ranks.rank_processes import start

QUICK = {("a huge length", 3), ("no JSON", 3)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "at"),
    [pytest.param(lie, at, marks=[] if (lie, at) in QUICK else pytest.mark.long) for lie in LIES for at in (0, 3)],
)
def test_a_helper_that_lies_in_its_messages_costs_no_run(lie: str, at: int, tmp_path: Path) -> None:
    """The first message is about who has the job, and the fourth about a step's log."""
    right = [on_helpers.alone(name, tmp_path / name) for name in ("linear", "conv")]
    processes = start("on_liars:run_lied_to", 2, str(tmp_path / "helped"), lie, at)
    try:
        out, err = processes[0].communicate(timeout=280)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert processes[0].returncode == 0, err
    roots, warnings = json.loads(out.splitlines()[-1])
    assert roots == right and "Traceback" not in err
    assert any(f"rank 1 (process {processes[1].pid} on " in one for one in warnings)


def nobody() -> Membership:
    """A membership that knows the names of ranks, and nothing else."""
    made = Membership.__new__(Membership)
    made._known, made._identity = {1: ["host", "7", "", ""]}, ["here", "6", "", ""]
    return made


NAMED = r"rank 1 \(process 7 on host\) has sent .*: leave that machine out, and run the same command again"


@pytest.mark.parametrize("message", [name for name in MESSAGES if name != "an earlier message"])
@pytest.mark.parametrize(
    "rounding", [lambda: Recorder(1), lambda: Follower(1, 1.0, np.random.default_rng(0))], ids=["records", "follows"]
)
def test_what_tells_nothing_of_a_log_is_refused_by_the_name_of_its_rank(
    message: str, rounding: Callable[[], Rounding]
) -> None:
    made = rounding()
    fine = encode({}) if isinstance(made, Recorder) else b'{"findings": [], "followed": 2}'
    collect(made, [fine], nobody().foreign)
    with pytest.raises(LostRankError, match=NAMED):
        collect(made, [fine, MESSAGES[message](b"")], nobody().foreign)


@pytest.mark.parametrize(
    "finding",
    [
        '{"kind": "missing", "step": 1, "operator": "x", "element": 1, "message": "x"}',
        '{"kind": "missing", "step": 1, "operator": 1, "element": null, "message": "x"}',
        '{"kind": "missing", "step": 1, "operator": 1, "element": 1, "message": []}',
        '{"kind": "missing", "step": true, "operator": 1, "element": 1, "message": "x"}',
        '{"kind": [], "step": 1, "operator": 1, "element": 1, "message": "x"}',
        '{"__class__": 1}',
        "7",
    ],
)
def test_a_finding_with_something_else_in_it_is_refused(finding: str) -> None:
    made = Follower(1, 1.0, np.random.default_rng(0))
    told = f'{{"findings": [{finding}], "followed": 1}}'.encode()
    with pytest.raises(LostRankError, match=NAMED):
        collect(made, [b'{"findings": [], "followed": 2}', told], nobody().foreign)


def ranks_that_say(*said: bytes, sizes: tuple[int, ...] = ()) -> Ranks:
    """Ranks of which the others say this, and this one is number 0."""
    made = Ranks.__new__(Ranks)
    made.rank, made.size, made.membership = 0, len(said) + 1, nobody()
    if sizes:
        made.numbers = lambda *mine: [[mine[0]], *([one] for one in sizes)]  # type: ignore[method-assign]
    else:
        made.gather_bytes = lambda data: [data, *said]  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("size", [2**62, 2**40, (1 << 30) + 1, -1, -(2**63)])
def test_lengths_beyond_any_message_take_no_memory(size: int) -> None:
    with pytest.raises(LostRankError, match=f"the announcement of {size} bytes: leave"):
        ranks_that_say(b"", sizes=(size,)).gather_bytes(b"x")


@pytest.mark.parametrize("told", [b"", b"x" * 31, b"x" * 96])
def test_roots_of_another_number_of_tensors_are_refused(told: bytes) -> None:
    kept = KeptStates.__new__(KeptStates)
    kept._ranks = ranks_that_say(told)
    kept._owners = cast(Any, SimpleNamespace(kept={3: 1, 4: 1}))
    with pytest.raises(LostRankError, match=f"{len(told)} bytes for the roots of 2 tensors"):
        kept.roots()
    kept._ranks = ranks_that_say(b"a" * 32 + b"b" * 32)
    assert kept.roots() == {3: b"a" * 32, 4: b"b" * 32}


@pytest.mark.parametrize("told", [b"", b"[", b"[]", b"{}", b'{"machine": 7}', b"\xff", b"[" * 100_000, b"null"])
def test_a_rank_that_says_no_facts_about_itself_is_refused(told: bytes) -> None:
    with pytest.raises(LostRankError, match="has sent no facts about itself: leave that machine out"):
        agree_without_job(ranks_that_say(told))


@pytest.mark.parametrize(
    "told", [b"", b"[" * 100_000, b"7", b"[1]", b'["h", "x", "", ""]', b'[7, "1", "", ""]', b"\xff", b"[[],[],[],[]]"]
)
def test_an_identity_that_is_none_is_refused(told: bytes) -> None:
    with pytest.raises(LostRankError, match="rank 3 does not say which process it is"):
        _read_identity(3, told)
    assert _read_identity(3, b'["h", "12", "34", "w"]') == ["h", "12", "34", "w"]
