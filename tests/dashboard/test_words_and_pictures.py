"""Parts of pages: numbers by their bits, the picture of a path, a verdict in words, names from files of one's own."""

from __future__ import annotations

import math
import struct
import typing
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from eth_typing import ChecksumAddress
from hypothesis import given
from hypothesis import strategies as st
from roundlog.training.job import Job
from tiebreak.contract import events
from tiebreak.contract.enums import Finding, JobStatus, Level, Outcome, Phase, Reason
from tiebreak.contract.structs import (
    ANYONE,
    Bisection,
    ClaimView,
    ElementView,
    GameView,
    JobView,
    LevelView,
    OperatorView,
    PostedSpec,
)
from tiebreak.dashboard import showing
from tiebreak.dashboard.game_history import GameHistory, verdict
from tiebreak.dashboard.path import LEAST, WIDTH, depth, draw_levels
from tiebreak.dashboard.showing import DUE, ENDS, FINDINGS, LEVELS, OUTCOMES, STATUSES, UNKNOWN, Names
from tiebreak.dashboard.site import directories_of, names_in

from tests.client.disputes import SPEC, TERMS
from tests.engine.kept_jobs import kept_job

NONE = bytes(32)


def zero(kind: Any) -> Any:
    """A record of the contract, or any other value, with nothing in it; whatever fields a newer contract has."""
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return () if parts[-1] is Ellipsis else tuple(map(zero, parts))
    if is_dataclass(kind):
        hints = get_type_hints(kind, localns={"typing": typing})
        return kind(**{one.name: zero(hints[one.name]) for one in fields(kind)})  # type: ignore[operator]
    if kind is bytes:
        return NONE
    if kind is ChecksumAddress:
        return ANYONE
    return 0 if kind is Any else kind(0) if issubclass(kind, int) else kind()


JOB: JobView = replace(
    zero(JobView),
    status=JobStatus.CLAIMED,
    spec=PostedSpec(SPEC, ANYONE, ANYONE),
    terms=TERMS,
    commit_deadline=2,
    claim=replace(zero(ClaimView), committed_at=1, challenge_deadline=2),
    live_games=1,
    game_count=1,
)


NAMES = Names([("add", "")] * 99 + [("matmul", "gpt.py:54")], [f"weight {slot}" for slot in range(7)])


def game(*levels: tuple[Level, int, int], height: int = 0, **changes: Any) -> GameView:
    """A game at these levels: leaves and index of each; `height`: left of the last one's search."""
    plain: GameView = replace(
        zero(GameView),
        phase=Phase.BISECTION,
        search=replace(zero(Bisection), height=height),
        levels=tuple(
            LevelView(level=level, leaf_count=leaves, roots=(b"a" * 32, b"b" * 32), index=index)
            for level, leaves, index in levels
        ),
        operator=replace(zero(OperatorView), width=4, elements=3000, chunks=12),
        disputed=zero(ElementView),
    )
    return replace(plain, **changes)


@given(st.integers(0, 2**32 - 1))
def test_an_fp32_number_is_told_exactly(bits: int) -> None:
    shown = showing.number(bits, 4)
    assert int(shown.bits, 16) == bits and len(shown.bits) == 10
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    if math.isfinite(value):
        assert struct.pack("<f", float(shown.value)) == struct.pack("<f", value)
    else:
        assert shown.value in ("NaN", "infinity", "-infinity")


@pytest.mark.parametrize("text", ["\x1b[2Jx", "a\nb", "\u202ex", "x" * 10**6, "\ud800"])
def test_a_strangers_text_is_short_and_on_one_line(text: str) -> None:
    shown = showing.bounded(text)
    assert len(shown) <= showing.LONGEST and shown.isprintable()


def test_every_name_of_the_contract_has_words() -> None:
    assert set(LEVELS) == set(Level)
    assert set(STATUSES) >= {one.name for one in JobStatus if one}
    assert set(ENDS) >= {one for one in Reason if one} and set(OUTCOMES) >= {one for one in Outcome if one}
    assert set(FINDINGS) | {Finding.VALUE} == set(Finding)
    assert {phase for phase, _ in DUE} == {
        Phase.BISECTION,
        Phase.OPENING,
        Phase.POSTING,
        Phase.PROVING,
        Phase.REFEREE,
    }


