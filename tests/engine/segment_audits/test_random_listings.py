"""Random lists that a trainer shows, one after the other, while workers are slow: roots and states of others, files
that are no states, lists that shrink, grow and change. The verdict is that of the last list, or of a lie that was
shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import Sharing
from roundlog.segment_audits.segment import Listing, SegmentOrder, WorkerAnswer, audit_segment
from roundlog.training.options import RunOptions

from tests.engine.segment_audits.audit_workers import Behaviour, named, source_of
from tests.engine.segment_audits.published_runs import INTERVALS, Liar, Trained


@dataclass
class Slow:
    """Workers whose answers come when the test says so."""

    waiting: list[tuple[Future[Any], Behaviour, SegmentOrder]] = field(default_factory=list)

    def worker(self, behaviour: Behaviour) -> Executor:
        waiting = self.waiting

        class Worker(Executor):
            def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
                future: Future[Any] = Future()
                waiting.append((future, behaviour, args[0]))
                return future

            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

        return Worker()

    def answer(self, draw: Random, share: float) -> None:
        """Some of them answer."""
        chosen = [one for one in self.waiting if draw.random() < share]
        for one in chosen:
            self.waiting.remove(one)
            future, behaviour, order = one
            answer = behaviour(order)
            if answer is None:
                future.set_exception(BrokenExecutor("it was killed"))
            else:
                future.set_result(answer)


def behaviour_of(draw: Random, kind: str) -> Behaviour:
    def lie(order: SegmentOrder) -> WorkerAnswer | None:
        found = audit_segment(order)
        cut = draw.randrange(len(found.roots) + 1)
        return draw.choice(
            [
                replace(found, roots=tuple(draw.randbytes(32) for _ in found.roots)),
                replace(found, roots=found.roots[:cut]),
                replace(found, roots=(*found.roots, draw.randbytes(32))),
                replace(found, roots=(), unusable="it is bad"),
                replace(found, roots=found.roots[:cut], stopped="a NaN"),
            ]
        )

    def die(order: SegmentOrder) -> WorkerAnswer | None:
        return None if draw.random() < 0.3 else audit_segment(order)

    return {"honest": audit_segment, "lies": lie, "dies": die}[kind]


@pytest.fixture(scope="module")
def no_states(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Addresses at which there is no state."""
    room = tmp_path_factory.mktemp("no-states")
    os.mkfifo(room / "pipe")
    (room / "endless").symlink_to("/dev/zero")
    (room / "noise").write_bytes(b"\xff" * 100)
    with (room / "huge").open("wb") as file:
        file.truncate(1 << 40)
    return [str(room), *(str(room / name) for name in ("pipe", "endless", "noise", "huge", "none")), "\x7f", "a" * 200]


@dataclass
class Publishing:
    """A trainer that shows anything for a while, and then what it stays with."""

    trained: Trained
    no_states: list[str]
    draw: Random
    slow: Slow
    directory: Path
    lied: bool = False

    def __post_init__(self) -> None:
        draw, liar = self.draw, Liar(self.trained, self.directory / "liar")
        for _ in range(draw.choice([0, 0, 1])):
            liar.lie(draw.randrange(INTERVALS - 1), consistent=draw.random() < 0.5)
        if draw.random() < 0.2:
            liar.roots[draw.randrange(INTERVALS)] = draw.randbytes(32)
        self.roots, self.states = tuple(liar.roots), self._disturbed(dict(liar.listing().states))
        self.restless, self.shown = draw.randrange(25), 0

    def _disturbed(self, states: dict[int, str]) -> dict[int, str]:
        draw = self.draw
        addresses = [*states.values(), *self.no_states]
        return {
            done: draw.choice(addresses) if draw.random() < 0.3 else address
            for done, address in states.items()
            if draw.random() < 0.8
        }

    def look(self) -> Listing:
        draw = self.draw
        self.slow.answer(draw, draw.choice([0, 0.3, 0.6, 1]) if self.restless else 1)
        if not self.restless:
            return Listing(roots=self.roots, states=self.states)
        self.restless -= 1
        self.shown = max(0, min(INTERVALS, self.shown + draw.choice([-8, -3, -1, 0, 1, 1, 2, 3])))
        roots = list(self.roots[: self.shown])
        if roots and draw.random() < 0.2:
            roots[draw.randrange(self.shown)] = draw.randbytes(32)
            self.lied = True
        states = self._disturbed({done: self.states.get(done, "none") for done in range(1, self.shown + 1)})
        complete = self.shown == INTERVALS and draw.random() < 0.7
        return Listing(roots=tuple(roots), states=states, complete=complete)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "seeds", [range(12), *(pytest.param(range(at, at + 100), marks=pytest.mark.long) for at in range(12, 1012, 100))]
)
def test_random_lists_have_the_verdict_of_what_was_shown(
    seeds: range, trained: Trained, no_states: list[str], tmp_path: Path
) -> None:
    for seed in seeds:
        draw, slow = Random(seed), Slow()
        publishing = Publishing(trained, no_states, draw, slow, tmp_path / f"{seed}")
        kinds = ["honest", *draw.choices(["honest", "lies", "dies"], k=draw.randrange(4))]
        sharing = Sharing(
            make=lambda n, draw=draw, slow=slow, kinds=kinds: slow.worker(
                named(f"{kinds[n]} {n}", behaviour_of(draw, kinds[n]))
            ),
            workers=len(kinds),
            common_disk=True,
            repeat_share=draw.choice([0, 0.3, 1]),
        )
        where = tmp_path / f"{seed}" / "audit"
        source = source_of(trained.directory / "job")
        found = audit_by_segments(trained.job, publishing.look, source, where, sharing, RunOptions(), poll=0.0005)
        if found.wrong is None:
            assert list(publishing.roots) == trained.roots, f"{seed}: a lie is called right"
            assert found.is_whole and found.state_roots == trained.roots, seed
        else:
            assert list(publishing.roots) != trained.roots or publishing.lied, f"{seed}: an honest trainer is accused"
        assert not any("honest" in one for one in found.distrusted), f"{seed}: {found.distrusted}"
