"""Products are computed in the vectors that the processor has and that the process may use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch
from roundlog.kernels import gemm_microkernel

PROCESSORS = [
    ("x86_64-unknown-linux-gnu", "generic", 2),
    ("x86_64-unknown-linux-gnu", "nehalem", 2),
    # AVX, but no FMA.
    ("x86_64-unknown-linux-gnu", "ivybridge", 2),
    ("x86_64-unknown-linux-gnu", "haswell", 4),
    ("x86_64-unknown-linux-gnu", "znver3", 4),
    ("x86_64-unknown-linux-gnu", "skylake-avx512", 8),
    ("x86_64-unknown-linux-gnu", "znver4", 8),
    ("aarch64-unknown-linux-gnu", "generic", 2),
    ("aarch64-unknown-linux-gnu", "neoverse-v1", 2),
]


@pytest.mark.parametrize(("triple", "name", "lanes"), PROCESSORS)
def test_llvm_is_asked_for_what_a_processor_multiplies_and_adds_at_once(triple: str, name: str, lanes: int) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, features="", opt=2)
    assert gemm_microkernel.fused(machine) == lanes


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


@pytest.mark.slow
@pytest.mark.skipif(gemm_microkernel.tile_lanes() < 4, reason="this processor has no AVX2")
@pytest.mark.parametrize(
    ("settings", "lanes"),
    [
        ({"ATEN_CPU_CAPABILITY": "avx2"}, 4),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}, 4),
        ({"ATEN_CPU_CAPABILITY": "default"}, 2),
        ({"NUMBA_CPU_NAME": "generic"}, 2),
    ],
)
def test_settings_of_a_process_decide_how_it_multiplies(settings: dict[str, str], lanes: int) -> None:
    told = "from roundlog.kernels.gemm_microkernel import tile_lanes; print(tile_lanes())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ATEN_", "NUMBA_CPU_"))}
    run = [sys.executable, "-c", told]
    found = subprocess.run(run, env=kept | settings, cwd=Path.cwd(), capture_output=True, text=True, check=True)
    assert int(found.stdout) == lanes
