"""A captured program is the same in every process, has tied weights once, knows the lines of the user, and computes
beforehand what depends on neither batch nor state."""

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

from tests.engine.capture.calls import Calls, linear_through
from tests.engine.tasks import gpt_task, small_task
from tests.engine.trainings import train_by_program, train_by_pytorch


@functools.cache
def of_gpt() -> Program:
    return capture(gpt_task).program


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


@pytest.mark.slow
def test_a_large_constant_becomes_a_state_that_stays() -> None:
    big = torch.linspace(0, 1, 60).outer(torch.linspace(1, 2, 60))
    model = Calls(lambda x: (x[0, 0] * big).mean() + (big[1:] * x[1, 0]).cos().mean() + (x * big[:4, :6]).mean())
    slow = torch.optim.SGD(model.parameters(), lr=0.01)
    task = small_task(model, lambda m, b: m(b["x"]), {"x": torch.randn(4, 6)}, steps=3, optimizer=slow)
    job = Job.from_task(lambda: task)
    assert [name for name in job.initial if name.startswith("constant/")] == ["constant/0", "constant/1"]
    theirs, ours = train_by_pytorch(task, 3), train_by_program(job, 3)
    torch.testing.assert_close(ours["parameter/linear.weight"], theirs["parameter/linear.weight"])
    assert all(torch.equal(ours[name], job.initial[name]) for name in job.initial if name.startswith("constant/"))


def test_what_depends_on_nothing_is_computed_at_capture() -> None:
    def by_distance(x: torch.Tensor) -> torch.Tensor:
        # Logarithms of zero that are then thrown away, and conversions to integers: T5's relative positions.
        distance = torch.arange(6)[None, :] - torch.arange(6)[:, None]
        far = (torch.log(distance.abs().float() / 2) / 0.3).to(torch.int64)
        bucket = torch.where(distance.abs() < 2, distance.abs(), far.clamp(max=5))
        hashed = (bucket * 7) % 5 ^ 3
        return x[:, :6][:, bucket[0]] * hashed.to(x.dtype)[1] * torch.eye(6, dtype=torch.float64).sum()

    linear_through(by_distance)
    task = small_task(Calls(by_distance), lambda m, b: m(b["x"]).sum(), {"x": torch.randn(4, 6)})
    program = capture(lambda: task).program
    assert not {"log", "floor"} & {node.op for node in program.nodes}


def test_a_constant_that_is_written_to_is_not_taken_for_its_first_value() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(6).to(torch.int32).to(torch.float32)
        early = table + 0.0
        view = table[2:4]
        view.mul_(x.detach()[0, :2])
        return x * table * early

    linear_through(write)
