"""The referee's answers are the engine's results."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import torch
from roundlog.adjudication.adjudicate import DisputedStep, function_value
from roundlog.adjudication.fixed_point import evaluate
from roundlog.adjudication.openings import Material, largest_proof, openings
from roundlog.data import held
from roundlog.definitions import of_family
from roundlog.descriptors import Family, describe
from roundlog.number_format import narrow_float32
from roundlog.program import DType
from roundlog.training.job import Job

from tests.engine.tasks import linear_task


def test_functions_are_rounded_as_the_fixed_point_says_where_it_decides() -> None:
    rng = Random("referee")
    for name in (one.name for one in of_family(Family.FUNCTION)):
        for _ in range(60):
            x = rng.randrange(1 << 31) & 0xBFFFFFFF
            for dtype in (DType.BF16, DType.F16):
                format, short = dtype.number_format(), x >> 16
                decided = evaluate(name, format.in_float32(short), format)
                assert decided is not None
                assert function_value(name, short, dtype) == format.of_float32(decided), (name, dtype, hex(short))
            for bits in (24, 32):
                decided = evaluate(name, x, narrow_float32(bits))
                found = function_value(name, x, DType.F32, narrow_float32(bits))
                finite = decided is not None and decided & 0x7F800000 != 0x7F800000
                assert found == decided if finite else not np.isfinite(np.uint32(found).view(np.float32)), (
                    name,
                    hex(x),
                )


def test_the_largest_proof_is_that_of_what_is_opened() -> None:
    job = Job.from_task(linear_task, compare=False)
    size, q = largest_proof(job.program, job.spec)
    assert 2_000 < size < 120_000 and 0 <= q < len(job.program.nodes)


def test_rows_of_any_size_are_opened_by_the_chunk() -> None:
    x = torch.arange(40_000, dtype=torch.float32).reshape(2, 20_000)
    plain = describe(Job.from_task(linear_task, compare=False).program, 0)
    load = replace(plain, family=Family.DATA, iteration=(40_000,), parameters=(0, 1, 20_000, 20_000))
    step = DisputedStep(step=0, seed=1, batch_size=2, data_rows=2)
    answer, chunks = openings(load, 7, step, Material(values={}, states=[], dataset=[held(x)], schedule=torch.zeros(0)))
    assert answer in (np.float32(7).view(np.uint32), np.float32(20_007).view(np.uint32)) and len(chunks) == 1
