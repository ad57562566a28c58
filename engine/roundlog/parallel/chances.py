"""Samples of the intervals of a run, and the chance that a sample misses what is wrong."""

from __future__ import annotations

import math
import random
from math import prod

from roundlog.parallel.listing import Listing
from roundlog.parallel.plan import units


def draw(listing: Listing, share: float) -> frozenset[int]:
    """Intervals that make up at least this share (0 to 1) of a run, at least one: whole segments between published
    states, drawn by the random numbers of the operating system."""
    wanted = max(1, math.ceil(share * len(listing.roots)))
    segments = units(listing)
    random.SystemRandom().shuffle(segments)
    found: set[int] = set()
    for segment in segments:
        if len(found) >= wanted:
            break
        found.update(range(segment.first, segment.stop))
    return frozenset(found)


def unnoticed(count: int, drawn: int, wrong: int) -> float:
    """The probability that of `count` parts, `drawn` of which are drawn at random, none of `wrong` wrong ones is."""
    return prod(max(count - drawn - k, 0) / (count - k) for k in range(min(wrong, count)))
