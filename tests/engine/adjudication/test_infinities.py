"""Infinities, NaN and zeros in the inputs of every operator, in every executor: every element has the bits that the
contract computes, and that the oracle says. Otherwise a trainer with another executor could take the bonds of honest
auditors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import Answer, DisputedStep, NoAnswer, adjudicate
from roundlog.arithmetic import format_of
from roundlog.commitments import canonical
from roundlog.execution import Executor, StepResult
from roundlog.execution.microbatch import MicrobatchExecutor
from roundlog.execution.microbatch.analysis import samples_of
from roundlog.number_format import narrow_float32
from roundlog.operators import REGISTRY, OperatorKind, Source, StepInputs, Summation
from roundlog.operators.elementwise import check_narrow
from roundlog.operators.summation import InParts
from roundlog.program import DType, Node, Program, ProgramError, TensorType
from roundlog.rounding import Follower, Recorder
from roundlog.rounding.ovt import ThresholdFollower, ThresholdRecorder

from tests.engine.adjudication.adjudication_cases import Bits, descriptor_of, kind_of
from tests.engine.operators.hostile_numbers import INEXACT, hostile, spoilt
from tests.engine.operators.operator_cases import CASES, Case
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.by_verifier import DIRECT
from tests.engine.oracle.inexact import INEXACT as ORACLE
from tests.engine.running import foreign_device

STEP = DisputedStep(step=0, seed=0, batch_size=1, data_rows=1)
NUMBERS = 6
"""Cases of an operator, twice: without NaN and with it."""
SCALAR = TensorType((), DType.F32)
OPERATORS = sorted(
    name
    for name, operator in REGISTRY.items()
    if not isinstance(operator, Source) and name not in ("loss", "store", "sum_i64", "any")
)

Found = list[int]
"""All elements: FP32 as bits."""


def cases_of(name: str, rng: Random, count: int, nan: bool) -> list[Case]:
    if name in INEXACT:
        return list(hostile(name, rng, count, nan))
    known = [case for case in CASES[name](rng) if all(0 < x.numel() < 400 for x in case.inputs)]
    return [
        Case([spoilt(x, rng, nan) if x.is_floating_point() else x for x in case.inputs], case.attributes)
        for case in (rng.choice(known) for _ in range(count))
    ]


def right(name: str, case: Case, bits: int = 32) -> Found:
    """Right results by the reference that mirrors the contract, and by the oracle, which has to say the same; by the
    oracle alone where the contract does not decide a function."""
    case = Case([canonical(x) for x in case.inputs], case.attributes)
    descriptor, chunks = descriptor_of(name, case.inputs, case.attributes), Bits(case.inputs)
    step = replace(STEP, rounding_bits=bits)
    answers: list[Answer] = [adjudicate(descriptor, e, step, chunks) for e in range(descriptor.elements)]
    if bits == 32:
        arrays = [from_torch(x) for x in case.inputs]
        if name in ORACLE:
            said = [real.rounded for real in ORACLE[name](arrays, case.attributes)[1]]
        else:
            said = list(DIRECT[name](arrays, case.attributes).items)
        for answer, says in zip(answers, said, strict=True):
            assert answer == says or answer is NoAnswer.UNDECIDED, (name, answer, says, case)
        return said
    assert not any(answer is NoAnswer.NO_VALUE for answer in answers), (name, case)
    return [answer for answer in answers if isinstance(answer, int)]


def program_of(name: str, case: Case, rng: Random) -> tuple[Program, StepInputs]:
    """The operator on data where they can be the batch's, on constants elsewhere. What it gives is stored with numbers
    in place of what is not finite, and which those are beside it: a step stops at any other store."""
    nodes: list[Node] = []
    data: list[torch.Tensor] = []

    def add(op: str, *inputs: int, **attributes: object) -> int:
        kinds = [nodes[value].type for value in inputs]
        nodes.append(Node(op, inputs, attributes, REGISTRY[op].infer(kinds, attributes, SCALAR)))  # type: ignore[arg-type]
        return len(nodes) - 1

    batch = case.inputs[0].shape[0] if case.inputs[0].ndim else 1
    for number, x in enumerate(case.inputs):
        fits = x.ndim and x.shape[0] == batch
        if fits and (number == 0 or rng.random() < 0.7):
            nodes.append(Node("data", (), {"slot": len(data)}, kind_of(x)))
            data.append(x)
        else:
            nodes.append(Node("constant", (), {"bits": from_torch(canonical(x)).items}, kind_of(x)))
    result = add(name, *range(len(nodes)), **case.attributes)
    dtype = nodes[result].type.dtype
    stores = [result]
    if dtype.is_float:
        result = result if dtype == DType.F32 else add("to_f32", result)
        zero, plus, minus = (add("constant", bits=(bits,)) for bits in (0, ieee.INFINITY, ieee.INFINITY | ieee.SIGN))
        number = add("lt", add("abs", result), plus)
        kept = add("where", number, result, zero)
        stores = [kept if dtype == DType.F32 else add(f"to_{dtype}", kept), add("eq", result, result)]
        stores += [add("eq", result, plus), add("eq", result, minus)]
    add("loss", add("constant", bits=(0,)))
    for slot, value in enumerate(stores):
        add("store", value, slot=slot)
    program = Program(
        nodes=tuple(nodes),
        state_names=tuple(f"s{slot}" for slot in range(len(stores))),
        data_names=tuple(f"d{slot}" for slot in range(len(data))),
        schedule_names=(),
        batch_size=batch,
    )
    return program, inputs_of(data, torch.device("cpu"))


def inputs_of(data: list[torch.Tensor], device: torch.device) -> StepInputs:
    return StepInputs(states=[], data=data, schedule=torch.zeros(0), seed=0, step=0, device=device)


def stored(result: StepResult) -> Found:
    """Results of the operator, from what `program_of` stores of it."""
    first, *marks = (list(from_torch(state.cpu()).items) for state in result.states)
    if not marks:
        return first
    format = format_of(result.states[0].dtype)
    for element, (is_number, is_plus, is_minus) in enumerate(zip(*marks, strict=True)):
        if not is_number:
            first[element] = format.nan
        if is_plus or is_minus:
            first[element] = format.infinity | (format.sign if is_minus else 0)
    return first


def check_here(name: str, case: Case, directory: Path, rng: Random) -> Found:
    """Plain, planned, following a log, without one, in micro-batches, in parts, in fewer bits, and by thresholds."""
    expected = right(name, case)
    program, inputs = program_of(name, case, rng)
    operator_at = len(case.inputs)

    def check(run: Callable[[], StepResult], wanted: Found, what: str) -> None:
        found = stored(run())
        assert found == wanted, (name, what, found, wanted, case)

    executor, recorder = Executor(program), Recorder(4)
    check(lambda: executor.run(inputs, recorder), expected, "planned")
    log = recorder.take()
    kept: dict[int, torch.Tensor] = {}
    check(lambda: executor.run(inputs, Recorder(4), observe=kept.__setitem__), expected, "observed")
    assert list(from_torch(kept[operator_at]).items) == expected, (name, "as it leaves the step", case)
    passed: list[torch.Tensor] = []
    executor.run_part(inputs, Recorder(4), lambda slot, value: passed.append(value))
    assert stored(StepResult(passed, 0.0)) == expected, (name, "passed on", case)
    follower = Follower(4, 0.5, np.random.default_rng(0))
    follower.follow(0, log)
    check(lambda: executor.run(inputs, follower), expected, "following a log")
    assert not follower.findings, (name, follower.findings, case)
    if samples_of(program) > 1:
        cut = MicrobatchExecutor(program, min(2, samples_of(program)), directory)
        follower.follow(0, log)
        check(lambda: cut.run(inputs, follower), expected, "in micro-batches")
        assert not follower.findings, (name, follower.findings, case)
    for narrow in (27, 31):
        try:
            check_narrow(program, [REGISTRY[node.op] for node in program.nodes], narrow_float32(narrow))
        except ProgramError:
            continue
        few = Executor(program, narrow_float32(narrow))
        if name in INEXACT:
            found = stored(few.run(inputs, Recorder(4)))
            wanted = right(name, case, narrow)
            # An element of a function that fixed point does not decide is not compared.
            assert found == wanted or len(wanted) < len(found), (name, narrow, found, wanted, case)
        by_threshold(few, inputs)
    in_parts(name, case, expected)
    return expected


def by_threshold(executor: Executor, inputs: StepInputs) -> None:
    """The published policy does not stop where numbers are not finite, and follows its own log to the same bits."""
    recorder, follower = ThresholdRecorder(), ThresholdFollower(4)
    trained = stored(executor.run(inputs, recorder))
    follower.follow(0, recorder.take())
    assert stored(executor.run(inputs, follower)) == trained
    assert not follower.findings


BATCH_AXES = {"matmul": (1, 0), "sum": (0,), "scatter_add": (0, 0), "conv2d_grad_weight": (0, 0)}


def in_parts(name: str, case: Case, expected: Found) -> None:
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
    rounded = Follower.without_log(4).round(0, parts, (), case.attributes)
    assert list(from_torch(canonical(rounded)).items) == expected, (name, case)


def not_finite(name: str, found: Found) -> bool:
    return REGISTRY[name].kind != OperatorKind.MOVEMENT and any(bits & 0x7F800000 == 0x7F800000 for bits in found)


def check_many(name: str, count: int, directory: Path) -> tuple[int, int]:
    """(cases, those of them with an element that is not finite)."""
    rng = Random(f"infinities {name} {count}")
    found = [
        check_here(name, case, directory, rng) for nan in (False, True) for case in cases_of(name, rng, count, nan)
    ]
    return len(found), sum(not_finite(name, one) for one in found)


@pytest.mark.slow_but("add", "amax", "conv2d", "div", "exp", "log", "matmul", "maximum", "sum", "tanh")
@pytest.mark.parametrize("name", OPERATORS)
def test_every_executor_gives_the_bits_that_the_contract_computes(name: str, tmp_path: Path) -> None:
    cases, with_infinities = check_many(name, NUMBERS, tmp_path)
    assert cases == 2 * NUMBERS
    if name in INEXACT and name not in ("tanh", "erf"):
        assert with_infinities, name


def work(count: str) -> None:
    """In a process of its own: all operators on a device that is not the CPU."""
    foreign_device.install()
    told = {}
    for name in OPERATORS:
        rng = Random(f"infinities elsewhere {name}")
        special = 0
        for case in cases_of(name, rng, int(count), nan=True):
            expected = right(name, case)
            program, inputs = program_of(name, case, rng)
            with foreign_device.foreign():
                device = torch.device(foreign_device.NAME, 0)
                there = inputs_of([x.to(device) for x in inputs.data], device)
                found = stored(Executor(program).run(there, Recorder(4)))
            assert found == expected, (name, found, expected, case)
            special += not_finite(name, expected)
        told[name] = special
    print(json.dumps(told))


@pytest.mark.slow
def test_a_device_gives_them_too() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = f"from tests.engine.adjudication import test_infinities; test_infinities.work('{NUMBERS}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told) == set(OPERATORS), told
    assert sum(special > 0 for special in told.values()) > 20, told
