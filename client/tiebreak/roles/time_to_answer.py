"""Thinking time that a party needs in a game, computed from the trees, the time of a block and the speed of this
machine."""

from __future__ import annotations

from dataclasses import dataclass

from roundlog.adjudication import segments
from roundlog.commitments import depth_of
from roundlog.descriptors import REDUCTIONS, describe
from roundlog.dispute import half_of
from roundlog.program import Program
from roundlog.spec import TrainingSpec

BLOCKS_A_MOVE = 2
"""Blocks for one move: one shows the opponent's move, one takes the answer."""

RESERVE = 3
"""Safety factor over measured times: blocks come late, fees rise, and other programs use the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPace:
    """Measured times, in seconds."""

    block: float
    """Time between two blocks."""
    step: float
    """Time of one training step of the job here."""


def most_moves(spec: TrainingSpec, chunks: int, segments: int) -> int:
    """Most moves of one side in a game under a spec: half of every search, rounded up, and its openings, posts and
    proofs. chunks: of the largest output. segments: of the longest sum."""
    trace = depth_of(2 * half_of(spec.operator_count, spec.state_count))
    depths = (depth_of(spec.intervals), depth_of(spec.interval), trace, depth_of(chunks), depth_of(segments))
    # A leaf is opened below each level but the last; then a chunk is posted, an element named, a segment proven.
    return sum((depth + 1) // 2 for depth in depths) + len(depths) - 1 + 2


def largest_trees(program: Program) -> tuple[int, int]:
    """(chunks of the largest output, segments of the longest sum)."""
    chunks, longest = 1, 1
    for q, node in enumerate(program.nodes):
        descriptor = describe(program, q)
        chunks = max(chunks, -(-node.type.nbytes // 1024))
        if descriptor.family in REDUCTIONS:
            longest = max(longest, len(segments(descriptor)))
    return chunks, longest


def least_clock(
    program: Program, spec: TrainingSpec, pace: MeasuredPace, games: int = 1, intervals_apart: int = 1
) -> int:
    """Least seconds of thinking time with which a party that is right cannot lose by the clock. intervals_apart: most
    intervals between two states that the party keeps.

    Each move waits for blocks. Each of `games` games that run at once needs executions from the state that is kept
    before it: up to the end of an interval for its roots, up to the disputed step for the state there, and the step
    itself for its trace and once more for the output of one operator."""
    moves = most_moves(spec, *largest_trees(program))
    executions = games * (2 * spec.interval * min(intervals_apart, spec.intervals) + 2) * pace.step
    return int(RESERVE * (moves * BLOCKS_A_MOVE * pace.block + executions)) + 1
