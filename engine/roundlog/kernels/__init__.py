"""Loops over whole tensors on the CPU, compiled by numba or, as numba does it, by LLVM: one read where torch needs ten.

They know nothing of operators. Each does what a reference in torch does, to the bit, and is tested against it. They are
compiled without fast-math: every + - x / and conversion is the IEEE 754 one, in the order that is written. FMA is only
where it changes nothing (products of FP32 numbers are exact in FP64), or where a value has an error bound.
"""

from __future__ import annotations

from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba.core import config

from roundlog.kernels.cache import kept_in, place_for

if TYPE_CHECKING:
    import torch


def _import_all() -> None:
    """Import all kernels, with a place for their machine code that is named after the sources of all of them."""
    folder = Path(__file__).parent
    sources = sorted(folder.glob("*.py"))
    digest = sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    settings: Any = config
    with kept_in(place_for(folder, digest, settings.CACHE_DIR)):
        for source in sources:
            if source.stem != "__init__":
                import_module(f"{__name__}.{source.stem}")


_import_all()

from roundlog.kernels.threads import own_threads  # noqa: E402  (kernels are imported first, with a place for their code)

__all__ = ["own_threads", "works"]


def works(device: torch.device) -> bool:
    """Whether there are compiled kernels for this device in `roundlog.kernels.cuda`, which is loaded for such a device
    only."""
    if device.type != "cuda":
        return False
    from roundlog.kernels import cuda

    return cuda.works(device)
