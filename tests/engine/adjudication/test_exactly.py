"""What the referee answers is what the engine has computed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import torch
from roundlog.adjudication.adjudicate import MAX_ROW, DisputedStep, NoAnswer, adjudicate, encode
from roundlog.adjudication.exactly import data_value, function_value
from roundlog.adjudication.functions import evaluate
from roundlog.adjudication.openings import Material, openings
from roundlog.adjudication.size import largest_proof
from roundlog.descriptors import Family, Function, describe
from roundlog.training.job import Job
from tasks import gpt_task, linear_task


def test_functions_are_rounded_as_the_fixed_point_says_where_it_decides() -> None:
    rng = Random("referee")
    for code in Function:
        for _ in range(60):
            x = rng.randrange(1 << 31) & 0xBFFFFFFF
            for bits in (24, 32):
                decided = evaluate(code, x, bits)
                found = function_value(code, x, bits)
                finite = decided is not None and decided & 0x7F800000 != 0x7F800000
                assert found == decided if finite else not np.isfinite(np.uint32(found).view(np.float32)), (
                    code,
                    hex(x),
                )


def test_data_is_that_of_the_spec() -> None:
    job = Job.from_task(gpt_task())
    dataset = list(job.dataset.values())
    for q, node in enumerate(job.program.nodes):
        if node.op != "data":
            continue
        descriptor = describe(job.program, q)
        for step in (0, 3):
            place = DisputedStep.of(job.spec, step)
            material = Material(values={}, states=[], dataset=dataset, schedule=job.schedule)
            for element in (0, 5, descriptor.elements - 1):
                answer = adjudicate(descriptor, element, place, material)
                assert not isinstance(answer, NoAnswer)
                bits = int.from_bytes(encode(descriptor.dtype, answer), "little")
                assert data_value(descriptor, element, place, dataset) == bits


def test_a_row_that_does_not_fit_a_transaction_is_not_opened_and_left_to_the_referee() -> None:
    x = torch.arange(40_000, dtype=torch.float32).reshape(2, 20_000)
    plain = describe(Job.from_task(linear_task()).program, 0)
    load = replace(plain, family=Family.DATA, iteration=(40_000,), parameters=(0, 80_000, 20_000))
    step = DisputedStep(step=0, seed=1, batch_size=2, data_rows=2)
    material = Material(values={}, states=[], dataset=[x], schedule=torch.zeros(0))
    assert openings(load, 7, step, material) == (NoAnswer.UNDECIDED, [])
    assert data_value(load, 7, step, [x]) in (np.float32(7).view(np.uint32), np.float32(20_007).view(np.uint32))
    short = replace(load, iteration=(2 * MAX_ROW // 4,), parameters=(0, MAX_ROW, MAX_ROW // 4))
    y = torch.zeros(2, MAX_ROW // 4)
    _, chunks = openings(short, 7, step, Material(values={}, states=[], dataset=[y], schedule=torch.zeros(0)))
    assert len(chunks) == 1


def test_the_largest_proof_is_that_of_what_is_opened() -> None:
    job = Job.from_task(linear_task())
    size, q = largest_proof(job.program, job.spec)
    assert 2_000 < size < 120_000 and 0 <= q < len(job.program.nodes)
    # Wide rows are opened whole, up to the limit.
    wide = replace(job, program=job.program)
    data = next(q for q, node in enumerate(wide.program.nodes) if node.op == "data")
    assert describe(wide.program, data).parameters[1] < size
