"""Vector registers that products may be summed up in: how many FP64 numbers they hold."""

from __future__ import annotations

import os
import platform
from functools import cache

import llvmlite.binding as llvm
import torch

from roundlog.kernels.gemm_microkernel import TILES
from roundlog.kernels.machine_code import target_machine

_MULTIPLY_ADD = """
declare <{0} x double> @llvm.fmuladd.v{0}f64(<{0} x double>, <{0} x double>, <{0} x double>)
define void @f(ptr %to, <{0} x double> %a, <{0} x double> %b, <{0} x double> %c) {{
  %d = call <{0} x double> @llvm.fmuladd.v{0}f64(<{0} x double> %a, <{0} x double> %b, <{0} x double> %c)
  store <{0} x double> %d, ptr %to
  ret void
}}
"""
_INSTRUCTIONS = {8: ("vfmadd", "%zmm"), 4: ("vfmadd", "%ymm"), 2: ("fmla", ".2d")}
"""An instruction that multiplies and adds so many numbers, and its registers, in assembly."""

_BY_ATEN = {"AVX512": 8, "AVX2": 4}


def fused(machine: llvm.TargetMachine) -> int:
    """Most FP64 numbers that LLVM multiplies and adds by one instruction of a machine; 0 if there is none."""
    for lanes, (name, registers) in _INSTRUCTIONS.items():
        lines = machine.emit_assembly(llvm.parse_assembly(_MULTIPLY_ADD.format(lanes))).splitlines()
        if any(name in line and registers in line for line in lines):
            return lanes
    return 0


@cache
def tile_lanes() -> int:
    """Lanes of the tiles that this process multiplies by; 0: none, numpy's BLAS multiplies. ATEN_CPU_CAPABILITY, which
    decides for torch's kernels, may allow fewer than the processor that numba compiles for has, or none."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        # torch has one set of kernels for what every such processor has.
        allowed = 0 if os.environ.get("ATEN_CPU_CAPABILITY") == "default" else 2
    else:
        allowed = _BY_ATEN.get(torch.backends.cpu.get_cpu_capability(), 0)
    lanes = min(allowed, fused(target_machine())) if allowed else 0
    return lanes if lanes in TILES else 0
