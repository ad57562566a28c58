"""Facts of this machine that need no PyTorch: its processor, instructions, cores, memory, system, NVIDIA's driver."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tiebreak.process_resources import usable_memory

_MOST_READ = 1 << 20
_MOST_TEXT = 200

_INSTRUCTIONS: Mapping[str, str] = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "asimd": "NEON",
    "bf16": "BF16",
}
"""The kernel's names of instructions that the engine's kernels have code for, or look for, and usual ones."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A machine, as its system describes it. `instructions`: None where the system does not say. `cores`: those that
    this process may use, of `all_cores`. `usable_bytes`: memory that a run may take at present; `memory_bytes`: all
    that is built in, 0 where unknown. `driver`: version of NVIDIA's kernel module, empty where there is none."""

    processor: str
    architecture: str
    instructions: tuple[str, ...] | None
    cores: int
    all_cores: int
    usable_bytes: int
    memory_bytes: int
    system: str
    python: str
    driver: str


def host_facts(root: Path = Path("/")) -> HostFacts:
    """Return the facts of this machine. `root` is there for tests."""
    lines = _read(root / "proc/cpuinfo").splitlines()
    found = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
    flags = found.get("flags", found.get("Features"))
    total = re.search(r"^MemTotal:\s*(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    # Linux alone tells which cores a process may use.
    allowed = getattr(os, "sched_getaffinity", None)
    all_cores = os.cpu_count() or 1
    return HostFacts(
        processor=(found.get("model name") or platform.processor() or "unknown")[:_MOST_TEXT],
        architecture=platform.machine(),
        instructions=None if flags is None else _named(flags.split()),
        cores=len(allowed(0)) if allowed is not None else all_cores,
        all_cores=all_cores,
        usable_bytes=usable_memory(root),
        memory_bytes=1024 * int(total[1]) if total else 0,
        system=f"{platform.system()} {platform.release()}"[:_MOST_TEXT],
        python=platform.python_version(),
        driver=_driver(_read(root / "proc/driver/nvidia/version")),
    )


def _named(flags: list[str]) -> tuple[str, ...]:
    return tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags)


def _driver(text: str) -> str:
    """Return the version in a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...`."""
    match = re.search(r"Kernel Module\D*?(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""


def _read(path: Path) -> str:
    """Return the text of a file of the system; empty where it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return file.read(_MOST_READ)
    except OSError:
        return ""
