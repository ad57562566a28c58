"""Starting workers under hardware profiles: one CPU already is several machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROFILES = {
    "native": {},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    "old": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott",
        "OMP_NUM_THREADS": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}

WORKER = Path(__file__).with_name("worker.py")


def start(profile: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    environment = {**os.environ, **PROFILES[profile]}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)
