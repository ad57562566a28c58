"""Peak memory of a step in micro-batches, known before anything is run."""

from __future__ import annotations

from dataclasses import replace

from roundlog.execution import fusion
from roundlog.execution.microbatch.analysis import Analysis, analyse
from roundlog.execution.microbatch.executor import micro_batches_of
from roundlog.execution.microbatch.stages import Part, cut, part_of
from roundlog.execution.microbatch.summing import bytes_in_parts
from roundlog.program import Node, Program


def peak_bytes(program: Program, micro_batches: int) -> int:
    """Peak memory in bytes without the state, as `roundlog.execution.fusion.peak_bytes`: an upper bound. Raises
    ProgramError if there are fewer samples than micro-batches."""
    samples = micro_batches_of(program, micro_batches)
    if len(samples) == 1:
        return fusion.peak_bytes(program)
    analysis = analyse(program, micro_batches)
    how = cut(program, analysis)
    nodes = program.nodes
    largest = max(last - first for first, last in samples)
    # A value that a stage passes on stays in memory until its last reader has run.
    held = [0] * (len(how.members) + 1)
    for value, last in how.kept_until.items():
        held[2 * analysis.whole_from(value)] += nodes[value].type.nbytes
        held[last + 1] -= nodes[value].type.nbytes
    peak = alive = 0
    for time in range(len(how.members)):
        alive += held[time]
        size = largest if time % 2 else analysis.batch
        part = part_of(program, analysis, how, time, size)
        summed = _summed(program, analysis, part) if time % 2 == 0 else {}
        peak = max(peak, alive + _peak_of(part, summed, time == len(how.members) - 1))
    return peak


def _summed(program: Program, analysis: Analysis, part: Part) -> dict[int, int]:
    """Bytes needed by the sums of a stage that are taken part by part, by their place in its program."""
    found = {}
    for place, node in enumerate(part.program.nodes):
        index = part.original[place]
        if node.op == "data" and index in analysis.parts:
            whole = program.nodes[index]
            inputs = [program.nodes[value].type for value in whole.inputs]
            found[place] = bytes_in_parts(whole, inputs, analysis.needs[index], analysis.parts[index])
    return found


def _peak_of(part: Part, summed: dict[int, int], last: bool) -> int:
    program = part.program
    # A slice is reordered while it is written or read, so one slice at a time is in memory twice.
    moved = [node for place, node in enumerate(program.nodes) if node.op in ("data", "store") and place not in summed]
    twice = max((node.type.nbytes for node in moved), default=0)
    if not last:
        # Values that are passed on leave memory at once.
        nodes = tuple(_gone(node) if node.op == "store" else node for node in program.nodes)
        program = replace(program, nodes=nodes)
    return fusion.peak_bytes(program, summed) + twice


def _gone(node: Node) -> Node:
    return Node("reshape", node.inputs, {"shape": node.type.shape}, node.type, node.source)
