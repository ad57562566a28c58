"""Hardware profiles: what the kernels' libraries may use of the processor, and a device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

_DECIDED_HERE = ("ATEN_", "MKL_", "ONEDNN_", "OMP_", "OPENBLAS_", "NUMBA_")


@dataclass(frozen=True, slots=True)
class Machine:
    """A hardware profile: what the kernels' libraries read when a process starts, and where it computes."""

    threads: int
    variables: Mapping[str, str]
    device: str = "cpu"
    interpreter: tuple[str, ...] = (sys.executable,)
    """Beginning of the command that starts its Python."""

    def missing(self) -> str | None:
        """Reason why this machine is not here, if it is not."""
        if self.device == "cuda" and not torch.cuda.is_available():
            return "no CUDA device is here"
        return None

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DECIDED_HERE)}
        # Threads that wait sleep instead of spinning; no influence on any result.
        threads = {"OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        return kept | threads | dict(self.variables)

    def run(self, *arguments: str, hours: float = 3.0) -> str:
        """Standard output of a Python process that is this machine. Raises RuntimeError if it fails."""
        done = subprocess.run(
            [*self.interpreter, *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=3600 * hours,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"a process that was to be another machine failed:\n{done.stderr}")
        return done.stdout


_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
_OLD = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Prescott"}

WITHOUT_AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    # Without the second, numba would keep all features that the processor has.
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "",
    # Not MKL_CBWR, which slows plain steps.
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""A processor with AVX2 and FMA, 16 vector registers, for measurements: at full speed, whatever bits come of it."""


def without_avx512(option: str = "--without-avx512") -> None:
    """Start this script anew, if its command line has the option, as on a processor without AVX-512: libraries read
    such settings while they are loaded."""
    if option in sys.argv:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "NUMBA_CPU_"))}
        arguments = [sys.executable, *(argument for argument in sys.argv if argument != option)]
        os.execve(sys.executable, arguments, kept | WITHOUT_AVX512)


MACHINES: dict[str, Machine] = {
    "native": Machine(2, {}),
    "native, one thread": Machine(1, {}),
    "AVX2": Machine(2, _AVX2),
    "AVX2, one thread": Machine(1, _AVX2),
    "compatible": Machine(1, {**_OLD, "ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "SSE4.2": Machine(
        2,
        {
            "ATEN_CPU_CAPABILITY": "default",
            "MKL_CBWR": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
            "ONEDNN_MAX_CPU_ISA": "SSE41",
        },
    ),
    "native, compatible BLAS": Machine(1, {"MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Prescott"}),
    "generic": Machine(2, {**_OLD, "NUMBA_CPU_NAME": "generic"}),
    "CUDA": Machine(1, {}, device="cuda"),
}
