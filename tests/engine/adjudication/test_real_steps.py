"""Whole training steps: what the contract would compute, from opened chunks alone, is what the engine computed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication.adjudicate import (
    DisputedStep,
    NoAnswer,
    Tree,
    adjudicate,
    encode,
)
from roundlog.adjudication.openings import (
    Material,
    OperandOpening,
    largest_proof,
    needed,
    openings,
    prove,
)
from roundlog.commitments import CHUNK_SIZE, MerkleTree, state_root, tensor_bytes, tensor_root
from roundlog.data import as_field, data_tree
from roundlog.descriptors import Descriptor, Family, describe
from roundlog.descriptors.describe import leaves
from roundlog.execution import Batches, Executor
from roundlog.program import DType, Stored
from roundlog.rounding import Recorder
from roundlog.training.job import Job

from tests.engine.adjudication.adjudication_cases import Opened
from tests.engine.kept_jobs import kept_job

STEP_NUMBER = 2


class Trained:
    """One step of a task with everything that came out of it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outputs: dict[int, torch.Tensor] = {}
        self.states = list(job.initial.values())
        inputs = job.inputs(Batches(job.dataset, job.spec), STEP_NUMBER, self.states)
        self.after = Executor(job.program).run(inputs, Recorder(4), observe=self.outputs.__setitem__).states
        self.roots = [tensor_root(output) for output in self.outputs.values()]
        self.step = DisputedStep.of(job.spec, STEP_NUMBER)

    def material(self, q: int) -> Material:
        """Only what a dispute about operator q needs."""
        return Material.of(
            self.job.program,
            q,
            values={value: self.outputs[value] for value in needed(self.job.program, q)},
            states=self.states,
            dataset=list(self.job.dataset.values()),
            schedule=self.job.schedule,
        )


@pytest.fixture(scope="module", params=["convolution", "gpt_hopper"])
def trained(request: pytest.FixtureRequest) -> Trained:
    return Trained(kept_job(request.param))


def holds(trained: Trained, descriptor: Descriptor, opening: OperandOpening) -> bool:
    """A contract's check of an opening: all roots and leaf counts from the spec, the descriptor or the dispute."""
    job, chunk = trained.job, opening.chunk
    count = max(1, -(-descriptor.nbytes // CHUNK_SIZE))
    if chunk.tree == Tree.VALUE:
        (item, *_) = (item for item in descriptor.inputs if item.value == chunk.tensor)
        return opening.holds(root=trained.roots[chunk.tensor], leaves=leaves(item))
    if chunk.tree == Tree.STATE:
        return opening.holds(root=job.spec.initial_state_root, leaves=count, tensors=job.spec.state_count)
    if chunk.tree == Tree.FIELD:
        _, fields, items, stride = descriptor.parameters
        size = ((job.spec.data_rows - 1) * stride + items) * Stored(descriptor.code).width(descriptor.dtype)
        return opening.holds(root=job.spec.data_root, leaves=max(1, -(-size // CHUNK_SIZE)), tensors=fields)
    if chunk.tree == Tree.SCHEDULE:
        size = job.spec.steps * descriptor.parameters[1] * 4
        return opening.holds(root=job.spec.schedule_root, leaves=-(-size // CHUNK_SIZE))
    return opening.holds(root=descriptor.root, leaves=count)


@pytest.mark.slow_but("convolution")
def test_the_contract_computes_every_operator_of_a_step_from_proved_chunks(trained: Trained) -> None:
    program, rng = trained.job.program, Random("real steps")
    assert len(trained.roots) == len(program.nodes)
    for q, node in enumerate(program.nodes):
        descriptor = describe(program, q)
        assert descriptor.elements == node.type.numel and descriptor.nbytes == node.type.nbytes
        for position, value in enumerate(node.inputs):
            # The consumer alone says how large its inputs are.
            assert descriptor.inputs[position].nbytes == program.nodes[value].type.nbytes
        if not descriptor.elements:
            continue
        output = bytes(tensor_bytes(trained.outputs[q]))
        element = rng.randrange(descriptor.elements)
        material = trained.material(q)
        answer, chunks = openings(descriptor, element, trained.step, material)
        assert not isinstance(answer, NoAnswer), (program.describe(q), element)
        size = descriptor.dtype.itemsize
        assert encode(descriptor.dtype, answer) == output[element * size :][:size], (program.describe(q), element)
        proved = prove(chunks, material)
        assert all(holds(trained, descriptor, opening) for opening in proved), program.describe(q)
        assert adjudicate(descriptor, element, trained.step, Opened(proved)) == answer
        if proved:
            # Nothing was opened that is not needed, and nothing holds that was changed.
            with pytest.raises(KeyError):
                adjudicate(descriptor, element, trained.step, Opened(proved[1:]))
            spoiled = replace(proved[0], payload=proved[0].payload[:-1] + bytes([proved[0].payload[-1] ^ 1]))
            assert not holds(trained, descriptor, spoiled)


@pytest.mark.slow_but("convolution")
def test_the_last_operators_of_the_trace_are_the_next_state(trained: Trained) -> None:
    count = trained.job.spec.state_count
    assert trained.roots[-count:] == [tensor_root(state) for state in trained.after]
    assert MerkleTree(trained.roots[-count:]).root == state_root(trained.after)
    assert data_tree(trained.job.dataset.values()).root == trained.job.spec.data_root


@pytest.mark.slow_but("convolution")
def test_a_chunk_of_another_tensor_or_place_does_not_hold(trained: Trained) -> None:
    program = trained.job.program
    q = next(q for q, node in enumerate(program.nodes) if node.op in ("matmul", "tensor_core_matmul"))
    descriptor = describe(program, q)
    _, chunks = openings(descriptor, 0, trained.step, trained.material(q))
    proved = prove(chunks, trained.material(q))
    for opening in proved:
        (item, *_) = (item for item in descriptor.inputs if item.value == opening.chunk.tensor)
        count = leaves(item)
        good = {"root": trained.roots[opening.chunk.tensor], "leaves": count}
        assert opening.holds(**good)
        moved = replace(opening, chunk=replace(opening.chunk, index=opening.chunk.index + 1))
        longer = replace(opening, siblings=[*opening.siblings, bytes(32)])
        for wrong in (moved, longer, replace(opening, above=[bytes(32)])):
            assert not wrong.holds(**good)
        another = next(root for root in trained.roots if root != good["root"])  # equal tensors have one root
        assert not opening.holds(root=another, leaves=count)
        assert not opening.holds(root=good["root"], leaves=4 * count)


def test_the_largest_proof_is_that_of_what_is_opened(trained: Trained) -> None:
    size, q = largest_proof(trained.job.program, trained.job.spec)
    assert 2_000 < size < 120_000 and 0 <= q < len(trained.job.program.nodes)


def test_rows_of_any_size_are_opened_by_the_chunk() -> None:
    x = torch.arange(40_000, dtype=torch.float32).reshape(2, 20_000)
    plain = describe(kept_job("logistic_sgd").program, 0)
    load = replace(plain, family=Family.DATA, code=0, dtype=DType.F32, inputs=(), root=bytes(32))
    load = replace(load, iteration=(40_000,), parameters=(0, 1, 20_000, 20_000))
    step = DisputedStep(step=0, seed=1, batch_size=2, data_rows=2)
    answer, chunks = openings(
        load, 7, step, Material(values={}, states=[], dataset=[as_field(x)], schedule=torch.zeros(0))
    )
    assert answer in (np.float32(7).view(np.uint32), np.float32(20_007).view(np.uint32)) and len(chunks) == 1
