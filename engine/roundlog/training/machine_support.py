"""A device as this engine uses it: the instructions of its kernels, and for every arithmetic of products whether the
device computes it by itself, has it computed by the processor, or cannot train with it.

No choice of device changes a root. This says what is fast, and why something is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.kernels import has_kernels
from roundlog.kernels.gemm_microkernel import tile_lanes
from roundlog.kernels.pair_microkernel import adds_pairs
from roundlog.operators.job_arithmetic import EXACT
from roundlog.program import DType

_TILES = {8: "AVX-512, 8 FP64 lanes", 4: "AVX2 and FMA, 4 FP64 lanes", 2: "2 FP64 lanes"}


class ArithmeticWay(StrEnum):
    """The way in which products of an arithmetic are computed."""

    NATIVE = "native"
    """By the device."""
    EMULATED = "emulated"
    """By integers that give the bits of another device's tensor cores."""
    NOT = "not"
    """A job with this arithmetic cannot be trained there."""


@dataclass(frozen=True, slots=True)
class ArithmeticSupport:
    """An arithmetic on one device. `by`: the kind of device that computes its products, `cpu` or the device's own;
    empty where nothing does. `formats`: of the operands for which it is defined; others of a job are exact.
    `in_hardware`: whether the device's own tensor cores add as it says; others may still compute the products."""

    name: str
    way: ArithmeticWay
    by: str
    formats: tuple[str, ...]
    in_hardware: bool


def supported_arithmetics(device: torch.device, *, is_right: bool = True) -> list[ArithmeticSupport]:
    """Every arithmetic of a job's products on a device. is_right: whether `roundlog.arithmetic.check_machine` passes
    there; nothing is trained where it does not."""
    own = _of_tensor_cores(device)
    found = []
    for name in (EXACT, *ARITHMETICS):
        formats = tuple(format for format in _formats(name) if format in tuple(DType))
        if not is_right:
            found.append(ArithmeticSupport(name, ArithmeticWay.NOT, "", formats, name == own))
        elif name == EXACT:
            found.append(ArithmeticSupport(name, ArithmeticWay.NATIVE, device.type, formats, False))
        else:
            way, by = _way(device, name, formats)
            found.append(ArithmeticSupport(name, way, by, formats, name == own))
    return found


def _way(device: torch.device, name: str, formats: tuple[str, ...]) -> tuple[ArithmeticWay, str]:
    """The way in which products of tensor cores are computed of all of these formats, and the kind of device. Tries the
    device, once in a process."""
    if not has_kernels(device):
        return ArithmeticWay.EMULATED, "cpu"
    # Not at the top: Triton is an optional extra.
    from roundlog.kernels.cuda.tensor_cores import ProductKernels, verdict

    ways = {verdict(device, name, format).way for format in formats}
    if ways == {ProductKernels.NATIVE}:
        return ArithmeticWay.NATIVE, device.type
    return ArithmeticWay.EMULATED, "cpu" if ProductKernels.NONE in ways else device.type


def kernel_instructions() -> str:
    """The instructions by which this process multiplies matrices on the processor, in words."""
    lanes = tile_lanes()
    pairs = "; pairs of BF16 by VDPBF16PS" if adds_pairs(lanes) == 2 else ""
    return _TILES[lanes] + pairs


def _formats(name: str) -> tuple[str, ...]:
    return ("f32", "bf16", "f16") if name == EXACT else tuple(ARITHMETICS[name].terms)


def _of_tensor_cores(device: torch.device) -> str | None:
    """The arithmetic of a device's tensor cores, if it is known."""
    from roundlog.kernels.cuda.tensor_cores import family

    return family(device) if device.type == "cuda" and torch.cuda.is_available() else None
