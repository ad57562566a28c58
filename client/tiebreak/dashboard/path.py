"""The path of a game, from the checkpoints down to one number, as geometry for a picture and as words.

Each level is a ruler over all its leaves. Below it stands the search: a row for every move, in which the part that was
gone into is marked, and everything left of it, which both sides agree on. The leaf that was found opens into the
ruler of the next level.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tiebreak.contract.enums import Level, Phase
from tiebreak.contract.structs import GameView, JobView, LevelView
from tiebreak.dashboard.showing import LEVELS, Names, name_words
from tiebreak.strategy import stride

WIDTH = 1000.0
"""Units of the picture's width, which is stretched to whatever room there is."""

LEAST = 6.0
"""Units of the narrowest mark."""

_RULER = 14.0
_ROWS = 42.0
"""Pixels of a ruler's height, and of all rows of a search together."""

_MOST_ROW = 6.0
_FUNNEL = 22.0
_TICKS = 64


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the picture. `kind`: whole, agreed, found, place, tick or split."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class LevelPicture:
    """One level of the path. `count`: number of its leaves, in words; `found`: the leaf that was found, or the range
    that is left; `funnel`: points of the polygon into the next level, empty for the last."""

    title: str
    count: str
    found: str
    detail: str
    done: bool
    boxes: list[Box]
    height: float
    funnel: str


def draw_levels(game: GameView, job: JobView, names: Names) -> list[LevelPicture]:
    """Return the levels that a game has reached, from the top."""
    found = []
    for place, level in enumerate(game.levels):
        is_last = place == len(game.levels) - 1
        height = left_to_search(game) if is_last else 0
        found.append(_draw_level(game, job, names, level, height, leads_on=not is_last))
    return found


def left_to_search(game: GameView) -> int:
    """Return the height of the node that the search of the present level has reached; 0 once a leaf is found."""
    current = game.current
    if game.phase is Phase.QUEUED or (current.level is Level.PARTIAL and bytes(32) in current.roots):
        return depth(current.leaf_count)
    return int(game.search.height)


def depth(leaves: int) -> int:
    """Return the depth of a tree: ceil(log2(leaves)), 0 for a single leaf."""
    return max(0, leaves - 1).bit_length()


def half_of(leaves: int, states: int) -> int:
    """Return the leaves of the operators' half at level OPERATOR, whose tree has these leaves in all."""
    return max(1, leaves - states)


def operator_words(level: LevelView, job: JobView, names: Names) -> tuple[str, str]:
    """Return the operator or slot that a level has found, and its name, if that is known."""
    half = half_of(level.leaf_count, job.spec.training.state_count)
    if level.index >= half:
        return f"state slot {level.index - half:,}", names.slot(level.index - half)
    return f"operator {level.index:,}", names.operator(level.index)


def first_step(game: GameView, job: JobView) -> int:
    """Return the first step of the disputed interval, counted from 0."""
    return int(game.levels[0].index) * job.spec.training.interval


def step_of(game: GameView, job: JobView) -> int | None:
    """Return the disputed step, counted from 0; None while it is searched for."""
    if len(game.levels) < 2 or (len(game.levels) == 2 and left_to_search(game)):
        return None
    return first_step(game, job) + int(game.levels[1].index)


def _draw_level(
    game: GameView, job: JobView, names: Names, level: LevelView, height: int, *, leads_on: bool
) -> LevelPicture:
    unit, title = LEVELS.get(level.level, (name_words(level.level), name_words(level.level)))
    leaves = max(1, level.leaf_count)
    first = min(level.index, leaves - 1)
    last = min(first + (1 << min(height, 64)), leaves) - 1
    boxes, tall = _search(leaves, first, height)
    count = f"{leaves:,}"
    if level.level is Level.OPERATOR:
        spec = job.spec.training
        half = half_of(leaves, spec.state_count)
        boxes.append(Box(half / leaves * WIDTH, -2, 0, _RULER + 4, "split"))
        count = f"{spec.operator_count:,}, and {spec.state_count:,} tensors of the state after it"
    funnel = ""
    if leads_on:
        left, right = _extent(leaves, first, last)
        funnel = f"{left:.1f},{tall:.1f} {right:.1f},{tall:.1f} {WIDTH:.0f},{tall + _FUNNEL:.1f} 0,{tall + _FUNNEL:.1f}"
        tall += _FUNNEL
    if height:
        said = f"{unit}s {first:,} to {last:,}" if last > first else f"{unit} {first:,}"
        is_whole = last - first + 1 == leaves
        detail = "nothing is ruled out yet" if is_whole else "the first difference is among these"
    else:
        said, detail = _leaf(game, job, names, level, unit)
    return LevelPicture(title, count, said, detail, not height, boxes, tall, funnel)


def _leaf(game: GameView, job: JobView, names: Names, level: LevelView, unit: str) -> tuple[str, str]:
    spec, index = job.spec.training, level.index
    match level.level:
        case Level.CHECKPOINT:
            first = index * spec.interval
            return (
                f"checkpoint {index:,}",
                f"the first that differs: after steps {first:,} to {first + spec.interval - 1:,}",
            )
        case Level.STEP:
            return f"step {first_step(game, job) + index:,}", "the first whose state differs"
        case Level.OPERATOR:
            found, name = operator_words(level, job, names)
            is_slot = index >= half_of(level.leaf_count, spec.state_count)
            differs = "the operators agree; what is stored differs" if is_slot else "the first whose output differs"
            return found, name or differs
        case Level.CHUNK:
            width = max(1, game.operator.width)
            each = spec.chunk_size // width
            end = min((index + 1) * each, game.operator.elements)
            return f"chunk {index:,}", f"elements {index * each:,} to {max(index * each, end - 1):,} of its output"
    return f"{unit} {index:,}", "the first whose running result differs"


def _search(leaves: int, first: int, height: int) -> tuple[list[Box], float]:
    """Return the ruler and the rows of the search, and their height."""
    boxes = [Box(0, 0, WIDTH, _RULER, "whole")]
    if first:
        boxes.append(Box(0, 0, first / leaves * WIDTH, _RULER, "agreed"))
    left, right = _extent(leaves, first, min(first + (1 << min(height, 64)), leaves) - 1)
    boxes.append(Box(left, 0, right - left, _RULER, "place" if height else "found"))
    if leaves <= _TICKS:
        boxes += [Box(leaf / leaves * WIDTH, 0, 0, _RULER, "tick") for leaf in range(1, leaves)]
    places = [depth(leaves)]
    while places[-1] > height:
        places.append(places[-1] - stride(places[-1]))
    if len(places) < 2:
        return boxes, _RULER
    row = min(_MOST_ROW, _ROWS / (len(places) - 1))
    y = _RULER + 3
    for above, at in pairwise(places):
        parent, start = first >> above << above, first >> at << at
        end = min(start + (1 << at), leaves) - 1
        if start > parent:
            boxes.append(Box(parent / leaves * WIDTH, y, (start - parent) / leaves * WIDTH, row - 1, "agreed"))
        left, right = _extent(leaves, start, end)
        boxes.append(Box(left, y, right - left, row - 1, "place" if at > 0 else "found"))
        y += row
    return boxes, y


def _extent(leaves: int, first: int, last: int) -> tuple[float, float]:
    """Return both ends of a range of leaves on the ruler, at least `LEAST` apart."""
    left, right = first / leaves * WIDTH, (last + 1) / leaves * WIDTH
    if right - left < LEAST:
        middle = min(max((left + right) / 2, LEAST / 2), WIDTH - LEAST / 2)
        return middle - LEAST / 2, middle + LEAST / 2
    return left, right
