"""Products are computed in the vectors that the processor has and that the process may use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import llvmlite.binding as llvm
import pytest
import torch
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.pair_microkernel import adds_pairs, has_pairs

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
PROCESSORS = [
    (X86, "generic", "", 2, False),
    (X86, "ivybridge", "", 2, False),  # AVX, but no FMA
    (X86, "haswell", "", 4, False),
    (X86, "znver3", "", 4, False),
    (X86, "skylake-avx512", "", 8, False),
    (X86, "skylake-avx512", "+avx512bf16", 8, True),
    # What takes a feature away takes along what is built on it.
    (X86, "skylake-avx512", "+avx512bf16,-avx512bw", 8, False),
    (X86, "sapphirerapids", "", 8, True),
    (X86, "znver4", "", 8, True),
    (X86, "znver4", "-avx512f", 4, False),
    (X86, "znver4", "-avx512bf16", 8, False),
    (ARM, "generic", "", 2, False),
    (ARM, "neoverse-v1", "", 2, False),
]


@pytest.mark.parametrize(("triple", "name", "features", "lanes", "pairs"), PROCESSORS)
def test_llvm_is_asked_what_a_processor_computes_at_once(
    triple: str, name: str, features: str, lanes: int, pairs: bool
) -> None:
    """Numbers that it multiplies and adds, and whether it adds two products of BF16 numbers."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, features=features, opt=2)
    assert gemm_microkernel.fused(machine) == lanes
    assert triple == ARM or has_pairs(machine) == pairs


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch has one set of kernels elsewhere")
@pytest.mark.parametrize(
    ("allowed", "has", "lanes"),
    [("AVX512", 8, 8), ("AVX512", 4, 4), ("AVX2", 8, 4), ("AVX2", 4, 4), ("DEFAULT", 8, 2), ("AVX2", 2, 2)],
)
def test_torch_and_numba_both_have_to_allow_vectors(
    allowed: str, has: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: allowed)
    monkeypatch.setattr(gemm_microkernel, "fused", lambda machine: has)
    assert gemm_microkernel.tile_lanes.__wrapped__() == lanes


TOLD = """
import torch
from roundlog.kernels.pair_microkernel import adds_pairs
from roundlog.kernels.gemm_microkernel import tile_lanes
from roundlog.number_format import BFLOAT16
from roundlog.operators import operator
from roundlog.rounding import Recorder
x = torch.ones(16, 256, dtype=torch.bfloat16)
assert (Recorder(4).round(0, operator("matmul"), [x, x.T], {}, BFLOAT16) == 256).all()
print(tile_lanes(), adds_pairs(tile_lanes()))
"""


@pytest.mark.slow
@pytest.mark.skipif(gemm_microkernel.tile_lanes() < 4, reason="this processor has no AVX2")
@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        ({}, gemm_microkernel.tile_lanes()),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, 4),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}, 4),
        pytest.param({"NUMBA_CPU_NAME": "generic"}, 2, marks=pytest.mark.long),
    ],
)
def test_settings_of_a_process_decide_how_it_multiplies(settings: dict[str, str], lanes: int) -> None:
    others = ("ATEN_", "NUMBA_CPU_", "NUMBA_ENABLE_AVX")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    run = [sys.executable, "-c", TOLD]
    found = subprocess.run(run, env=kept | settings, capture_output=True, text=True, check=True)
    assert list(map(int, found.stdout.split())) == [lanes, adds_pairs(lanes)]
