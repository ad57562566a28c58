"""The state machine of `hypothesis` behind every campaign: faults strike one after the other, then it is calm until the
round has ended, and the round is judged."""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

RANDOM = st.randoms(use_true_random=True)
"""A generator from one drawn seed: of a failing round hypothesis leaves faults away, not numbers inside of them."""


class Round:
    """What a campaign plays. `draw`: who takes part, and how. `room`: an empty directory."""

    FAULTS: ClassVar[tuple[str, ...]]
    """What may go wrong; a fault that is named twice comes twice as often."""
    STRIKES: ClassVar[int]
    """Faults of a round."""
    IS_EXACT: ClassVar[bool] = True
    """Whether a round that is played again takes the same course."""

    def __init__(self, draw: Random, room: Path) -> None:
        self.draw, self.room = draw, room
        self.told: list[str] = []
        self.counts: Counter[str] = Counter(rounds=1)
        self.is_over = False

    def strike(self, fault: str, draw: Random) -> None:
        """Let a fault happen. Raises AssertionError where a promise is broken."""
        raise NotImplementedError

    def end(self) -> list[str]:
        """Play the round to its end, in calm, and return the violations."""
        return []

    def close(self) -> None:
        """End what the round has started."""


_BATCH = 10
"""Rounds of one run of hypothesis, which from there on mostly plays parts of earlier rounds again."""

Hear = Callable[[Round, list[str]], None]


def require_none(played: Round, violations: list[str]) -> None:
    assert not violations, "\n".join(violations)


@contextmanager
def _gc_untimed() -> Iterator[None]:
    """Hypothesis times collections of garbage, and capture refuses steps in which somebody asks for the time."""
    kept, gc.callbacks[:] = gc.callbacks[:], []
    try:
        yield
    finally:
        gc.callbacks[:] = kept


class _TimeIsUp(BaseException):
    """No further round is to begin."""


def play(
    make: type[Round],
    rounds: int,
    *,
    seed: int = 0,
    hear: Hear = require_none,
    until: float = math.inf,
    database: Path | None = None,
) -> None:
    """Play rounds that hypothesis draws by the seed, none of which begins after `until`. A round that raises, or whose
    `hear` does, is shrunk, shown step by step, and kept in the database, and played first the next time."""

    class Rounds(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            if time.monotonic() > until:
                raise _TimeIsUp
            self.directory = tempfile.TemporaryDirectory(prefix="round-", ignore_cleanup_errors=True)
            self.round: Round | None = None
            self.is_sound = False

        @initialize(draw=RANDOM)
        def begin(self, draw: Random) -> None:
            with _gc_untimed():
                self.round = make(draw, Path(self.directory.name))
            self.is_sound = True

        @rule(fault=st.sampled_from(make.FAULTS), draw=RANDOM)
        def strike(self, fault: str, draw: Random) -> None:
            assert self.round is not None
            self.is_sound = False
            try:
                if not self.round.is_over:
                    with _gc_untimed():
                        self.round.strike(fault, draw)
            except Exception as error:
                error.add_note("; ".join(self.round.told))
                raise
            self.is_sound = True

        def teardown(self) -> None:
            try:
                if self.round is not None and self.is_sound:
                    with _gc_untimed():
                        violations = self.round.end()
                    hear(self.round, violations)
            finally:
                if self.round is not None:
                    self.round.close()
                self.directory.cleanup()

    Rounds.__name__ = Rounds.__qualname__ = make.__name__  # the name of its rounds in the database
    chosen = settings(
        stateful_step_count=make.STRIKES,
        deadline=None,
        database=None if database is None else DirectoryBasedExampleDatabase(database),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if make.IS_EXACT else [])],
    )
    with suppress(_TimeIsUp):
        for begun in range(0, rounds, _BATCH):
            seeded = hypothesis.seed(seed * 1_000_003 + begun)(Rounds)
            run_state_machine_as_test(seeded, settings=settings(chosen, max_examples=min(_BATCH, rounds - begun)))
