"""Long work beside the games: one background job a key, runs that give way, and an end within a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import permutations
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundlog.arithmetic import MachineError
from tiebreak.roles.background_jobs import BackgroundJob, BackgroundJobs, Interrupted, Lane, Priority, order
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Progress

ETHER = 10**18
SOON, LATER = Priority(deadline=100, stake=ETHER), Priority(deadline=1000, stake=ETHER)
PATIENCE = 10.0


@pytest.fixture
def background_jobs() -> Iterator[BackgroundJobs]:
    found = BackgroundJobs(now=lambda: 0.0)
    yield found
    assert found.close(PATIENCE)


def steps(
    total: int, seconds: float = 10.0, gate: threading.Event | None = None
) -> Callable[[BackgroundJob[int]], int]:
    """A run that says that each of its steps has taken so long, and that waits for the gate at the first one."""
    done = [0]

    def work(background_job: BackgroundJob[int]) -> int:
        while done[0] < total:
            if gate is not None:
                gate.wait(PATIENCE)
            time.sleep(0.001)
            done[0] += 1
            background_job.taken(done[0] - 1, total, seconds, may_pause=True)
        return done[0]

    return work


def test_what_fails_says_so_when_it_is_asked(background_jobs: BackgroundJobs) -> None:
    def fails(background_job: BackgroundJob[int]) -> int:
        raise OSError("the disk is full")

    background_job = background_jobs.ask(Lane.FILES, "files", fails, SOON)
    assert background_job.wait(PATIENCE) and isinstance(background_job.error, OSError)
    with pytest.raises(OSError, match="disk is full"):
        background_job.result()
    background_jobs.forget("files")
    again = background_jobs.ask(Lane.FILES, "files", steps(1), SOON)
    assert again is not background_job and again.wait(PATIENCE) and again.result() == 1


def test_a_junk_run_gives_way_and_is_continued(background_jobs: BackgroundJobs) -> None:
    gate = threading.Event()
    junk = background_jobs.ask(Lane.RUNS, "junk", steps(400, 1.0, gate), Priority(deadline=500, stake=1))
    gate.set()
    while junk.steps < 2:
        time.sleep(0.001)
    real = background_jobs.ask(Lane.RUNS, "real", steps(20, 10.0), Priority(deadline=300, stake=ETHER))
    assert real.wait(PATIENCE)
    # Until its own length was known, the real one went by its deadline, which is the earlier one.
    assert not junk.done
    assert junk.wait(PATIENCE) and junk.result() == 400


def test_a_run_stands_while_a_game_needs_the_machine(background_jobs: BackgroundJobs) -> None:
    gate, running = threading.Event(), threading.Event()

    def replay(background_job: BackgroundJob[int]) -> int:
        running.set()
        gate.wait(PATIENCE)
        return 1

    run = background_jobs.ask(Lane.RUNS, "run", steps(10_000), LATER)
    game = background_jobs.ask(Lane.GAMES, "game", replay, SOON)
    assert running.wait(PATIENCE)
    time.sleep(0.02)
    stood = run.steps
    time.sleep(0.05)
    assert run.steps == stood
    gate.set()
    assert game.wait(PATIENCE)
    while run.steps == stood:
        time.sleep(0.001)
    background_jobs.forget("run")


def test_content_that_drips_holds_up_nothing_that_a_bond_is_lost_without(background_jobs: BackgroundJobs) -> None:
    """Jobs whose content comes drop by drop would otherwise keep a sealed audit from being opened."""
    gate = threading.Event()
    drips = [background_jobs.ask(Lane.FILES, i, lambda background_job: gate.wait(PATIENCE), SOON) for i in range(30)]
    opening = Priority(deadline=1000, stake=ETHER, bonded=True)
    assert background_jobs.ask(Lane.FILES, "publishing", steps(1), opening).wait(PATIENCE)
    waits = background_jobs.ask(Lane.FILES, "fetching", steps(1), LATER)
    assert not waits.done
    assert background_jobs.ask(Lane.FILES, "fetching", steps(1), opening) is waits, "a bond was paid meanwhile"
    assert waits.wait(PATIENCE) and not any(background_job.done for background_job in drips)
    gate.set()


def test_closing_stops_everything_within_a_moment() -> None:
    background_jobs = BackgroundJobs()
    run = background_jobs.ask(Lane.RUNS, "run", steps(10_000_000), LATER)
    waits = background_jobs.ask(Lane.RUNS, "another", steps(10_000_000), LATER)
    while not run.steps:
        time.sleep(0.001)
    started = time.monotonic()
    assert background_jobs.close(2.0)
    assert time.monotonic() - started < 1.0
    assert isinstance(run.error, Interrupted) and not waits.done


class Broken(Role):
    """A role whose machine turns out to be broken while it trains."""

    name = "broken"

    def doing(self) -> list[str]:
        return []

    def look(self) -> Progress:
        run = self.context.background_jobs.ask(Lane.RUNS, "run", steps(10**9), SOON)
        if run.steps:
            raise MachineError("this process does not round to nearest")
        return Progress(state="trains")


def test_a_role_that_ends_by_an_error_leaves_no_work_behind(background_jobs: BackgroundJobs) -> None:
    """A longer process that runs a role would be left with a training that nobody waits for."""
    queue = SimpleNamespace(look=lambda: None, flush=lambda: False, reached_limit=lambda: None, is_busy=False)
    contract = SimpleNamespace(node=SimpleNamespace(stop=None))
    context = SimpleNamespace(
        contract=contract,
        queue=queue,
        background_jobs=background_jobs,
        notify=lambda notice: None,
        on_look=lambda progress, outage: None,
        clock=time.monotonic,
    )
    with pytest.raises(MachineError):
        Broken(cast(RoleContext, context)).run(poll=0.001)
    assert background_jobs.close(0.0), "its run has ended"


# The order of long work.


def in_time(priorities: dict[str, Priority], done: list[str]) -> set[str]:
    """Jobs that are done by their deadlines, if they are worked on in this order from instant 0 on."""
    clock, found = 0.0, set()
    for key in done:
        clock += priorities[key].seconds
        if clock <= priorities[key].deadline:
            found.add(key)
    return found


def test_what_a_bond_hangs_on_goes_before_what_only_brings_something() -> None:
    priorities = {
        "bonded": Priority(deadline=100, stake=1, seconds=80, bonded=True),
        "reward": Priority(deadline=90, stake=100 * ETHER, seconds=80),
    }
    assert order(priorities, 0)[0] == "bonded"


def test_work_of_unknown_length_never_makes_others_late() -> None:
    priorities = {"unknown": Priority(deadline=50, stake=1), "known": Priority(deadline=60, stake=5, seconds=60)}
    assert order(priorities, 0) == ["unknown", "known"]


PRIORITIES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Priority, deadline=st.integers(0, 30), stake=st.integers(0, 9), seconds=st.integers(0, 12), bonded=st.booleans()
    ),
)


@given(PRIORITIES)
def test_everything_is_ordered_once_and_all_are_in_time_where_that_is_possible(priorities: dict[str, Priority]) -> None:
    found = order(priorities, 0)
    assert sorted(found) == sorted(priorities)
    best = max((len(in_time(priorities, list(way))) for way in permutations(priorities)), default=0)
    if best == len(priorities):
        assert len(in_time(priorities, found)) == best
