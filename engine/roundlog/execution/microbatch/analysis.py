"""Analysis of a program for micro-batches: the values that can be computed for some samples at a time, and the order of
all values.

A value is *sliced* if it has a layout, and *whole* otherwise. Sliced values are computed in passes over the
micro-batches, whole values in stages between them: stage 0, pass 0, stage 1, pass 1, ..., the last stage. Where a sum
over the batch flows back into the samples (batch norm), the pass of these samples comes after the pass of the summed
values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import gcd

from roundlog.execution.slicing import PARTS, Layout, Needs, Samples, needs, on_axis, parts_of, regrouped
from roundlog.operators import Inexact, OperatorKind, operator
from roundlog.operators.registry import integer
from roundlog.program import Node, Program, TensorType

CHEAP_BYTES = 1 << 20
"""Most bytes of a cheap value, or four times the bytes of the batch if that is more. Cheap values are made from the
batch by movement and exact operators alone, such as the number of targets that count. They are computed for all samples
at once where they are read as a whole, which would cost another pass otherwise."""


ChooseParts = Callable[[Node, list[TensorType], Needs], tuple[Samples, ...] | None]
"""Chooses the samples of every part of a sum whose inputs have these types and layouts; None: it is not cut."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of the analysis: which values are sliced, and when each is computed."""

    batch: int
    """Number of samples to cut, as `samples_of` gives it."""
    layouts: list[Layout | None]
    """Layout of every value; None: whole."""
    needs: list[Needs]
    """Layouts in which every operator reads its inputs; None: as a whole."""
    when: list[int]
    """The pass of a sliced value, the stage of a whole one."""
    cheap: list[bool]
    """Whether a sliced value is computed as a whole in stage 0, too, if an operator reads it as a whole."""
    parts: dict[int, tuple[Samples, ...]]
    """Whole values that are sums over the samples, taken part by part -> the samples of every part. Their `needs` are
    those of one part."""
    last: int
    """The last stage: it stores the state."""

    def whole_from(self, value: int) -> int:
        """The first stage in which the value is available as a whole."""
        if self.layouts[value] is None:
            return self.when[value]
        return 0 if self.cheap[value] else self.when[value] + 1


def samples_of(program: Program) -> int:
    """Number of samples that can be computed one by one. This is the batch size, or the size of the parts into which
    the program itself cuts the batch to accumulate gradients; sample s is then the s-th of every part."""
    fields = {index for index, node in enumerate(program.nodes) if node.op == "data"}
    size = program.batch_size
    for node in program.nodes:
        if node.op == "slice" and node.inputs[0] in fields and node.attributes["dim"] == 0:
            size = gcd(size, integer(node.attributes, "start"), integer(node.attributes, "stop"))
    return size if size > 1 else program.batch_size


def analyse(program: Program, micro_batches: int) -> Analysis:
    """Analyses a checked program with at least two samples for `micro_batches` micro-batches."""
    batch = samples_of(program)
    return analysis_of(program, batch, partial(parts_of, batch=batch, micro_batches=micro_batches))


def analysis_of(program: Program, batch: int, choose: ChooseParts) -> Analysis:
    """Analyses a checked program whose batch has so many samples, at least two. choose: the parts of a sum over the
    samples."""
    layouts, wanted = _layouts(program, batch)
    _slice_what_only_slices_need(program, layouts, wanted)
    cheap = _cheap(program, layouts)
    parts = _parts(program, layouts, wanted, cheap, choose)
    when: list[int] = []
    found = Analysis(batch=batch, layouts=layouts, needs=wanted, when=when, cheap=cheap, parts=parts, last=0)
    for index, node in enumerate(program.nodes):
        waits = [0]
        for value, need in zip(node.inputs, wanted[index], strict=True):
            if index in parts:
                # Sources are there before the step, so their slices can be read at any time.
                waits.append(0 if _is_source(program, value) else when[value] + 1)
            elif need is not None and need == layouts[value]:
                waits.append(when[value])
            else:
                waits.append(found.whole_from(value))
        when.append(max(waits))
    last = max(turn if layout is None else turn + 1 for turn, layout in zip(when, layouts, strict=True))
    for index, node in enumerate(program.nodes):
        if node.op in ("store", "loss"):
            when[index] = last
    return replace(found, last=last)


