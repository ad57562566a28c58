"""Triton's tapes give the bits that operators give one by one, and stop where they stop: in its interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
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
    os.environ["TAPES_BY_TRITON"] = "1"
    files = ("test_fusion.py", "test_short_tapes.py")
    chosen = [*(str(Path(__file__).with_name(name)) for name in files)]
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
