"""A run stops where, and only where, the contract finds no value: else a claim about such a run could neither be
defended nor refuted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch
from roundlog.adjudication.adjudicate import DisputedStep, NoAnswer, adjudicate, encode
from roundlog.adjudication.openings import Material
from roundlog.commitments import tensor_bytes
from roundlog.descriptors import describe
from roundlog.execution import Executor, StoppedError
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Follower

from tests.engine.microbatch.random_programs import make

EXTREMES = (float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38, 1e25, 1e-45, -0.0, 0.0)


def hostile(seed: int) -> tuple[Program, StepInputs]:
    """A random program on data with infinities, NaN, numbers that overflow, and indices that leave their axes."""
    made, rng = make(seed), Random(seed)
    data = [field.clone() for field in made.inputs.data]
    for field in data:
        flat = field.view(-1)
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(flat))
            flat[place] = rng.choice(EXTREMES) if field.is_floating_point() else rng.choice((-1, 2, 7))
    return made.program, replace(made.inputs, data=data)


def check(seed: int) -> StoppedError | None:
    """Runs one hostile program; how it stopped."""
    program, inputs = hostile(seed)
    outputs: dict[int, torch.Tensor] = {}
    stopped = None
    try:
        Executor(program).run(inputs, Follower.without_log(4), observe=outputs.__setitem__)
    except StoppedError as error:
        stopped = error
    try:
        Executor(program).run(inputs, Follower.without_log(4))
        assert stopped is None
    except StoppedError as error:
        # Fused or one by one, it is the same.
        assert stopped is not None and (error.operator, error.element) == (stopped.operator, stopped.element)
    rng, step = (
        Random(seed),
        DisputedStep(step=inputs.step, seed=inputs.seed, batch_size=program.batch_size, data_rows=1),
    )
    for q, output in outputs.items():
        if program.nodes[q].op == "data":
            continue
        for element in sorted(rng.sample(range(output.numel()), min(2, output.numel()))):
            assert element_of(program, q, element, outputs, step) == bits_of(program, q, element, output), (seed, q)
    if stopped is not None:
        q = stopped.operator
        assert q == len(outputs)
        assert element_of(program, q, stopped.element, outputs, step) is NoAnswer.NO_VALUE, (seed, str(stopped))
        before = range(stopped.element)
        for element in rng.sample(before, min(20, len(before))):
            right = bits_of(program, q, element, stopped.output)
            assert element_of(program, q, element, outputs, step) == right, (seed, element, str(stopped))
    return stopped


def element_of(program: Program, q: int, element: int, outputs: dict[int, torch.Tensor], step: DisputedStep) -> object:
    material = Material.of(program, q, values=outputs, states=[], dataset=[], schedule=torch.zeros(0))
    answer = adjudicate(describe(program, q), element, step, material)
    return answer if isinstance(answer, NoAnswer) else encode(program.nodes[q].type.dtype, answer)


def bits_of(program: Program, q: int, element: int, output: torch.Tensor) -> bytes:
    size = program.nodes[q].type.dtype.itemsize
    return bytes(tensor_bytes(output)[element * size : (element + 1) * size])


def test_the_engine_and_the_reference_stop_at_the_same_elements() -> None:
    stops = {}
    for seed in range(32):
        stopped = check(seed)
        if stopped is not None:
            stops[hostile(seed)[0].nodes[stopped.operator].op] = type(stopped).__name__
    assert {"take", "gather", "loss", "store"} == set(stops), stops
    assert set(stops.values()) == {"NonFiniteError", "IndexRangeError"}, stops
