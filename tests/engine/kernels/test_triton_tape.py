"""Triton's tapes give the bits that operators give one by one, and stop where they stop: in its interpreter, and, as
far as that can be seen, compiled for a device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
import torch
from roundlog.definitions import opcodes
from roundlog.execution import Executor
from roundlog.execution.executor import Deferred
from roundlog.kernels import cuda
from roundlog.kernels import tape as of

from tests.engine.kernels.triton_processes import interpret, needs_triton

pytestmark = pytest.mark.slow

CHILD = "import sys; from tests.engine.kernels import test_triton_tape as here; sys.exit(here.fuse_with_triton())"


def fuse_with_triton() -> int:
    """The tests of fused chains, in a process whose executor works as on a device."""
    interpret()
    from roundlog.kernels.cuda import triton_kernels as tape

    played, play = [], tape.play

    def counted(*arguments: object) -> None:
        played.append(0)
        play(*arguments)

    def mode(self: Executor, device: torch.device) -> Deferred:
        return Deferred(self._checked, self._in_groups)

    tape.play, Executor._mode = counted, mode  # type: ignore[method-assign]
    # The CPU's way of playing chains does not matter here.
    os.environ["TAPES_BY_TRITON"] = "1"
    files = ("test_fusion.py", "test_short_tapes.py")
    chosen = [*(str(Path(__file__).with_name(name)) for name in files), "-k", "interpreted"]
    failed = pytest.main([*chosen, "-p", "no:cacheprovider", "-W", "ignore"])
    print("tapes:", len(played))
    return int(failed)


@needs_triton
def test_what_holds_of_fused_chains_holds_of_tritons() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert int(re.findall(r"tapes: (\d+)", done.stdout)[0]) > 300
    assert "skipped" not in done.stdout


@needs_triton
def test_every_instruction_is_tried_before_tapes_are_used(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(cuda.tape_agrees, torch.device("cpu")).result()
    for code in (of.ADD, of.DIV, of.SQRT, of.NEG, of.FLOOR, of.ROUND):
        assert not interpreter.submit(_agrees_where_subnormal_numbers_are_flushed, code).result(), code


def _agrees_where_subnormal_numbers_are_flushed(by: int) -> bool:
    """True if results agree where one instruction flushes subnormal numbers, as compilers may have it do.

    by: the code of that instruction."""
    from roundlog.kernels.cuda import triton_kernels as tape

    tl, right = tape.tl, tape._do

    def flushing(code, a, b, c):  # type: ignore[no-untyped-def]
        if code == by:
            a = tl.where(tl.abs(a) < 2.0**-126, a * 0.0, a)
        return right(code, a, b, c)

    tape._do = flushing
    try:
        return cuda.tape_agrees(torch.device("cpu"))
    finally:
        tape._do = right


def _compiled(fusion: bool) -> str:
    """Every instruction, every check, every kind of input and output, for an A100."""
    import triton
    from roundlog.kernels.cuda import triton_kernels as tape
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    instructions = tuple(
        (code, i % 5, (i + 1) % 5, (i + 2) % 5, i % 3) for i, code in enumerate(sorted(opcodes().values()))
    )
    # A product that is added to something: what would be contracted.
    instructions += ((of.ADD, 5 + of.MUL, 0, 0, 0),)
    written = tuple((5 + i, i % 3) for i in range(len(instructions)))
    signature = {
        "inputs": ("*fp32", "*fp32", "*fp32", "*u8", "*i16"),
        "inners": ("i32", "i32", "i64", "i32", "i32"),
        "counts": ("i32", "i32", "i64", "i32", "i32"),
        "outputs": tuple(("*fp32", "*u8", "*i16")[kind] for _, kind in written),
        "bad": "*i32",
        "size": "i64",
        **dict.fromkeys(("code", "written", "kinds", "block"), "constexpr"),
    }
    constants = {
        "code": tuple(chain.from_iterable(instructions)),
        "written": tuple(chain.from_iterable(written)),
        "kinds": (0, 1, 2, 0, 3),
        "block": tape.BLOCK,
    }
    source = ASTSource(tape._play, signature, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": fusion})
    assert len(made.asm["cubin"]) > 1000
    return str(made.asm["ptx"])


@needs_triton
def test_compiled_for_a_device_they_are_ieee_754s_operations(compiler: ProcessPoolExecutor) -> None:
    code = compiler.submit(_compiled, False).result()
    arithmetic = set(re.findall(r"\b(?:add|sub|mul|div|sqrt|rcp|fma|mad)[\w.]*\.f(?:32|64)\b", code))
    assert arithmetic == {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f64", "sqrt.rn.f64"}
    assert "ftz" not in code and "approx" not in code and "cvt.rmi.f64.f64" in code
    assert "fma.rn.f32" in compiler.submit(_compiled, True).result()
