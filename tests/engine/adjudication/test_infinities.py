"""Infinities, NaN and zeros in the inputs of every inexact operator, in every executor: the engine stops at an element
if, and only if, the contract finds no value there. Otherwise a trainer with another executor could take the bonds of
honest auditors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import foreign_device
import numpy as np
import pytest
import torch
from adjudication_cases import Bits, descriptor_of, kind_of
from hostile_numbers import INEXACT, hostile
from operator_cases import Case
from oracle.array import from_torch
from oracle.operators import INEXACT as ORACLE
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import Answer, Outcome, Step, adjudicate
from roundlog.executor import Executor, NonFiniteError
from roundlog.microbatch import MicrobatchExecutor
from roundlog.microbatch.analysis import samples_of
from roundlog.operators import REGISTRY, StepInputs, Summation
from roundlog.operators.summation import InParts
from roundlog.program import DType, Node, Program, TensorType
from roundlog.rounding import Follower, Recorder

STEP = Step(step=0, seed=0, batch_size=1, data_rows=1)
NUMBERS = 16
"""Cases of an operator, twice: without NaN and with it."""
SCALAR = TensorType((), DType.F32)

Found = list[int] | int
"""All elements as bits, or the first element that has no value."""


def right(name: str, case: Case, bits: int = ieee.FULL_BITS) -> Found:
    """By the reference that mirrors the contract; and by the oracle, which has to say the same."""
    descriptor, chunks = descriptor_of(name, case.inputs, case.attributes), Bits(case.inputs)
    step = replace(STEP, rounding_bits=bits)
    answers: list[Answer] = [adjudicate(descriptor, e, step, chunks) for e in range(descriptor.elements)]
    if bits == ieee.FULL_BITS:
        _, reals = ORACLE[name]([from_torch(x) for x in case.inputs], case.attributes)
        for answer, real in zip(answers, reals, strict=True):
            says = real.rounded if ieee.is_finite(real.rounded) else Outcome.NO_VALUE
            assert answer == says or answer is Outcome.UNDECIDED, (name, answer, says, case)
    first = next((e for e, answer in enumerate(answers) if answer is Outcome.NO_VALUE), None)
    if first is not None:
        return first
    return [answer for answer in answers if isinstance(answer, int)]


def program_of(name: str, case: Case, rng: Random) -> tuple[Program, StepInputs]:
    """The operator on data where they can be the batch's, on constants elsewhere; its output is stored."""
    nodes: list[Node] = []
    data: list[torch.Tensor] = []
    batch = case.inputs[0].shape[0] if case.inputs[0].ndim else 1
    for number, x in enumerate(case.inputs):
        kind = kind_of(x)
        fits = x.ndim and x.shape[0] == batch
        if fits and (number == 0 or rng.random() < 0.7):
            nodes.append(Node("data", (), {"slot": len(data)}, kind))
            data.append(x)
        else:
            nodes.append(Node("constant", (), {"bits": from_torch(x).items}, kind))
    count = len(nodes)
    output = REGISTRY[name].infer([node.type for node in nodes], case.attributes, SCALAR)
    nodes.append(Node(name, tuple(range(count)), dict(case.attributes), output))
    nodes.append(Node("constant", (), {"bits": (0,)}, SCALAR))
    nodes.append(Node("loss", (count + 1,), {}, SCALAR))
    nodes.append(Node("store", (count,), {"slot": 0}, output))
    program = Program(
        nodes=tuple(nodes),
        state_names=("s",),
        data_names=tuple(f"d{slot}" for slot in range(len(data))),
        schedule_names=(),
        batch_size=batch,
    )
    return program, inputs_of(data, torch.device("cpu"))


def inputs_of(data: list[torch.Tensor], device: torch.device) -> StepInputs:
    return StepInputs(states=[], data=data, schedule=torch.zeros(0), seed=0, step=0, device=device)


def executed(run: object, program: Program) -> Found:
    """What a run gives, held against what it gives up to where it stops."""
    assert callable(run)
    try:
        result = run()
    except NonFiniteError as error:
        assert program.nodes[error.operator].op == program.nodes[len(program.nodes) - 4].op, error
        return error.element
    return list(from_torch(result.states[0].cpu()).items)


