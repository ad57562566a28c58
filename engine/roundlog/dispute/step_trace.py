"""The tree of level OPERATOR: all that one step has computed, beside the state that it has led to.

    leaf q < operators              payload: tensor root of operator q's output
    leaf half + s, s < states       payload: tensor root of state slot s after the step

and PAD elsewhere; half = 2^h, h the greater of the depths of an operators' and of a state's tree. So the right half is
the state's own tree, extended by PAD.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from roundlog.adjudication.openings import TraceRoots
from roundlog.arithmetic import retry_disturbed
from roundlog.commitments import (
    CHUNK_SIZE,
    PAD,
    MerkleTree,
    depth_of,
    leaf_hash,
    tensor_bytes,
    tensor_root,
    tensor_tree,
)
from roundlog.execution import StepExecutor, StepResult, StoppedError
from roundlog.number_format import Format
from roundlog.operators import StepInputs
from roundlog.program import Program, first_store
from roundlog.rounding import Rounding
from roundlog.training.fabricated_values import FabricatedValues, Stop, claimed_slot, fabricated_slot


def half_of(operators: int, states: int) -> int:
    """Leaves of the operators' half, and so the number of slot 0's leaf."""
    return 1 << max(depth_of(operators), depth_of(states))


def trace_tree(operators: Sequence[bytes], states: Sequence[bytes]) -> MerkleTree:
    """The tree, from the payloads (tensor roots) of its two halves."""
    gap = half_of(len(operators), len(states)) - len(operators)
    return MerkleTree.of_leaf_hashes([*map(leaf_hash, operators), *[PAD] * gap, *map(leaf_hash, states)])


def operators_half(tree: MerkleTree) -> bytes:
    """The node over the operators' half: of a trace tree, all that does not follow from the state root."""
    return tree.node(tree.depth - 1, 0)


@dataclass(kw_only=True)
class StepTrace:
    """One step as a party claims it: a whole tree even where the step has no result."""

    operators: list[bytes]
    """Tensor roots of all outputs, in program order."""
    states: list[bytes]
    """Tensor roots of the state after the step."""
    stop: Stop | None
    outputs: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Outputs that were kept; that of the operator at which the step stops is right before the first element without a
    value."""

    @cached_property
    def tree(self) -> MerkleTree:
        return trace_tree(self.operators, self.states)


def trace_step(
    executor: StepExecutor,
    inputs: StepInputs,
    rounding: Rounding,
    fabricated: FabricatedValues,
    outputs: MutableMapping[int, torch.Tensor],
) -> StepTrace:
    """Executes a step and notes every operator's output. outputs: where they are put. Where the step stops, the rest
    is fabricated."""
    roots = TraceRoots(outputs)

    def execute() -> StepResult:
        nonlocal roots
        roots = TraceRoots(outputs)
        return executor.run(inputs, rounding, observe=roots)

    try:
        result = retry_disturbed(execute, rounding.start_again)
    except StoppedError as error:
        return _stopped(executor.program, executor.f32_format, inputs, roots, fabricated, error)
    return StepTrace(
        operators=roots.roots, states=[tensor_root(state) for state in result.states], stop=None, outputs=outputs
    )


def _stopped(
    program: Program,
    f32_format: Format,
    inputs: StepInputs,
    roots: TraceRoots,
    fabricated: FabricatedValues,
    error: StoppedError,
) -> StepTrace:
    step, first = inputs.step, first_store(program)
    stop = Stop(error.operator, error.element)

    def root(index: int) -> bytes:
        if index < stop.operator:
            return roots.roots[index]
        if index == stop.operator:
            return claimed_tree(program, f32_format, step, stop, error.output, fabricated).root
        if index < first:
            return fabricated.data(32, "root", step, index)
        return tensor_root(fabricated_slot(program, f32_format, step, index, fabricated))

    operators = [root(index) for index in range(len(program.nodes))]
    # The stores have to keep what the state holds: else an opponent with a copy of the operators' half would
    # prove this side wrong, and so it is the one that is.
    roots.outputs[stop.operator] = error.output
    return StepTrace(operators=operators, states=operators[first:], stop=stop, outputs=roots.outputs)


def claimed_tree(
    program: Program, f32_format: Format, step: int, stop: Stop, output: torch.Tensor, fabricated: FabricatedValues
) -> MerkleTree:
    """The tree that a party claims over the output of the operator at which a step stops: right up to the chunk of the
    first element without a value, nobody else's from there on. So the first chunk in which an opponent differs is one
    in which it is wrong. Of a store it is a tensor's, which the next step loads; of any other operator nobody ever
    asks for the bytes below."""
    if stop.operator >= first_store(program):
        return tensor_tree(claimed_slot(program, f32_format, step, stop, output, fabricated))
    kind = program.nodes[stop.operator].type
    first = stop.element * kind.dtype.itemsize // CHUNK_SIZE
    right = right_bytes(stop, output)
    leaves = [leaf_hash(right[i * CHUNK_SIZE : (i + 1) * CHUNK_SIZE]) for i in range(first)]
    chunks = -(-kind.nbytes // CHUNK_SIZE)
    secret = [fabricated.data(32, "chunk", step, stop.operator, i) for i in range(first, chunks)]
    return MerkleTree.of_leaf_hashes([*leaves, *secret])


def right_bytes(stop: Stop, output: torch.Tensor) -> memoryview:
    """The output of the operator at which a step stops, up to the first element without a value."""
    return tensor_bytes(output.detach().reshape(-1)[: stop.element])


class OutputsOnDisk(MutableMapping[int, torch.Tensor]):
    """Outputs of operators in a nameless file, which is gone with this object or the process, whatever ends it."""

    def __init__(self, program: Program, directory: Path) -> None:
        """directory: on a disk, not in memory. Raises OSError, also where the disk has less than twice the room that
        all outputs take."""
        self._types = [node.type for node in program.nodes]
        self._offsets: list[int] = []
        size = 0
        for kind in self._types:
            self._offsets.append(size)
            size += kind.nbytes
        if shutil.disk_usage(directory).free < 2 * size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        self._written: dict[int, None] = {}
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  (lives as long as this object)

    def __setitem__(self, operator: int, output: torch.Tensor) -> None:
        """Keeps an output, whatever its device. Raises OSError."""
        self._file.seek(self._offsets[operator])
        self._file.write(tensor_bytes(output))
        self._file.flush()
        self._written[operator] = None

    def __getitem__(self, operator: int) -> torch.Tensor:
        """The output as it was kept, on the CPU. Raises KeyError for one that was not, OSError."""
        if operator not in self._written:
            raise KeyError(operator)
        kind = self._types[operator]
        if not kind.nbytes:
            return torch.empty(kind.shape, dtype=kind.dtype.torch_dtype)
        self._file.seek(self._offsets[operator])
        data = self._file.read(kind.nbytes)
        if len(data) != kind.nbytes:
            raise OSError(errno.EIO, "the file of a step's outputs was cut short: execute the step again")
        return torch.frombuffer(bytearray(data), dtype=kind.dtype.torch_dtype).reshape(kind.shape)

    def __delitem__(self, operator: int) -> None:
        del self._written[operator]

    def __iter__(self) -> Iterator[int]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


class SomeOutputs(dict[int, torch.Tensor]):
    """Outputs of some operators in memory; the others are let go."""

    def __init__(self, operators: Collection[int] = ()) -> None:
        super().__init__()
        self._operators = frozenset(operators)

    def __setitem__(self, operator: int, output: torch.Tensor) -> None:
        if operator in self._operators:
            super().__setitem__(operator, output)
