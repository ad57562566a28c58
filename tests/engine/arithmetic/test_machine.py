"""A process that does not compute as IEEE 754 says is told so before it computes anything."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from machines.environment_control import NEAREST, ROUNDING, set_rounding
from roundlog.arithmetic import MachineError, check_machine
from roundlog.kernels.threads import in_parts

CPU = torch.device("cpu")
needs_modes = pytest.mark.skipif(not ROUNDING, reason="it is not known how threads of this machine are set")
UP = ROUNDING.get("up")


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


@pytest.mark.parametrize("mode", ROUNDING)
def test_another_rounding_mode_is_noticed(mode: str) -> None:
    set_rounding(ROUNDING[mode])
    try:
        with pytest.raises(MachineError, match="does not round to nearest"):
            check_machine(CPU)
    finally:
        set_rounding(NEAREST)


@pytest.mark.slow
@needs_modes
def test_a_worker_thread_that_rounds_otherwise_is_noticed() -> None:
    # Threads inherit the mode that their maker has at that moment, and keep it when their maker returns to another.
    script = f"""
import ctypes, torch
from roundlog.arithmetic import MachineError, check_machine
torch.set_num_threads(2)
fesetround = ctypes.CDLL(None).fesetround
fesetround({UP})
torch.ones(1 << 20) + 1  # the pool starts
fesetround(0)
try:
    check_machine(torch.device("cpu"))
except MachineError:
    print("noticed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "noticed", done.stderr


KERNELS = """
import ctypes, torch
import numpy as np
from roundlog.arithmetic import MachineError, check_machine
from roundlog.kernels.reducing import sum_rows
torch.set_num_threads(3)
fesetround = ctypes.CDLL(None).fesetround
check_machine(torch.device("cpu"))
{change}
sum_rows(np.ones((8, 1 << 18), dtype=np.float32))  # the kernels' threads start
{back}
try:
    check_machine(torch.device("cpu"))
except MachineError as error:
    print(error)
"""


@pytest.mark.slow
@needs_modes
@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)"),
        (f"fesetround({UP})", "fesetround(0)"),
        ("", ""),
    ],
    ids=["flushing", "upwards", "as it should be"],
)
def test_a_thread_of_the_kernels_whose_maker_computes_otherwise_is_put_right(change: str, back: str) -> None:
    script = KERNELS.format(change=change, back=back)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


FORKED = """
import os, signal
import numpy as np, torch
from roundlog.kernels.reducing import sum_rows
from roundlog.kernels.threads import on_every_thread
torch.set_num_threads(3)
many = np.ones((8, 1 << 18), dtype=np.float32)
sum_rows(many)  # the kernels' threads start
child = os.fork()
if not child:
    signal.alarm(30)
    asked = on_every_thread(lambda: True)
    os._exit(0 if asked and (sum_rows(many).total == 1 << 18).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_was_forked_does_not_wait_for_its_parents_threads() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0", done.stdout + done.stderr


def test_threads_that_are_at_work_can_be_asked_by_several_at_once() -> None:
    works = [threading.Thread(target=lambda: [check_machine(CPU) for _ in range(20)]) for _ in range(4)]
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            in_parts(lambda start, after: None, 8, 1 << 30)

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    busy = threading.Thread(target=compute)
    try:
        for work in (busy, *works):
            work.start()
        for work in works:
            work.join(60)
            assert not work.is_alive()
    finally:
        stop.set()
        busy.join()
        torch.set_num_threads(before)
