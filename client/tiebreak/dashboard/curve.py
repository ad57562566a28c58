"""The loss of a run over its steps, as a picture of bounded size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

POINTS = 240
"""Points of a curve; of more steps, the mean of as many neighbours as it takes is drawn."""

WIDTH, HEIGHT = 1000.0, 220.0
_MOST_ENTRIES = 200_000
"""Lines of a history that are read, from its beginning."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve, drawn from left to right, with the numbers that belong to its ends."""

    points: str
    steps: int
    first: float
    last: float
    lowest: float
    highest: float
    total: int
    """Steps of the whole run, which the width stands for."""


def read_curve(run_dir: Path, total: int) -> Curve | None:
    """The losses in a run's history, of a run of `total` steps; None if there are none, or the file is damaged."""
    from roundlog.storage import StorageError
    from roundlog.training import read_history

    try:
        entries = islice(read_history(run_dir), _MOST_ENTRIES)
        losses = [(one.step, one.loss) for one in entries if one.loss is not None and math.isfinite(one.loss)]
    except StorageError:
        return None
    return curve(losses, total)


def curve(losses: list[tuple[int, float]], total: int) -> Curve | None:
    """The curve through (step, loss); None if there are none."""
    if not losses:
        return None
    every = -(-len(losses) // POINTS)
    groups = [losses[i : i + every] for i in range(0, len(losses), every)]
    means = [(sum(s for s, _ in group) / len(group), sum(x for _, x in group) / len(group)) for group in groups]
    low, high = min(loss for _, loss in means), max(loss for _, loss in means)
    width, height = max(1, total - 1, losses[-1][0]), (high - low) or 1.0
    points = " ".join(
        f"{step / width * WIDTH:.1f},{4 + (HEIGHT - 8) * (1 - (loss - low) / height):.1f}" for step, loss in means
    )
    return Curve(
        points=points,
        steps=len(losses),
        first=losses[0][1],
        last=losses[-1][1],
        lowest=min(loss for _, loss in losses),
        highest=max(loss for _, loss in losses),
        total=total,
    )
