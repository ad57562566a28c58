"""How much thinking time a party needs in a game: what trees, blocks and this machine make of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from roundlog.adjudication.adjudicate import segments
from roundlog.commitments import depth_of
from roundlog.descriptors import describe
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.dispute.trace import half_of
from roundlog.program import Program
from roundlog.spec import TrainingSpec
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.policies import alone
from roundlog.training.run import Run

BLOCKS_A_MOVE = 2
"""One in which the other side's move is seen, one that takes the answer."""

RESERVE = 3
"""Over what was measured: blocks come late, fees rise, other programs want the machine as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What was measured. Seconds."""

    block: float
    """Between two blocks."""
    step: float
    """To execute one training step of this job here."""


def step_seconds(job: Job) -> float:
    """What the first step of a job takes here; the quicker of two executions, because the first one compiles."""
    seen: list[float] = []
    with tempfile.TemporaryDirectory(prefix="tiebreak-step-") as name:
        run = Run(
            job, Path(name), RunOptions(on_step=lambda event: seen.append(event.seconds), continue_after_stop=True)
        )
        for _ in range(2):
            run.step(0, list(job.initial.values()), alone(job.spec))
    return min(seen)


def most_moves(spec: TrainingSpec, chunks: int, segments: int) -> int:
    """Moves of one side in the longest game about such a spec: half of every search, rounded up, and what it opens,
    posts and proves in between. chunks, segments: of the largest output, and of the longest sum."""
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


def least_clock(program: Program, spec: TrainingSpec, pace: Pace, games: int = 1) -> int:
    """Seconds of thinking time with which a party that is right cannot lose by the clock.

    Each side's moves wait for blocks; and each of `games` games that run at once asks for an interval and a step of it
    to be executed again: the interval for its roots, the part before the step for the state there, and the step for
    its trace and once more for the output of one operator."""
    moves = most_moves(spec, *largest_trees(program))
    executions = games * (2 * spec.interval + 2) * pace.step
    return int(RESERVE * (moves * BLOCKS_A_MOVE * pace.block + executions)) + 1