def check_here(name: str, case: Case, directory: Path, rng: Random) -> Found:
    """Plain, planned, following a log, without one, in micro-batches, in parts, in fewer bits."""
    expected = right(name, case)
    program, inputs = program_of(name, case, rng)
    executor, recorder = Executor(program), Recorder(4)
    found = executed(lambda: executor.run(inputs, recorder), program)
    assert same(found, expected), (name, found, expected, case)
    log = recorder.take()
    observed = executed(lambda: executor.run(inputs, Recorder(4), observe=lambda *_: None), program)
    assert same(observed, expected), (name, observed, expected, case)
    follower = Follower(4, 0.5, np.random.default_rng(0))
    follower.follow(0, log if isinstance(expected, list) else None)
    assert same(executed(lambda: executor.run(inputs, follower), program), expected), (name, case)
    assert not follower.findings, (name, follower.findings, case)
    if samples_of(program) > 1:
        cut = MicrobatchExecutor(program, min(2, samples_of(program)), directory)
        follower.follow(0, log if isinstance(expected, list) else None)
        assert same(executed(lambda: cut.run(inputs, follower), program), expected), (name, case)
        assert not follower.findings, (name, follower.findings, case)
    for narrow in (27, 31):
        few = Executor(program, narrow)
        found = executed(lambda few=few: few.run(inputs, Recorder(4, few.bits)), program)
        assert same(found, right(name, case, narrow)), (name, narrow, found, case)
    in_parts(name, case, expected, log.get(len(case.inputs)))
    return expected


def same(found: Found, expected: Found) -> bool:
    """A function's element that fixed point does not decide is not compared."""
    if isinstance(found, list) and isinstance(expected, list) and len(expected) < len(found):
        return True
    return found == expected


BATCH_AXES = {"matmul": (1, 0), "sum": (0,), "scatter_add": (0, 0), "conv2d_grad_weight": (0, 0)}


def in_parts(name: str, case: Case, expected: Found, log: object) -> None:
    """Sums over a first (for products: the summed) axis, one index at a time."""
    operator = REGISTRY[name]
    if not isinstance(operator, Summation) or case.inputs[0].ndim < 1:
        return
    first = case.inputs[0]
    axes = BATCH_AXES[name] if name != "matmul" else (first.ndim - 1, first.ndim - 2)
    summed = {"sum": 0 in case.attributes.get("dims", ()), "scatter_add": case.attributes.get("dim") == 0}
    if not summed.get(name, True):
        return
    count = first.shape[axes[0]]
    terms = operator.terms([tuple(x.shape) for x in case.inputs], case.attributes)

    def read(number: int) -> list[torch.Tensor]:
        return [x.narrow(axis, number, 1) for x, axis in zip(case.inputs, axes, strict=True)]

    parts = InParts(operator, terms, count, read)
    follower = Follower.of_nobody(4)
    rounded, finite = follower.round(0, parts, (), case.attributes)
    assert finite == isinstance(expected, list), (name, case)
    items = list(from_torch(rounded).items)
    if isinstance(expected, int):
        assert next(e for e, bits in enumerate(items) if not ieee.is_finite(bits)) == expected, (name, case)
    else:
        assert items == expected, (name, case)


def check_many(name: str, count: int, directory: Path) -> tuple[int, int]:
    rng = Random(f"infinities {name} {count}")
    runs = stops = 0
    for nan in (False, True):
        for case in hostile(name, rng, count, nan):
            found = check_here(name, case, directory, rng)
            runs, stops = runs + isinstance(found, list), stops + isinstance(found, int)
    return runs, stops


@pytest.mark.parametrize("name", INEXACT)
def test_the_engine_stops_where_the_contract_has_no_value_and_nowhere_else(name: str, tmp_path: Path) -> None:
    runs, stops = check_many(name, NUMBERS, tmp_path)
    assert runs and stops, (runs, stops)


@pytest.mark.slow
@pytest.mark.parametrize("name", INEXACT)
def test_many_more_cases_do(name: str, tmp_path: Path) -> None:
    check_many(name, 120, tmp_path)


def work(count: str) -> None:
    """In a process of its own: all operators on a device that is not the CPU."""
    foreign_device.install()
    told = {}
    for name in INEXACT:
        rng = Random(f"infinities elsewhere {name}")
        runs = stops = 0
        for case in hostile(name, rng, int(count), nan=True):
            expected = right(name, case)
            program, inputs = program_of(name, case, rng)
            with foreign_device.foreign():
                device = torch.device(foreign_device.NAME, 0)
                there = inputs_of([x.to(device) for x in inputs.data], device)
                found = executed(lambda p=program, t=there: Executor(p).run(t, Recorder(4)), program)
            assert same(found, expected), (name, found, expected, case)
            runs, stops = runs + isinstance(expected, list), stops + isinstance(expected, int)
        told[name] = [runs, stops]
    print(json.dumps(told))


def test_a_device_stops_there_too() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = f"import test_infinities; test_infinities.work('{NUMBERS}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == set(INEXACT), told
    assert sum(runs > 0 for runs, _ in told.values()) > 10 < sum(stops > 0 for _, stops in told.values()), told
