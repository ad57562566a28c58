"""A process that does not compute as IEEE 754 says is told so before it computes anything."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from roundlog.arithmetic import MachineError, check_machine
from roundlog.executor import Executor
from roundlog.operators import StepInputs
from roundlog.program import DType, Node, Program, TensorType
from roundlog.rounding import Recorder

CPU = torch.device("cpu")
X86 = platform.machine() == "x86_64" and sys.platform == "linux"


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)


def test_this_process_passes() -> None:
    check_machine(CPU)


def test_flushing_subnormal_numbers_is_noticed(flushing: None) -> None:
    with pytest.raises(MachineError, match="flushes subnormal numbers to zero"):
        check_machine(CPU)


@pytest.mark.skipif(not X86, reason="the rounding modes below are those of x86-64 under glibc")
@pytest.mark.parametrize("mode", [0x400, 0x800, 0xC00], ids=["down", "up", "towards zero"])
def test_another_rounding_mode_is_noticed(mode: int) -> None:
    fesetround = ctypes.CDLL("libm.so.6").fesetround
    assert fesetround(mode) == 0
    try:
        with pytest.raises(MachineError, match="does not round to nearest"):
            check_machine(CPU)
    finally:
        fesetround(0)


@pytest.mark.skipif(not X86, reason="the rounding modes below are those of x86-64 under glibc")
def test_a_worker_thread_that_rounds_otherwise_is_noticed() -> None:
    # Threads inherit the mode that their maker has at that moment, and keep it when their maker returns to another.
    script = """
import ctypes, torch
from roundlog.arithmetic import MachineError, check_machine
torch.set_num_threads(2)
fesetround = ctypes.CDLL("libm.so.6").fesetround
fesetround(0x800)
torch.ones(1 << 20) + 1  # the pool starts
fesetround(0)
try:
    check_machine(torch.device("cpu"))
except MachineError:
    print("noticed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "noticed", done.stderr


def test_an_executor_refuses_to_run_there(flushing: None) -> None:
    scalar = TensorType((), DType.F32)
    nodes = (Node("constant", (), {"bits": (1,)}, scalar), Node("loss", (0,), {}, scalar))
    program = Program(nodes=nodes, state_names=(), data_names=(), schedule_names=(), batch_size=1)
    inputs = StepInputs(states=[], data=[], schedule=torch.zeros(0), seed=0, step=0, device=CPU)
    with pytest.raises(MachineError):
        Executor(program).run(inputs, Recorder(4))
