"""A party's evidence about one operator's output: the element to dispute, its material, and its running results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import (
    DisputedStep,
    NoAnswer,
    adjudicate,
    decode,
    encode,
    finish,
    run_segment,
    segments,
)
from roundlog.adjudication.openings import Material, needed
from roundlog.adjudication.partial import ExactSum, start
from roundlog.commitments import CHUNK_SIZE, tensor_bytes, tensor_tree
from roundlog.definitions import FLOATS
from roundlog.descriptors import Family, describe
from roundlog.descriptors.descriptor import REDUCTIONS, Descriptor, Input, Row
from roundlog.dispute import (
    DisputedOperator,
    FabricatedValues,
    disputed_operator,
    outputs_of,
    running_results,
    trace_step,
)
from roundlog.dispute.disputed_operator import running_sums
from roundlog.execution import Executor
from roundlog.program import DType
from roundlog.rounding.policies import without_log
from roundlog.training.job import Job
from roundlog.training.run import Run

from tests.engine.adjudication.adjudication_cases import Opened, descriptor_of
from tests.engine.kept_jobs import kept_job
from tests.engine.operators.operator_cases import golden
from tests.engine.tasks import conv_task

STEP = 1


@pytest.fixture(scope="module", params=["convolution", "gpt_hopper"])
def job(request: pytest.FixtureRequest) -> Job:
    return kept_job(request.param)


@pytest.fixture(scope="module")
def run(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[torch.Tensor]]:
    """A run, and its states before the step."""
    run = Run(job, tmp_path_factory.mktemp("run"))
    return run, run.step(0, list(job.initial.values()), without_log(job.spec))


def disputed(run: Run, states: list[torch.Tensor], q: int) -> DisputedOperator:
    """Operator q of step 1, executed as a party does: only what is needed is kept."""
    job, fabricated = run.job, FabricatedValues(run.directory)
    outputs = outputs_of(run.executor, run.inputs(STEP, states), without_log(job.spec), needed(job.program, q))
    assert set(outputs) == needed(job.program, q)
    return DisputedOperator(job, STEP, q, values=outputs, states=states, fabricated=fabricated)


@pytest.mark.slow_but("convolution")
def test_the_lowest_wrong_element_is_found_and_refuted_by_its_own_chunks_alone(job: Job, run) -> None:
    rng, seen = Random("wrong elements"), set()
    program, step = job.program, DisputedStep.of(job.spec, STEP)
    for q, node in enumerate(program.nodes):
        if node.op in seen or not node.type.numel:
            continue
        seen.add(node.op)
        one = disputed(*run, q)
        size, index = node.type.dtype.itemsize, rng.randrange(one.tree.count)
        own = one.chunk(index)
        assert one.wrong_element(index, own) is None
        places = sorted(rng.sample(range(len(own) // size), min(3, len(own) // size)))
        posted = bytearray(own)
        for place in places:
            posted[place * size + rng.randrange(size)] ^= 1 << rng.randrange(8)
        element = index * CHUNK_SIZE // size + places[0]
        assert one.wrong_element(index, bytes(posted)) == element, node.op
        material = one.material(element)
        answer = material.answer
        assert not isinstance(answer, NoAnswer)
        assert encode(node.type.dtype, answer) != posted[places[0] * size :][:size]
        assert adjudicate(one.descriptor, element, step, Opened(material.openings)) == answer
        assert material.roots.keys() <= set(node.inputs)
        assert one.descriptor_proof and one.descriptor == describe(program, q)
    assert {"state", "data", "schedule", "matmul", "sum", "store", "exp", "where", "div"} <= seen


@pytest.mark.slow_but("convolution")
def test_running_results_come_to_the_element_and_every_segment_has_its_material(job: Job, run) -> None:
    program, seen = job.program, set()
    for q, node in enumerate(program.nodes):
        descriptor = describe(program, q)
        if descriptor.family not in REDUCTIONS or node.op in seen:
            continue
        seen.add(node.op)
        one, chained = disputed(*run, q), descriptor.family == Family.CHAIN
        short = replace(descriptor, segment=descriptor.group if chained else max(1, descriptor.terms // 3))
        one.descriptor = short
        element = descriptor.elements - 1
        answer = one.material(element).answer
        assert not isinstance(answer, NoAnswer)
        claimed = int.from_bytes(encode(descriptor.dtype, answer), "little")
        found = one.running(element, claimed)
        assert len(found.partials) == len(segments(short)) == found.tree.count
        assert finish(short, found.partials[-1]) == answer
        for number in range(len(found.partials)):
            before = found.partials[number - 1] if number else start(short)
            opened = Opened(one.segment(element, number).openings)
            after = run_segment(short, element, before, segments(short)[number], opened)
            assert after == found.partials[number]
    assert {"sum", "matmul"} <= seen


def test_running_sums_of_other_reductions_are_left_to_the_reference() -> None:
    x = torch.randn(3, 5)
    material = Material(values={0: x}, states=[], dataset=[], schedule=torch.zeros(0))
    extreme = descriptor_of("amax", [x], {"dims": (1,)})
    assert extreme.family == Family.EXTREME and running_sums(extreme, 0, material) is None
    nothing = descriptor_of("sum", [x[:, :0]], {"dims": (1,)})
    assert nothing.terms == 0 and running_sums(nothing, 0, material) is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_running_sums_of_a_whole_element_are_those_of_the_reference(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Term by term, over the ends of blocks, with infinities and NaN."""
    monkeypatch.setattr(disputed_operator, "_BLOCK", 8)
    for name in ("sum", "matmul", "conv2d"):
        for case in golden(name):
            if case.kind.dtype == dtype and case.bits == 32 and case.inputs[0].numel():
                material = Material(values=dict(enumerate(case.inputs)), states=[], dataset=[], schedule=torch.zeros(0))
                cut = replace(descriptor_of(name, case.inputs, case.attributes), segment=3)
                for element in range(0, cut.elements, 5):
                    partial, found = start(cut), running_sums(cut, element, material)
                    for terms, running in zip(segments(cut), found, strict=True):
                        partial = run_segment(cut, element, partial, terms, material)
                        assert running == partial, (name, element, terms)


