"""The process that asks PyTorch and the engine what this machine can do: `python -m tiebreak.diagnosis.machine_probe`
prints one JSON object a line, first of PyTorch, then of each device."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_MOST_TEXT = 300
_MOST_DEVICES = 64


def main() -> None:
    """Print what is found. An error ends the process, and its last line says which."""
    print(json.dumps(torch_facts()), flush=True)
    for found in device_facts():
        print(json.dumps(found), flush=True)


def torch_facts() -> dict[str, Any]:
    """Return PyTorch's version and build, and the engine's kernels on the processor."""
    import torch
    from roundlog.training import kernel_instructions

    can, why = _cuda()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": getattr(torch.version, "hip", None),
        "cuda_works": can,
        "why_not": why,
        "triton": _installed("triton"),
        "threads": torch.get_num_threads(),
        "allowed": torch.backends.cpu.get_cpu_capability(),
        "allowed_by": os.environ.get("ATEN_CPU_CAPABILITY"),
        "kernels": kernel_instructions(),
    }


def device_facts() -> Iterator[dict[str, Any]]:
    """Yield every device, each after its self-test."""
    import torch

    yield _facts(torch.device("cpu")) | {
        "name": "",
        "capability": None,
        "memory": 0,
        "triton_works": None,
        "why_not": "",
    }
    if not _cuda()[0]:
        return
    for number in range(min(torch.cuda.device_count(), _MOST_DEVICES)):
        device = torch.device("cuda", number)
        properties = torch.cuda.get_device_properties(device)
        found = _facts(device)
        works, why = _triton(device) if found["passes"] else (None, "")
        yield found | {
            "name": str(properties.name),
            "capability": f"{properties.major}.{properties.minor}",
            "memory": int(properties.total_memory),
            "triton_works": works,
            "why_not": why,
        }


def _facts(device: torch.device) -> dict[str, Any]:
    from roundlog.training import supported_arithmetics

    why = _self_test(device)
    return {
        "device": str(device),
        "passes": not why,
        "why": why,
        "arithmetics": [asdict(one) for one in supported_arithmetics(device, is_right=not why)],
    }


def _self_test(device: torch.device) -> str:
    """Return why a device does not compute as it has to; empty if it does."""
    from roundlog.arithmetic import MachineError, check_machine

    try:
        check_machine(device)
    except MachineError as error:
        return str(error)[:_MOST_TEXT]
    except Exception as error:  # whatever a driver or a build of PyTorch says
        return _short(error)
    return ""


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
    return False, str(said[0].message).partition("\n")[0][:_MOST_TEXT] if said else "no device is there"


def _triton(device: torch.device) -> tuple[bool, str]:
    from roundlog.training import compiled_kernels_work

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        works = compiled_kernels_work(device)
    return works, str(said[-1].message).partition("\n")[0][:_MOST_TEXT] if said and not works else ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:_MOST_TEXT]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