def _layouts(program: Program, batch: int) -> tuple[list[Layout | None], list[Needs]]:
    """Layouts and needs of all values, derived from the data on. An operator is sliced if at least one input has the
    layout that it needs. Inputs in other layouts are then read as a whole; the chosen layout reads the fewest bytes of
    those."""
    nodes = program.nodes
    layouts: list[Layout | None] = []
    wanted: list[Needs] = []
    for node in nodes:
        best: tuple[int, Layout, Needs] | None = None
        types = [nodes[value].type for value in node.inputs]
        own = [layouts[value] for value in node.inputs]
        if node.op == "data" and node.type.numel:
            best = (0, Layout(0, program.batch_size // batch, 1), ())
        elif any(layout is not None for layout in own):
            for layout in _candidates(node, own, types, batch):
                found = needs(node, types, layout)
                if found is None or not any(a is not None and a == b for a, b in zip(found, own, strict=True)):
                    continue
                cost = sum(
                    kind.nbytes
                    for kind, have, need in zip(types, own, found, strict=True)
                    if have is not None and have != need
                )
                if best is None or cost < best[0]:
                    best = (cost, layout, found)
        layouts.append(best[1] if best else None)
        wanted.append(best[2] if best else _needs_of_parts(node, types, own))
    return layouts, wanted


def _needs_of_parts(node: Node, types: list[TensorType], own: list[Layout | None]) -> Needs:
    """Needs of an operator that is not sliced: for a sum over samples the layouts of its inputs, if they fit; otherwise
    whole inputs."""
    if node.op in PARTS and node.type.numel and all(kind.numel for kind in types):
        for found in PARTS[node.op](node, types, tuple(own)):
            if all(have in (None, need) for have, need in zip(own, found, strict=True)):
                return found
    return (None,) * len(node.inputs)


def _parts(
    program: Program,
    layouts: list[Layout | None],
    wanted: list[Needs],
    cheap: list[bool],
    choose: ChooseParts,
) -> dict[int, tuple[Samples, ...]]:
    """The sums that are taken part by part, with the samples of their parts. Sums that could be but are not get whole
    inputs as `wanted`."""
    found: dict[int, tuple[Samples, ...]] = {}
    for index, node in enumerate(program.nodes):
        if layouts[index] is not None or not any(wanted[index]):
            continue
        types = [program.nodes[value].type for value in node.inputs]
        there = all(
            layouts[value] == need or _is_source(program, value)
            for value, need in zip(node.inputs, wanted[index], strict=True)
        )
        # Cheap inputs are computed as a whole at once, and a sum of parts would have to wait for a pass.
        waits = [cheap[value] for value in node.inputs if not _is_source(program, value)]
        if there and not (waits and all(waits)):
            parts = choose(node, types, wanted[index])
        else:
            parts = None
        if parts is None:
            wanted[index] = (None,) * len(node.inputs)
        else:
            found[index] = parts
    return found


def _is_source(program: Program, value: int) -> bool:
    return operator(program.nodes[value].op).kind == OperatorKind.SOURCE


def _candidates(node: Node, own: list[Layout | None], types: list[TensorType], batch: int) -> set[Layout]:
    """Layouts that the output may have, given the layouts of the inputs."""
    found: set[Layout | None] = set()
    for layout, kind in zip(own, types, strict=True):
        if layout is None or not node.type.numel or not kind.numel:
            continue
        if node.op == "reshape":
            found.add(regrouped(layout, kind.shape, node.type.shape))
        else:
            found.update(on_axis(node.type.shape, axis, batch, layout.chunk) for axis in range(len(node.type.shape)))
    return {layout for layout in found if layout is not None}


def _slice_what_only_slices_need(program: Program, layouts: list[Layout | None], wanted: list[Needs]) -> None:
    """Slices values that do not depend on the data but are as large as the batch, such as dropout masks and expanded
    gradients, if all their readers want the same slices."""
    nodes = program.nodes
    readers: list[set[Layout | None]] = [set() for _ in nodes]
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if layouts[index] is None and len(readers[index]) == 1 and all(layouts[v] is None for v in node.inputs):
            (layout,) = readers[index]
            if layout is not None:
                if operator(node.op).kind == OperatorKind.SOURCE:
                    found: Needs | None = () if _sliceable_source(program, index) else None
                else:
                    found = needs(node, [nodes[value].type for value in node.inputs], layout)
                if found is not None:
                    layouts[index], wanted[index] = layout, found
        for value, need in zip(node.inputs, wanted[index], strict=True):
            readers[value].add(need)


def _sliceable_source(program: Program, index: int) -> bool:
    """Whether a source can be sliced: random numbers are generated by counter, and one literal fills any shape."""
    node = program.nodes[index]
    bits = node.attributes.get("bits")
    return node.op == "uniform" or (node.op == "constant" and isinstance(bits, tuple) and len(bits) == 1)


def _cheap(program: Program, layouts: list[Layout | None]) -> list[bool]:
    nodes = program.nodes
    limit = max(CHEAP_BYTES, 4 * sum(node.type.nbytes for node in nodes if node.op == "data"))
    costs: list[int] = []
    for index, node in enumerate(nodes):
        op = operator(node.op)
        if op.kind == OperatorKind.SOURCE:
            costs.append(0 if node.op != "uniform" else node.type.nbytes)
        elif isinstance(op, Inexact) or (layouts[index] is None and node.op in ("store", "loss")):
            costs.append(limit + 1)
        else:
            # A value that is read twice counts twice: the cost is an upper bound, found in linear time.
            costs.append(min(limit + 1, node.type.nbytes + sum(costs[value] for value in node.inputs)))
    return [layouts[index] is not None and cost <= limit for index, cost in enumerate(costs)]
