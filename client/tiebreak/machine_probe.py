"""Facts of this machine. Its processor, memory, system and NVIDIA's driver are read here; PyTorch and the engine are
asked in a process of its own, which may crash or hang in a driver: `python -m tiebreak.machine_probe` prints one JSON
object a line, first of PyTorch, then of each device."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.process_resources import system_text, usable_memory

if TYPE_CHECKING:
    import torch

_MOST_TEXT = 300
_MOST_DEVICES = 64

_INSTRUCTIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "asimd": "NEON",
    "bf16": "BF16",
}
"""Linux's names of instructions that the engine's kernels have code for, or look for, and usual ones."""


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
    lines = system_text(root / "proc/cpuinfo").splitlines()
    found = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
    flags = found.get("flags", found.get("Features"))
    total = re.search(r"^MemTotal:\s*(\d+) kB$", system_text(root / "proc/meminfo"), re.MULTILINE)
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...
    driver = re.search(
        r"Kernel Module\D*?(?: for \S+)?\s+(\d+(?:\.\d+)+)", system_text(root / "proc/driver/nvidia/version")
    )
    # Linux alone tells which cores a process may use.
    allowed = getattr(os, "sched_getaffinity", None)
    all_cores = os.cpu_count() or 1
    return HostFacts(
        processor=(found.get("model name") or platform.processor() or "unknown")[:_MOST_TEXT],
        architecture=platform.machine(),
        instructions=None
        if flags is None
        else tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags.split()),
        cores=len(allowed(0)) if allowed is not None else all_cores,
        all_cores=all_cores,
        usable_bytes=usable_memory(root),
        memory_bytes=1024 * int(total[1]) if total else 0,
        system=f"{platform.system()} {platform.release()}"[:_MOST_TEXT],
        python=platform.python_version(),
        driver=driver[1] if driver else "",
    )


# The process, seen from outside.

COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "tiebreak.machine_probe")
"""The process that is started."""

_GRACE = 5.0
"""Seconds for the end of processes that were killed. One that a driver holds does not end even then."""


@dataclass(slots=True)
class MachineFindings:
    """Findings of the process until its end. `torch`: None where it has not come so far. `why`: why it ended too
    early, in a clause; empty if it did not."""

    torch: dict[str, Any] | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""


def machine_findings(seconds: float, command: Sequence[str] | None = None) -> MachineFindings:
    """Have a process ask PyTorch, and return its findings at its end, or after so many seconds, when it is killed."""
    out, err, code = output_of(command or COMMAND, seconds)
    found = MachineFindings(why=f"it had not ended after {seconds:g} seconds" if code is None else _reason(code, err))
    for line in out.splitlines():
        content: object = None
        with suppress(ValueError):  # a library has printed it, or it was cut off
            content = json.loads(line)
        if isinstance(content, dict) and "device" in content:
            found.devices.append(content)
        elif isinstance(content, dict) and "version" in content:
            found.torch = content
    if not found.why and (found.torch is None or not found.devices):
        found.why = "it has ended without an answer"
    return found


def output_of(command: Sequence[str], seconds: float) -> tuple[str, str, int | None]:
    """Run a command in a process group of its own, so that the processes that it starts end with it. Return its output,
    its errors and its exit code; None where it was killed after so many seconds.

    The end of a killed one is waited for a few seconds at most: who holds its pipes in another group, or does not end
    although it is killed, is left alone."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=nothing, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    )
    try:
        return *process.communicate(timeout=seconds), process.returncode
    except BaseException as ended:  # Ctrl-C, too, which does not reach a session of its own
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            out = process.communicate(timeout=_GRACE)[0]
        except subprocess.TimeoutExpired as error:
            # These are bytes even where the pipe is one of text.
            out = (error.stdout or b"").decode(errors="replace")
        if not isinstance(ended, subprocess.TimeoutExpired):
            raise
        return out, "", None


def _reason(code: int, err: str) -> str:
    if code <= 0:
        return f"signal {-code} ended it" if code else ""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1][:_MOST_TEXT] if lines else f"it ended with exit code {code}"


# The process itself.


def torch_facts() -> dict[str, Any]:
    """Return PyTorch's version and build, and the engine's kernels on the processor."""
    import torch
    from roundlog.training import kernel_instructions

    can, why = _cuda()
    triton: str | None = None
    with suppress(PackageNotFoundError):
        triton = version("triton")
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": getattr(torch.version, "hip", None),
        "cuda_works": can,
        "why_not": why,
        "triton": triton,
        "threads": torch.get_num_threads(),
        "allowed": torch.backends.cpu.get_cpu_capability(),
        "allowed_by": os.environ.get("ATEN_CPU_CAPABILITY"),
        "kernels": kernel_instructions(),
    }


def device_facts() -> Iterator[dict[str, Any]]:
    """Yield every device, each after its self-test."""
    import torch

    none = {"name": "", "capability": None, "memory_bytes": None, "triton_works": None, "why_not": ""}
    yield _facts(torch.device("cpu")) | none
    for number in range(min(torch.cuda.device_count(), _MOST_DEVICES) if _cuda()[0] else 0):
        device = torch.device("cuda", number)
        properties = torch.cuda.get_device_properties(device)
        found = _facts(device)
        works, why = _triton(device) if found["passes"] else (None, "")
        yield found | {
            "name": str(properties.name),
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": int(properties.total_memory),
            "triton_works": works,
            "why_not": why,
        }


def _facts(device: torch.device) -> dict[str, Any]:
    from roundlog.arithmetic import MachineError, check_machine
    from roundlog.training import supported_arithmetics

    why = ""
    try:
        check_machine(device)
    except MachineError as error:
        why = str(error)[:_MOST_TEXT]
    except Exception as error:  # whatever a driver or a build of PyTorch says
        why = _short(error)
    arithmetics = [asdict(one) for one in supported_arithmetics(device, is_right=not why)]
    return {"device": str(device), "passes": not why, "why": why, "arithmetics": arithmetics}


def _cuda() -> tuple[bool, str]:
    """Return whether PyTorch can use a card of NVIDIA's, and why not, where it was built for them."""
    import torch

    if torch.version.cuda is None:
        return False, ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return True, ""
        try:
            torch.cuda.init()
        except Exception as error:
            return False, _short(error)
    return False, _first_line(said[0].message) if said else "no device is there"


def _triton(device: torch.device) -> tuple[bool, str]:
    from roundlog.kernels import has_kernels

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        works = has_kernels(device)
    return works, _first_line(said[-1].message) if said and not works else ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"[:_MOST_TEXT]


def _first_line(said: object) -> str:
    return str(said).strip().partition("\n")[0][:_MOST_TEXT]


def main() -> None:
    """Print what is found. An error ends the process, and its last line says which."""
    print(json.dumps(torch_facts()), flush=True)
    for device in device_facts():
        print(json.dumps(device), flush=True)


if __name__ == "__main__":
    main()
