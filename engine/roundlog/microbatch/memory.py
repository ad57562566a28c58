"""What a step in micro-batches needs at its worst moment, known before anything is run."""

from __future__ import annotations

from dataclasses import replace

from roundlog import fusion
from roundlog.microbatch.analysis import analyse
from roundlog.microbatch.executor import micro_batches_of
from roundlog.microbatch.stages import Part, cut, part_of
from roundlog.program import Node, Program


def peak_bytes(program: Program, micro_batches: int) -> int:
    """Bytes beside the state, as `roundlog.fusion.peak_bytes`, an upper bound. Raises ProgramError if there are fewer
    samples than micro-batches."""
    samples = micro_batches_of(program, micro_batches)
    if len(samples) == 1:
        return fusion.peak_bytes(program)
    analysis = analyse(program)
    how = cut(program, analysis)
    nodes = program.nodes
    batch = sum(node.type.nbytes for node in nodes if node.op == "data")
    largest = max(last - first for first, last in samples)
    # What stages pass on is there from its stage until its last reader has run.
    held = [batch] * (len(how.members) + 1)
    for value, last in how.kept_until.items():
        held[2 * analysis.whole_from(value)] += nodes[value].type.nbytes
        held[last + 1] -= nodes[value].type.nbytes
    peak = alive = 0
    for time in range(len(how.members)):
        alive += held[time] - (batch if time else 0)
        size = largest if time % 2 else analysis.batch
        peak = max(peak, alive + _peak_of(part_of(program, analysis, how, time, size), time == len(how.members) - 1))
    return peak


def _peak_of(part: Part, last: bool) -> int:
    program = part.program
    # A slice is put in order while it is written or read: one at a time is there twice.
    twice = max((node.type.nbytes for node in program.nodes if node.op in ("data", "store")), default=0)
    if not last:
        # What is passed on leaves at once.
        nodes = tuple(_gone(node) if node.op == "store" else node for node in program.nodes)
        program = replace(program, nodes=nodes)
    return fusion.peak_bytes(program) + twice


def _gone(node: Node) -> Node:
    return Node("reshape", node.inputs, {"shape": node.type.shape}, node.type, node.source)