def test_a_sum_with_an_infinity_is_one_from_that_segment_on() -> None:
    terms = torch.tensor([1.0, 2.0, float("inf"), 4.0, 5.0, float("-inf"), 7.0])
    item = Input(0, DType.F32, (7,), (Row(0, (1,)),))
    descriptor = Descriptor(family=Family.SUM, dtype=DType.F32, segment=2, iteration=(), reduction=(7,), inputs=(item,))
    material = Material(values={0: terms}, states=[], dataset=[], schedule=torch.zeros(0))
    found = running_results(descriptor, 0, material)
    assert found.partials == [ExactSum(3 << 298), ExactSum(0, 0x7F800000), ExactSum(0, ieee.NAN), ExactSum(0, ieee.NAN)]
    assert finish(descriptor, found.partials[-1]) == ieee.NAN
    assert found.before(0) == bytes(96) and found.before(2) == found.partials[1].encode()


@pytest.mark.slow
def test_where_a_step_stops_the_opponent_is_wrong_in_whatever_it_posts(
    secret: FabricatedValues, tmp_path: Path
) -> None:
    """The whole output of the operator, chunk by chunk, as somebody might claim it who goes on."""
    task = conv_task()
    task.dataset["x"][:] *= 1e30
    job = Job.from_task(lambda: task, compare=False)
    run = Run(job, tmp_path)
    inputs = run.inputs(0, list(job.initial.values()))
    assert isinstance(run.executor, Executor)
    trace = trace_step(run.executor, inputs, without_log(job.spec), secret)
    assert trace.stop is not None
    q = trace.stop.operator
    outputs = outputs_of(run.executor, inputs, without_log(job.spec), needed(job.program, q))
    one = DisputedOperator(job, 0, q, values=outputs, states=list(inputs.states), fabricated=secret, stop=trace.stop)
    assert one.tree.root == trace.operators[q]
    size = job.program.nodes[q].type.dtype.itemsize
    made = outputs[q].clone()
    made[~made.isfinite()] = 1.0
    theirs = tensor_tree(made)
    index = next(i for i in range(theirs.count) if theirs.node(0, i) != one.tree.node(0, i))
    posted = bytes(tensor_bytes(made)[index * CHUNK_SIZE : (index + 1) * CHUNK_SIZE])
    assert one.wrong_element(index, posted) == trace.stop.element
    assert one.material(trace.stop.element).answer is NoAnswer.NO_VALUE
    if trace.stop.element * size // CHUNK_SIZE or trace.stop.element:
        spoiled = made.clone()
        spoiled.view(-1)[0] += 1.0
        assert one.wrong_element(0, bytes(tensor_bytes(spoiled)[:CHUNK_SIZE])) == 0
        answer = one.material(0).answer
        assert decode(DType.F32, bytes(tensor_bytes(spoiled)[:4])) != answer
    later = DisputedOperator(job, 0, q + 1, values={q + 1: made}, states=[], fabricated=secret, stop=trace.stop)
    assert later.wrong_element(0, bytes(4)) is None
