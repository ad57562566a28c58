"""The tree of level OPERATOR: all that one step has computed, beside the state that it has led to.

    leaf q < operators              payload: tensor root of operator q's output
    leaf half + s, s < states       payload: tensor root of state slot s after the step

and PAD elsewhere; half = 2^h, h the greater of the depths of an operators' and of a state's tree. So the right half is
the state's own tree, extended by PAD.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

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

    @cached_property
    def tree(self) -> MerkleTree:
        return trace_tree(self.operators, self.states)


def trace_step(
    executor: StepExecutor, inputs: StepInputs, rounding: Rounding, fabricated: FabricatedValues
) -> StepTrace:
    """Execute a step and note the tensor root of every operator's output. Where the step stops, the rest is
    fabricated. Raises as `StepExecutor.run`, but for StoppedError."""
    roots: list[bytes] = []

    def execute() -> StepResult:
        roots.clear()
        return executor.run(inputs, rounding, observe=lambda index, output: roots.append(tensor_root(output)))

    try:
        result = retry_disturbed(execute, rounding.start_again)
    except StoppedError as error:
        return _stopped(executor.program, executor.f32_format, inputs, roots, fabricated, error)
    return StepTrace(operators=roots, states=[tensor_root(state) for state in result.states], stop=None)


def outputs_of(
    executor: StepExecutor, inputs: StepInputs, rounding: Rounding, operators: Collection[int]
) -> dict[int, torch.Tensor]:
    """Execute a step and return the outputs of some operators: of those before the one at which it stops, if it does,
    and of that one, which is right before the first element without a value. Raises as `StepExecutor.run`, but for
    StoppedError."""
    outputs: dict[int, torch.Tensor] = {}

    def observe(index: int, output: torch.Tensor) -> None:
        if index in operators:
            outputs[index] = output

    try:
        retry_disturbed(lambda: executor.run(inputs, rounding, observe=observe), rounding.start_again)
    except StoppedError as error:
        observe(error.operator, error.output)
    return outputs


def _stopped(
    program: Program,
    f32_format: Format,
    inputs: StepInputs,
    roots: Sequence[bytes],
    fabricated: FabricatedValues,
    error: StoppedError,
) -> StepTrace:
    step, first = inputs.step, first_store(program)
    stop = Stop(error.operator, error.element)

    def root(index: int) -> bytes:
        if index < stop.operator:
            return roots[index]
        if index == stop.operator:
            return claimed_tree(program, f32_format, step, stop, error.output, fabricated).root
        if index < first:
            return fabricated.data(32, "root", step, index)
        return tensor_root(fabricated_slot(program, f32_format, step, index, fabricated))

    operators = [root(index) for index in range(len(program.nodes))]
    # The stores have to keep what the state holds: else an opponent with a copy of the operators' half would
    # prove this side wrong, and so it is the one that is.
    return StepTrace(operators=operators, states=operators[first:], stop=stop)


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
