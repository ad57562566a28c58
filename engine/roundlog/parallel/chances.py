"""Samples of the intervals of a run, and the chance that a sample misses what is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from math import prod

from roundlog.parallel.listing import Listing
from roundlog.parallel.plan import units


def draw_sample(listing: Listing, share: float) -> frozenset[int]:
    """Intervals of at least this share (0 to 1) of the segments between published states, at least one, drawn by the
    random numbers of the operating system.

    Every segment is drawn with the same probability, however long: where states are published is the trainer's choice,
    and a number of segments that depended on their lengths would leave short ones out more often than is told."""
    segments = units(listing)
    chosen = random.SystemRandom().sample(segments, max(1, math.ceil(share * len(segments))))
    return frozenset(interval for segment in chosen for interval in range(segment.first, segment.stop))


def unnoticed(count: int, drawn: int, wrong: int) -> float:
    """The probability that of `count` parts, `drawn` of which are drawn at random, none of `wrong` wrong ones is."""
    return prod(max(count - drawn - k, 0) / (count - k) for k in range(min(wrong, count)))


def fewest(sizes: Sequence[int], wrong: int) -> int:
    """The fewest parts, of so many intervals each, in which `wrong` intervals can lie; all parts if they cannot."""
    held = accumulate(sorted(sizes, reverse=True))
    return next((count for count, room in enumerate(held, 1) if room >= wrong), len(sizes))
