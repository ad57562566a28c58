"""Logs as a dishonest trainer, or a bad disk, would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from roundlog.log import Decision, Entries, LogReader, LogWriter
from roundlog.number_format import Format
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding import Recorder
from roundlog.rounding.resolve import certify, ends, put
from roundlog.training import trainer
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer, TrainingResult, log_header, log_path

Steps = dict[int, dict[int, Entries]]


class Forger(Recorder):
    """Bends some of the decisions that nobody can check without resolving them, and goes on from the bent values: its
    log is consistent with its claim."""

    def __init__(self, guard: int, rng: np.random.Generator, count: int, chance: float = 0.5) -> None:
        """count: decisions that are bent, at most. chance: that one is, while there are some left."""
        super().__init__(guard)
        self._rng, self._left, self._chance = rng, count, chance

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format
    ) -> tuple[torch.Tensor, bool]:
        rounded = super().round(index, operator, inputs, attributes, format)
        if index not in self.entries:
            return rounded
        marked = certify(operator, inputs, attributes, self.guard, format)[1]
        low, high = ends(marked, format=format)
        two_sided = self.entries[index].decisions != int(Decision.VALUE)
        places = np.flatnonzero((low != high).numpy() & two_sided & (self._rng.random(len(low)) < self._chance))
        places = places[: self._left]
        self._left -= len(places)
        decisions = self.entries[index].decisions.copy()
        decisions[places] ^= 1
        self.entries[index] = Entries(self.entries[index].indices, decisions, self.entries[index].values)
        some = torch.from_numpy(places)
        honest = rounded.reshape(-1)[marked.indices[some]]
        put(rounded, marked.indices[some], torch.where(honest == low[some], high[some], low[some]).numpy())
        return rounded

    @property
    def bent(self) -> bool:
        """Whether it has bent all that it wanted."""
        return not self._left


def train_forging(job: Job, run_dir: Path, rng: np.random.Generator, count: int) -> TrainingResult:
    """A training in which so many decisions are bent, in the states and in the log."""
    forger = Forger(job.spec.log_guard, rng, count)
    honest, trainer.recorder = trainer.recorder, lambda spec: forger
    try:
        result = Trainer(job, run_dir).run()
    finally:
        trainer.recorder = honest
    assert forger.bent, "the job has too few decisions"
    return result


def rewrite(job: Job, source: Path, target: Path, change: Callable[[Steps], None]) -> Path:
    """A copy of a directory of logs, after `change` of what all its steps say."""
    target.mkdir()
    sizes = [node.type.numel for node in job.program.nodes]
    steps: Steps = {}
    for i in range(job.spec.intervals):
        with LogReader(log_path(source, i), log_header(job, i), sizes) as reader:
            for step in range(i * job.spec.interval, (i + 1) * job.spec.interval):
                steps[step] = dict(reader.step(step))
    change(steps)
    for i in range(job.spec.intervals):
        with LogWriter(log_path(target, i), log_header(job, i)) as writer:
            for step in range(i * job.spec.interval, (i + 1) * job.spec.interval):
                writer.append(step, steps[step])
    return target


def bent(steps: Steps, rng: np.random.Generator, count: int) -> None:
    """So many decisions between up and down turned round; nobody sees from the log alone that they are."""
    for step, operator, place in _drawn(steps, rng, count):
        entries = steps[step][operator]
        decisions = entries.decisions.copy()
        decisions[place] ^= 1
        steps[step][operator] = Entries(entries.indices, decisions, entries.values)


def thinned(steps: Steps, rng: np.random.Generator, count: int) -> None:
    """So many decisions left out."""
    for step, operator, place in _drawn(steps, rng, count):
        entries = steps[step][operator]
        if place >= len(entries.indices) or entries.decisions[place] == int(Decision.VALUE):
            continue
        kept = np.delete(entries.indices, place), np.delete(entries.decisions, place)
        steps[step][operator] = Entries(*kept, entries.values)
        if not len(kept[0]):
            del steps[step][operator]


def _drawn(steps: Steps, rng: np.random.Generator, count: int) -> list[tuple[int, int, int]]:
    """Places of two-sided decisions; of one operator the last ones first, so that they may be deleted in order."""
    places = [
        (step, operator, int(place))
        for step, operators in steps.items()
        for operator, entries in operators.items()
        for place in np.flatnonzero(entries.decisions != int(Decision.VALUE))
    ]
    drawn = rng.choice(len(places), min(count, len(places)), replace=False)
    return sorted((places[i] for i in drawn), reverse=True)


def cut(path: Path, rng: np.random.Generator) -> None:
    """A file that ends too early."""
    path.write_bytes(path.read_bytes()[: rng.integers(path.stat().st_size)])


def flipped(path: Path, rng: np.random.Generator) -> None:
    """A file with one bit that is another."""
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
