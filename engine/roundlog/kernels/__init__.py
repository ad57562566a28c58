"""Loops over whole tensors on the CPU, compiled by numba or, as numba does it, by LLVM: one read where torch needs ten.

They know nothing of operators but the numbers of a tape's instructions. Each does what a reference in torch does, to
the bit, and is tested against it. They are compiled without fast-math: every + - x / and conversion is the IEEE 754
one, in the order that is written. FMA is only where it changes nothing (products of FP32 numbers are exact in FP64), or
where a value has an error bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba.core import config

from roundlog.definitions import opcodes
from roundlog.kernels.cache import kept_in, place_for

if TYPE_CHECKING:
    import torch


def _import_all() -> None:
    """Import all kernels, with a place for their machine code that is named after what it is made of."""
    folder = Path(__file__).parent
    sources = sorted(folder.glob("*.py"))
    settings: Any = config
    with kept_in(place_for(folder, digest(sources), settings.CACHE_DIR)):
        for source in sources:
            if source.stem != "__init__":
                import_module(f"{__name__}.{source.stem}")


def digest(sources: Sequence[Path]) -> str:
    """SHA-256 of the sources of all kernels and of the numbers from elsewhere that are constants in them."""
    return sha256(b"\0".join([repr(opcodes()).encode(), *(source.read_bytes() for source in sources)])).hexdigest()


_import_all()

from roundlog.kernels.threads import own_threads  # noqa: E402  (kernels are imported first, with a place for their code)

__all__ = ["has_kernels", "own_threads"]


def has_kernels(device: torch.device) -> bool:
    """Whether there are compiled kernels for this device in `roundlog.kernels.cuda`, which is loaded for such a device
    only."""
    if device.type != "cuda":
        return False
    from roundlog.kernels import cuda

    return cuda.has_kernels(device)
