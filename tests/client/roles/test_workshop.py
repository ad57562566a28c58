"""Long work beside the games: one errand a key, runs that give way, and an end within a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from roundlog.arithmetic import MachineError
from tiebreak.roles.background_jobs import Duty, Errand, Inline, Interrupted, Lane, Threads
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Progress, ignore
from tiebreak.roles.role import Role

ETHER = 10**18
SOON, LATER = Duty(deadline=100, stake=ETHER), Duty(deadline=1000, stake=ETHER)
PATIENCE = 10.0


@pytest.fixture
def workshop() -> Iterator[Threads]:
    found = Threads(now=lambda: 0.0)
    yield found
    assert found.close(PATIENCE)


def steps(total: int, seconds: float = 10.0, gate: threading.Event | None = None) -> Callable[[Errand[int]], int]:
    """A run that says that each of its steps has taken so long, and that waits for the gate at the first one."""
    done = [0]

    def work(errand: Errand[int]) -> int:
        while done[0] < total:
            if gate is not None:
                gate.wait(PATIENCE)
            time.sleep(0.001)
            done[0] += 1
            errand.taken(done[0] - 1, total, seconds, may_pause=True)
        return done[0]

    return work


def test_a_look_never_waits_for_work(workshop: Threads) -> None:
    gate = threading.Event()
    errand = workshop.ask(Lane.RUNS, "run", steps(3, gate=gate), SOON)
    assert not errand.done
    assert workshop.ask(Lane.RUNS, "run", steps(9), SOON) is errand
    gate.set()
    assert errand.wait(PATIENCE) and errand.result() == 3


def test_what_fails_says_so_when_it_is_asked(workshop: Threads) -> None:
    def fails(errand: Errand[int]) -> int:
        raise OSError("the disk is full")

    errand = workshop.ask(Lane.FILES, "files", fails, SOON)
    assert errand.wait(PATIENCE) and isinstance(errand.error, OSError)
    with pytest.raises(OSError, match="disk is full"):
        errand.result()
    workshop.forget("files")
    again = workshop.ask(Lane.FILES, "files", steps(1), SOON)
    assert again is not errand and again.wait(PATIENCE) and again.result() == 1


def test_a_junk_run_gives_way_and_is_continued(workshop: Threads) -> None:
    gate = threading.Event()
    junk = workshop.ask(Lane.RUNS, "junk", steps(400, 1.0, gate), Duty(deadline=500, stake=1))
    gate.set()
    while junk.steps < 2:
        time.sleep(0.001)
    real = workshop.ask(Lane.RUNS, "real", steps(20, 10.0), Duty(deadline=300, stake=ETHER))
    assert real.wait(PATIENCE)
    # Until its own length was known, the real one went by its deadline, which is the earlier one.
    assert not junk.done
    assert junk.wait(PATIENCE) and junk.result() == 400


def test_a_run_stands_while_a_game_needs_the_machine(workshop: Threads) -> None:
    gate, running = threading.Event(), threading.Event()

    def replay(errand: Errand[int]) -> int:
        running.set()
        gate.wait(PATIENCE)
        return 1

    run = workshop.ask(Lane.RUNS, "run", steps(10_000), LATER)
    game = workshop.ask(Lane.GAMES, "game", replay, SOON)
    assert running.wait(PATIENCE)
    time.sleep(0.02)
    stood = run.steps
    time.sleep(0.05)
    assert run.steps == stood
    gate.set()
    assert game.wait(PATIENCE)
    while run.steps == stood:
        time.sleep(0.001)
    workshop.forget("run")


def test_slow_files_of_many_jobs_leave_room_for_games_and_runs(workshop: Threads) -> None:
    gate = threading.Event()
    slow = [workshop.ask(Lane.FILES, i, lambda errand: gate.wait(PATIENCE), LATER) for i in range(30)]
    assert workshop.ask(Lane.GAMES, "game", steps(1), SOON).wait(PATIENCE)
    assert workshop.ask(Lane.RUNS, "run", steps(1), SOON).wait(PATIENCE)
    assert not any(errand.done for errand in slow)
    gate.set()


def test_content_that_drips_holds_up_nothing_that_a_bond_is_lost_without(workshop: Threads) -> None:
    """Jobs whose content comes drop by drop would otherwise keep a sealed audit from being opened."""
    gate = threading.Event()
    drips = [workshop.ask(Lane.FILES, i, lambda errand: gate.wait(PATIENCE), SOON) for i in range(30)]
    opening = Duty(deadline=1000, stake=ETHER, bonded=True)
    assert workshop.ask(Lane.FILES, "publishing", steps(1), opening).wait(PATIENCE)
    waits = workshop.ask(Lane.FILES, "fetching", steps(1), LATER)
    assert not waits.done
    assert workshop.ask(Lane.FILES, "fetching", steps(1), opening) is waits, "a bond was paid meanwhile"
    assert waits.wait(PATIENCE) and not any(errand.done for errand in drips)
    gate.set()


def test_closing_stops_everything_within_a_moment() -> None:
    workshop = Threads()
    run = workshop.ask(Lane.RUNS, "run", steps(10_000_000), LATER)
    waits = workshop.ask(Lane.RUNS, "another", steps(10_000_000), LATER)
    while not run.steps:
        time.sleep(0.001)
    started = time.monotonic()
    assert workshop.close(2.0)
    assert time.monotonic() - started < 1.0
    assert isinstance(run.error, Interrupted) and not waits.done


class Broken(Role):
    """A role whose machine turns out to be broken while it trains."""

    name = "broken"

    def doing(self) -> list[str]:
        return []

    def look(self) -> Progress:
        run = self.context.workshop.ask(Lane.RUNS, "run", steps(10**9), SOON)
        if run.steps:
            raise MachineError("this process does not round to nearest")
        return Progress(state="trains")


def test_a_role_that_ends_by_an_error_leaves_no_work_behind(workshop: Threads) -> None:
    """A longer process that runs a role would be left with a training that nobody waits for."""
    desk = SimpleNamespace(look=lambda: None, flush=lambda: False, held=lambda: None, is_busy=False)
    contract = SimpleNamespace(node=SimpleNamespace(stop=None))
    context = SimpleNamespace(
        contract=contract, desk=desk, workshop=workshop, notify=ignore, on_look=ignore, clock=time.monotonic
    )
    with pytest.raises(MachineError):
        Broken(cast(RoleContext, context)).run(poll=0.001)
    assert workshop.close(0.0), "its run has ended"


def test_inline_work_is_done_when_it_was_asked_for() -> None:
    workshop = Inline()
    errand = workshop.ask(Lane.RUNS, "run", steps(3), SOON)
    assert errand.done and errand.result() == 3
    workshop.forget("run")
    assert workshop.ask(Lane.RUNS, "run", steps(2), SOON).result() == 2
