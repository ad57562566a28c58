"""For every operator of the registry, the contract computes the bits that the engine's kernels gave."""

from __future__ import annotations

from dataclasses import astuple
from random import Random
from typing import Any

import make_descriptor_vectors
import pytest
import torch
from roundlog.adjudication import openings as opened
from roundlog.adjudication.adjudicate import DisputedStep, segments
from roundlog.adjudication.openings import Material, TraceRoots
from roundlog.adjudication.partial import start
from roundlog.commitments import CHUNK_SIZE, state_tree, tensor_bytes, tensor_root, tensor_tree
from roundlog.data import data_tree, held
from roundlog.descriptors import Descriptor, Family, describe, encode_descriptor
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.execution import Executor
from roundlog.operators.registry import StepInputs
from roundlog.program import Program
from roundlog.randomness import batch_rows
from roundlog.rounding.resolve import Recorder
from tiebreak.game.moves import opening_arguments

pytestmark = pytest.mark.slow

STEP, STEPS, ROWS, SEED = 2, 5, 7, 2**63 + 11
VALUE, STOPS, UNDECIDED = range(3)


class Run:
    """One executed step of the program that holds every operator, with all that stands on a chain about it."""

    def __init__(self) -> None:
        self.program: Program = make_descriptor_vectors.every_operator()
        generator = torch.Generator().manual_seed(5)
        state = torch.randn((2, 6, 7, 5), generator=generator)
        images = torch.randn((ROWS, 4, 9, 8), generator=generator)
        images.view(-1)[::17] = 0.5  # ties for the pooling
        tokens = torch.randint(0, 7, (ROWS, 5), generator=generator)
        self.schedule = torch.rand((STEPS, 3), generator=generator)
        rows = torch.from_numpy(batch_rows(SEED, STEP, 3, ROWS))
        inputs = StepInputs(
            states=[state],
            data=[images[rows], tokens[rows]],
            schedule=self.schedule[STEP],
            seed=SEED,
            step=STEP,
            device=torch.device("cpu"),
        )
        traced = TraceRoots({})
        Executor(self.program).run(inputs, Recorder(4), traced)
        self.roots, self.values = traced.roots, traced.outputs
        self.states, self.dataset = [state, torch.ones(3), torch.zeros(5)], [held(images), held(tokens)]
        self.step = DisputedStep(step=STEP, seed=SEED, batch_size=3, data_rows=ROWS)

    @property
    def setting(self) -> tuple[Any, ...]:
        spec = (
            *(STEPS, 1, b"p" * 32, len(self.program.nodes), b"i" * 32, len(self.states)),
            *(data_tree(self.dataset).root, ROWS, 3, tensor_root(self.schedule), SEED),
            *(CHUNK_SIZE, 0, 32, 4, 1, "0x" + "11" * 20, "0x" + "22" * 20),
        )
        return spec, STEP, state_tree(self.states).root

    def material(self, index: int) -> Material:
        return Material.of(
            self.program,
            index,
            values=self.values,
            states=self.states,
            dataset=self.dataset,
            schedule=self.schedule,
        )

    def question(self, descriptor: Descriptor, element: int) -> tuple[Any, ...]:
        return encode_descriptor(descriptor), [self.roots[item.value] for item in descriptor.inputs], element

    def bits(self, index: int, element: int) -> int:
        """An element as the contract has it: FP32 pattern, int64 as uint64, bool as 0 or 1."""
        tensor = self.values[index]
        size = tensor.element_size()
        return int.from_bytes(bytes(tensor_bytes(tensor)[element * size : (element + 1) * size]), "little")


@pytest.fixture(scope="module")
def run() -> Run:
    return Run()


def compute(adjudicator: Any, run: Run, index: int, element: int) -> tuple[int, int]:
    """(finding, bits) of one element by one opening, or segment by segment."""
    descriptor = describe(run.program, index)
    material, calls = run.material(index), adjudicator.functions
    asked = run.question(descriptor, element)

    def arguments(chunks: list[opened.Chunk]) -> list[Any]:
        return [astuple(o) for o in opening_arguments(descriptor, opened.prove(chunks, material))]

    if descriptor.family not in REDUCTIONS or len(segments(descriptor)) == 1:
        _, chunks = opened.openings(descriptor, element, run.step, material)
        finding, bits = calls.compute(run.setting, asked, arguments(chunks)).call()
        return finding, bits
    partial = start(descriptor)
    for segment in range(len(segments(descriptor))):
        before = words(partial.encode())
        partial, chunks = opened.segment_openings(descriptor, element, partial, segment, material)
        called = calls.reduceSegment(run.setting, asked, segment, before, arguments(chunks)).call()
        assert called == [VALUE, words(partial.encode())], (index, element, segment)
    finding, bits = calls.finish(asked[0], words(partial.encode()), 32).call()
    return finding, bits


def words(partial: bytes) -> tuple[list[bytes]]:
    return ([partial[at : at + 32] for at in (0, 32, 64)],)


def test_the_contract_computes_what_the_kernels_computed(adjudicator: Any, run: Run) -> None:
    rng = Random("tiebreak elements")
    families = set()
    for index, node in enumerate(run.program.nodes):
        descriptor, output = describe(run.program, index), run.values[index]
        families.add(descriptor.family)
        outline = adjudicator.functions.outline(encode_descriptor(descriptor), CHUNK_SIZE).call()
        assert outline[0] == output.element_size()
        assert outline[1] == output.numel()
        assert outline[2] == tensor_tree(output).count
        assert outline[3] == (len(segments(descriptor)) if descriptor.family in REDUCTIONS else 0)
        assert outline[4] == list(node.inputs)
        for element in {output.numel() - 1, rng.randrange(output.numel())}:
            expected = run.bits(index, element)
            assert compute(adjudicator, run, index, element) == (VALUE, expected), (node.op, index, element)
    assert families == set(Family)


def test_long_reductions_go_on_from_segment_to_segment(adjudicator: Any, run: Run) -> None:
    """Sums and extremes of the registry's cases, cut into segments of three terms or more, or of a group."""
    kinds = set()
    for index, node in enumerate(run.program.nodes):
        descriptor = describe(run.program, index)
        kind = descriptor.family, node.op, descriptor.code
        if descriptor.family not in REDUCTIONS or descriptor.terms <= max(3, descriptor.group) or kind in kinds:
            continue
        kinds.add(kind)
        chain = descriptor.family == Family.CHAIN
        object.__setattr__(descriptor, "segment", descriptor.group if chain else max(3, descriptor.terms // 4))
        element = run.values[index].numel() // 2
        partial, material = start(descriptor), run.material(index)
        asked = run.question(descriptor, element)
        for segment in range(len(segments(descriptor))):
            before = words(partial.encode())
            partial, chunks = opened.segment_openings(descriptor, element, partial, segment, material)
            arguments = [astuple(o) for o in opening_arguments(descriptor, opened.prove(chunks, material))]
            called = adjudicator.functions.reduceSegment(run.setting, asked, segment, before, arguments).call()
            assert called == [VALUE, words(partial.encode())], (node.op, index, segment)
        finished = adjudicator.functions.finish(asked[0], words(partial.encode()), 32).call()
        assert finished == [VALUE, run.bits(index, element)], (node.op, index, element)
    assert {family for family, _, _ in kinds} >= REDUCTIONS - {Family.ANY}
