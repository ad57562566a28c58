"""A party's evidence: the trees that it believes in, computed by the engine as deep as a dispute needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from roundlog.batches import BatchSource
from roundlog.commitments import state_root
from roundlog.executor import NonFiniteError
from roundlog.job import Job
from roundlog.program import ProgramError
from roundlog.replay import replay, replay_state
from roundlog.run import Run

from tiebreak.game import Leaves, Place

NO_STATE = bytes(32)
"""Stands for the state after a step that cannot be executed (a value became infinite or NaN, or an index left its
table), and for all that would follow: so that a claim about such a run can be disputed like any other. No state has
this root, unless SHA-256 is broken."""

RUN_ENDS = (NonFiniteError, ProgramError)
"""What the engine raises when a step cannot be executed."""


class Evidence:
    """What a party knows about a run that it has executed in `run_dir`.

    `state_roots`: one an interval, `NO_STATE` from the interval on in which the run ends early. `batches` as in the
    run: None for what the spec prescribes; `micro_batches`: into how many parts they are cut, to the same bits."""

    def __init__(
        self,
        job: Job,
        run_dir: Path,
        state_roots: Sequence[bytes],
        *,
        batches: BatchSource | None = None,
        device: torch.device | str = "cpu",
        micro_batches: int = 1,
    ) -> None:
        self.job = job
        self.run_dir = run_dir
        self._batches = batches
        self._device = device
        self._micro_batches = micro_batches
        self._known: dict[Place, Leaves] = {(): Leaves(state_roots)}

    @classmethod
    def recall(
        cls,
        job: Job,
        run_dir: Path,
        *,
        batches: BatchSource | None = None,
        device: torch.device | str = "cpu",
        micro_batches: int = 1,
    ) -> Evidence | None:
        """The evidence of a run that was executed to its end; None if it was not."""
        roots = Run(job, run_dir, batches=batches).recorded_roots()
        if len(roots) < job.spec.intervals:
            return None
        return cls(job, run_dir, roots, batches=batches, device=device, micro_batches=micro_batches)

    @property
    def claim(self) -> Leaves:
        """The tree over all checkpoints."""
        return self._known[()]

    def leaves(self, place: Place) -> Leaves:
        """The tree at a place of the dispute, executed again if need be. Raises KeyError below the last level."""
        if place not in self._known:
            if len(place) != 1:
                raise KeyError(place)
            self._known[place] = Leaves(self._step_roots(place[0]))
        return self._known[place]

    def state_before(self, step: int) -> list[torch.Tensor]:
        """The state before a step, executed again from the newest kept checkpoint. Raises one of RUN_ENDS."""
        return replay_state(
            self.job,
            self.run_dir,
            step,
            batches=self._batches,
            device=self._device,
            micro_batches=self._micro_batches,
        )

    def _step_roots(self, interval: int) -> list[bytes]:
        """The state roots after every step of an interval."""
        run = Run(
            self.job,
            self.run_dir,
            batches=self._batches,
            device=self._device,
            micro_batches=self._micro_batches,
        )
        size = self.job.spec.interval
        wanted = range(interval * size, (interval + 1) * size)
        done, states = run.newest(interval)
        roots: list[bytes] = []
        try:
            for step, after in replay(run, done * size, states):
                if step in wanted:
                    roots.append(state_root(after))
                if step + 1 == wanted.stop:
                    break
        except RUN_ENDS:
            pass
        return roots + [NO_STATE] * (size - len(roots))


def padded(roots: Sequence[bytes], job: Job) -> list[bytes]:
    """The state roots of a run that ended early, as evidence has them."""
    return [*roots, *[NO_STATE] * (job.spec.intervals - len(roots))]
