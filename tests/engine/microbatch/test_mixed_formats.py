"""Programs whose values are FP32, BF16 and FP16: every executor and every auditor comes to what the operators' meanings
say, worked out by a second implementation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.commitments import state_root, tensor_root
from roundlog.execution import Executor, IndexRangeError, NonFiniteError, StepResult, slicing
from roundlog.execution.microbatch import MicrobatchExecutor
from roundlog.execution.microbatch.analysis import samples_of
from roundlog.number_format import narrow_float32
from roundlog.program import DType, Node, Program, TensorType
from roundlog.rounding import Follower, Recorder

from tests.engine.microbatch.random_programs import ALL_FORMATS, Made, make_mixed
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.by_verifier import values_of


def check_by_oracle(seed: int) -> None:
    """Holds every value of a program, in program order and fused, against the oracle's."""
    made = make_mixed(seed)
    right = values_of(made.program, made.inputs)

    def see(index: int, value: torch.Tensor) -> None:
        assert from_torch(value) == right[index], (seed, made.program.describe(index))

    in_order = Executor(made.program).run(made.inputs, Recorder(4), see)
    in_groups = Executor(made.program).run(made.inputs, Recorder(4))
    assert as_result(in_order) == as_result(in_groups), seed


def as_result(result: StepResult) -> tuple[bytes, float, list[torch.dtype]]:
    return state_root(result.states), result.loss, [state.dtype for state in result.states]


@pytest.mark.parametrize("seed", range(4))
def test_every_value_is_what_the_meaning_of_its_operator_says(seed: int) -> None:
    check_by_oracle(seed)


@pytest.mark.slow
def test_values_of_more_programs_are_right() -> None:
    for seed in range(8, 40):
        check_by_oracle(seed)


def check_executors(made: Made, directory: Path, bits: int = 32) -> None:
    """Holds executors and auditors against each other. bits: of FP32 values."""
    seed, kind = made.inputs.seed, narrow_float32(bits)
    whole, recorder = Executor(made.program, kind), Recorder(4)
    right = as_result(whole.run(made.inputs, recorder))
    log = recorder.take()
    executors: list[Any] = [whole]
    executors += [
        MicrobatchExecutor(made.program, count, directory, kind) for count in range(2, samples_of(made.program) + 1)
    ]
    seen: list[list[bytes]] = []
    for executor in executors:
        roots: list[bytes] = []
        executor.run(made.inputs, Follower.without_log(4), lambda _, x, roots=roots: roots.append(tensor_root(x)))
        seen.append(roots)
        assert roots == seen[0], seed
        assert as_result(executor.run(made.inputs, Follower.without_log(4))) == right, seed
        for share in (0.0, 0.5, 1.0):
            follower = Follower(4, share, np.random.default_rng(seed))
            follower.follow(made.inputs.step, log)
            assert as_result(executor.run(made.inputs, follower)) == right, (seed, share)
            assert follower.findings == []


@pytest.mark.slow_but("1")
@pytest.mark.parametrize("seed", [1, 3])
def test_executors_and_auditors_come_to_the_same_bits(seed: int, tmp_path: Path) -> None:
    check_executors(make_mixed(seed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "always_in_parts"), [(26, False), (32, True)])
def test_executors_and_auditors_agree_about_more_programs(
    bits: int, always_in_parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """always_in_parts: wherever a sum can be taken part by part, even if that needs more memory."""
    if always_in_parts:
        monkeypatch.setattr(slicing, "bytes_in_parts", lambda *given: -1)
    for seed in range(4, 10):
        check_executors(make_mixed(seed), tmp_path, bits)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_a_step_stops_alike_in_every_format(dtype: DType, tmp_path: Path) -> None:
    """At an index that is out of range, and at a number that overflows in this format alone."""
    form = dtype.number_format()
    assert form is not None
    for wrong, index, number in ((IndexRangeError, 7, 1.0), (NonFiniteError, 1, form.largest)):
        kind = TensorType((4, 2), dtype)
        nodes = (
            Node("data", (), {"slot": 0}, kind, "made.py:1"),
            Node("data", (), {"slot": 1}, TensorType((4, 1), DType.I64), "made.py:2"),
            Node("gather", (0, 1), {"dim": 1}, TensorType((4, 1), dtype), "made.py:3"),
            Node("add", (2, 2), {}, TensorType((4, 1), dtype), "made.py:4"),
            Node("to_f32", (3,), {}, TensorType((4, 1), DType.F32), "made.py:5"),
            Node("constant", (), {"bits": (0,)}, TensorType((), DType.F32), "made.py:6"),
            Node("loss", (5,), {}, TensorType((), DType.F32), "made.py:7"),
            Node("store", (3,), {"slot": 0}, TensorType((4, 1), dtype), "made.py:8"),
            Node("store", (4,), {"slot": 1}, TensorType((4, 1), DType.F32), "made.py:9"),
        )
        program = Program(nodes=nodes, state_names=("s", "t"), data_names=("x", "i"), schedule_names=(), batch_size=4)
        x = torch.ones(4, 2, dtype=dtype.torch_dtype)
        x[2, 1] = number
        indices = torch.tensor([[0], [1], [index], [0]])
        inputs = replace(make_mixed(0).inputs, data=[x, indices])
        said = set()
        for executor in (Executor(program), *(MicrobatchExecutor(program, count, tmp_path) for count in (2, 4))):
            with pytest.raises(wrong) as error:
                executor.run(inputs, Recorder(4))
            said.add((error.value.operator, error.value.element, str(error.value)))
            assert error.value.output.dtype == dtype.torch_dtype
        assert len(said) == 1, said


def test_the_programs_have_every_operator_in_every_format() -> None:
    """Else the tests above would be vacuous."""
    operators: dict[str, set[DType]] = {}
    for seed in range(80):
        nodes = make_mixed(seed).program.nodes
        for node in nodes:
            for value in node.inputs:
                operators.setdefault(node.op, set()).add(nodes[value].type.dtype)
    everywhere = {name for name, dtypes in operators.items() if dtypes >= set(ALL_FORMATS)}
    assert everywhere >= {
        *("sum", "matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_weight", "scatter_add", "tanh", "exp", "erf"),
        *("add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "floor", "sqrt", "lt", "le", "eq", "where"),
        *("reshape", "permute", "expand", "slice", "flip", "cat", "pad", "gather", "take", "amax", "amin", "argmax"),
        *("max_pool_index", "store"),
    }
    for dtype in ALL_FORMATS:
        assert operators[f"to_{dtype}"] >= {*ALL_FORMATS, DType.BOOL} - {dtype}