# The picture.


@given(leaves=st.integers(1, 2**43), at=st.floats(0, 1), left=st.integers(0, 11))
def test_a_search_is_drawn_where_it_is(leaves: int, at: float, left: int) -> None:
    index = min(int(at * leaves), leaves - 1)
    heights = [depth(leaves)]
    while heights[-1]:
        moves = -(-heights[-1] // 4)
        heights.append(heights[-1] - -(-heights[-1] // moves))
    moved = min(left, len(heights) - 1)
    height = heights[moved]
    index = index >> height << height
    (level,) = draw_levels(game((Level.CHECKPOINT, leaves, index), height=height), JOB, NAMES)
    for box in level.boxes:
        assert -0.01 <= box.x <= box.x + box.width <= WIDTH + 0.01
        assert box.y + box.height <= level.height + 0.01
    marks = [box for box in level.boxes if box.kind in ("place", "found")]
    # Every place lies in the one above it, except where a mark is as narrow as marks get.
    for above, below in pairwise(marks[1:]):
        assert below.x >= above.x - LEAST and below.x + below.width <= above.x + above.width + LEAST
    assert len(marks) == 1 + moved
    last = marks[-1]
    middle = (index + min(index + (1 << height), leaves)) / 2 / leaves * WIDTH
    assert abs(last.x + last.width / 2 - middle) <= LEAST
    assert level.done == (height == 0) and (marks[0].kind == "found") == level.done
    agreed = [box for box in level.boxes if box.kind == "agreed"]
    assert all(box.x + box.width <= last.x + last.width for box in agreed), "what lies to the right was not looked at"


# Verdicts.

LEVELS_DOWN = ((Level.CHECKPOINT, 12, 6), (Level.STEP, 5, 2), (Level.OPERATOR, 135, 99), (Level.CHUNK, 12, 9))
PLACE = {"block": 1, "index": 0, "transaction": b""}


def told(over: GameView, *found: events.Event) -> tuple[str, str]:
    shown = verdict(over, JOB, GameHistory([], list(found)), NAMES)
    assert shown is not None
    return shown.subject, shown.sentence


def test_a_computed_element_is_told_with_both_numbers() -> None:
    over = game(*LEVELS_DOWN, outcome=Outcome.CHALLENGER_WON, reason=Reason.PROOF)
    proof = events.ElementProven(
        **PLACE, game=1, element=2411, claimed=0x3F800001, finding=Finding.VALUE, bits=0x3F800000
    )
    assert told(over, proof) == (
        "step 32, operator 99, matmul of gpt.py line 54, element 2,411",
        "The trainer claims 0x3f800001 (1.0000001), the contract computed 0x3f800000 (1.0).",
    )


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A role's directory with a job. Read only."""
    directory = tmp_path_factory.mktemp("role")
    job = kept_job("logistic_sgd")
    room = directory / f"job-7-{posted(job).spec_hash.hex()[:16]}"
    job.write(room / "job")
    return directory


def posted(job: Job) -> JobView:
    spec = PostedSpec(job.spec, ANYONE, ANYONE)
    return replace(JOB, spec=spec, spec_hash=spec.hash)


def room_of(role: Path) -> Path:
    return next(role.iterdir())


def test_operators_get_their_names_from_a_roles_directory_or_a_jobs(role: Path) -> None:
    job = Job.read(room_of(role) / "job")
    for directory in (role, room_of(role) / "job"):
        names = names_in(directories_of([directory], posted(job)), job.spec.program_root)
        assert [kind for kind, _ in names.operators] == [node.op for node in job.program.nodes]
        assert tuple(names.slots) == job.program.state_names


def test_files_of_another_job_and_damaged_ones_give_no_names(role: Path, tmp_path: Path) -> None:
    (tmp_path / "program.json").write_bytes(b"\x00" * 100)
    (tmp_path / "spec.json").write_text("[" * 100_000)
    for directory in (room_of(role) / "job", tmp_path):
        assert names_in(directories_of([directory], JOB), SPEC.program_root) is UNKNOWN
