"""A captured program trains as PyTorch does, and is the same program in every process and after its text."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from roundlog.capture import capture
from roundlog.descriptors import program_root
from roundlog.program import Program
from roundlog.training.job import Job

from tests.engine.tasks import conv_task, gpt_task
from tests.engine.trainings import train_by_program, train_by_pytorch


@functools.cache
def of_gpt() -> Program:
    return capture(gpt_task).program


@pytest.mark.slow_cases("gpt, AdamW")
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(lambda: conv_task(dropout=0.0), id="conv, momentum and weight decay"),
        # The key bias of softmax attention has a gradient of zero, rounded; a large eps keeps Adam from
        # blowing that noise up.
        pytest.param(lambda: gpt_task(dropout=0.0, eps=1e-2), id="gpt, AdamW"),
    ],
)
def test_a_program_trains_as_pytorch_does(task) -> None:
    # The two round differently (that is the point of the project), so equality is not to be had here: what is
    # compared is meaning. Ten FP32 roundings' worth of difference is far below any wrong formula.
    task = task()
    job = Job.from_task(lambda: task)
    theirs, ours = train_by_pytorch(task, 5), train_by_program(job, 5)
    assert set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
        if tensor.dtype == torch.int64:
            assert torch.equal(ours[name], tensor)


def test_tied_weights_are_one_state() -> None:
    names = of_gpt().state_names
    assert "parameter/tokens.weight" in names
    assert "parameter/head.weight" not in names


def test_operators_know_the_users_lines() -> None:
    program = of_gpt()
    lines = [node.source for node in program.nodes if node.op in ("matmul", "erf", "exp")]
    assert all(line.startswith("tasks.py:") for line in lines), lines


@pytest.mark.slow
def test_capture_gives_the_same_program_in_every_process() -> None:
    code = (
        "from tests.engine.tasks import gpt_task; from roundlog.capture import capture; "
        "from roundlog.descriptors import program_root; print(program_root(capture(gpt_task).program).hex())"
    )
    path = str(Path(__file__).parents[3])
    roots = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert roots == {program_root(capture(gpt_task).program).hex()}
