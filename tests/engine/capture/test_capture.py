"""A captured program is the same in every process, has tied weights once, and knows the lines of the user."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from roundlog.capture import capture
from roundlog.descriptors import program_root
from roundlog.program import Program

from tests.engine.tasks import gpt_task


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
