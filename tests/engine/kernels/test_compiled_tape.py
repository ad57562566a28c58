"""Machine code of chains: its checks, its parts and its instructions. Its bits are held in test_short_tapes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from roundlog.kernels import machine_code
from roundlog.kernels import tape as of
from roundlog.kernels.machine_code import LANES, Chain, Form, MachineCode, TapeOperand, _Loops
from roundlog.kernels.tape import F32, Tape
from roundlog.kernels.threads import own_threads


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """True if the bits are equal, but for NaN: any is as good as another."""
    nan = a != a
    return bool((nan == (b != b)).all()) and a[~nan].tobytes() == b[~nan].tobytes()


def tape_of(*instructions: tuple[int, int, int, int, int], inputs: int) -> Tape:
    return Tape(instructions, (inputs + len(instructions) - 1,))


@pytest.mark.parametrize("size", [machine_code._CACHED, machine_code._CACHED + 5])
def test_stores_past_the_cache_give_the_same_bits(size: int) -> None:
    x = torch.randn(size)
    tape = tape_of((of.MUL, 0, 0, 0, 1), (of.SQRT, 1, 1, 0, 1), inputs=1)
    operand = TapeOperand(F32, 1, size)
    made = []
    for last in (False, True):
        chained = Chain(tape, [operand], [F32], size, last)
        assert chained._form.streamed == last
        made.append(torch.empty(size))
        assert chained.play([x.data_ptr()], [made[-1].data_ptr()])
    assert same_bits(made[0].numpy(), made[1].numpy())
    # Rows and columns begin anywhere.
    assert not Chain(tape, [TapeOperand(F32, 2, size // 2)], [F32], size, last=True)._form.streamed
    assert not Chain(tape, [TapeOperand(F32, 1, 7)], [F32], size, last=True)._form.streamed


CHECKED: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{of.ADD: torch.add, of.SUB: torch.sub, of.MUL: torch.mul, of.DIV: torch.div, of.SQRT: lambda a, b: a.sqrt()},
    **{of.NEG: lambda a, b: -a, of.ABS: lambda a, b: a.abs(), of.FLOOR: lambda a, b: a.floor()},
    **{of.MAXIMUM: torch.maximum, of.MINIMUM: torch.minimum},
}


@pytest.mark.parametrize("size", [1, LANES + 1])
@pytest.mark.parametrize("code", CHECKED)
def test_a_check_sees_every_element(code: int, size: int) -> None:
    """In vectors and in what is left over."""
    machine = MachineCode(Form(tape_of((code, 0, 1, 0, 1), inputs=2), ((0, F32), (0, F32)), (F32,)))
    for x in (3e38, -3e38, np.inf, -np.inf, np.nan, -1.0, 0.0):
        for y in (3e38, np.inf, np.nan, 0.0, 1.0):
            for spot in range(size):
                a, b, out = torch.ones(3, size)
                a[spot], b[spot] = x, y
                addresses = np.array([part.data_ptr() for part in (a, b, out)])
                found = machine(addresses.ctypes.data, None, 0, size)
                assert found == bool(CHECKED[code](a, b).isfinite().all()), (x, y, spot)


def test_the_code_for_arm_rounds_products_and_compares_as_everywhere() -> None:
    """Its instructions for a product and a sum at once, and for the larger of two (which takes a number for NaN), are
    not used."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    steps = [(of.MUL, 0, 1, 0, 1), (of.ADD, 3, 2, 0, 0), (of.SUB, 2, 3, 0, 0), (of.MAXIMUM, 4, 5, 0, 0)]
    form = Form(tape_of(*steps, inputs=3), ((0, F32),) * 3, (F32,), streamed=True)
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(opt=2)
    words = machine.emit_assembly(llvm.parse_assembly(str(_Loops(form).module))).split()
    assert {"fmul", "fadd", "fsub", "fcmgt", "stnp"} <= set(words)
    assert not {word for word in words if word.startswith(("fmla", "fmls", "fmadd", "fmsub", "fnm", "fmax", "fmin"))}


def test_parts_of_threads_make_the_same_whole() -> None:
    size = 1_000_003
    x = np.arange(size, dtype=np.float32)
    tape = tape_of((of.MUL, 0, 0, 0, 1), inputs=1)
    chained = Chain(tape, [TapeOperand(F32, 1, size)], [F32], size)
    out = np.empty_like(x)
    torch.set_num_threads(3)
    with own_threads():
        assert chained.play([x.ctypes.data], [out.ctypes.data])
        assert same_bits(out, x * x)
        for spot in (0, size // 2, size - 1):
            x[spot] = 2e38
            assert not chained.play([x.ctypes.data], [out.ctypes.data])
            x[spot] = 1.0


@pytest.mark.slow
def test_the_code_for_other_processors_gives_the_same_bits() -> None:
    """Narrower vectors, and functions of the C library where there are no instructions."""
    chosen = [str(Path(__file__).with_name("test_short_tapes.py")), "-k", "random_chains"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:]
