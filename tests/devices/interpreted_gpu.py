"""A GPU for Triton that is none: kernels are compiled for one, and what the compiler makes of them is interpreted, on
tensors of the CPU."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.devices.ptx_machine import execute
from tests.devices.ptx_program import PtxProgram, parse
from tests.engine.kernels.tensor_core_devices import TensorCores

ARITHMETICS = {80: "ampere", 89: "ampere", 90: "hopper", 100: "hopper"}
"""Arithmetics of tensor cores, by the compute capability that is compiled for."""
SHARED = {80: 166912, 89: 101376, 90: 232448, 100: 232448}
"""Most bytes of shared memory of a block (table 27 of the CUDA programming guide)."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    program: PtxProgram
    grid: int
    parameters: tuple[bytes, ...]
    tensors: tuple[torch.Tensor, ...]
    shared: int
    cores: dict[str, TensorCores]

    def run(self, order: int = 0, first: int = 0) -> None:
        """Execute it. first: of its blocks."""
        execute(self.program, range(first, self.grid), self.parameters, self.tensors, self.shared, self.cores, order)


class InterpretedGpu:
    """The driver of Triton that stands for it. It is a process's only one."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.utils = self
        self.play: Callable[[Launch], None] = Launch.run
        """What is done with a launch."""
        self.open: dict[str, Any] = {}
        """What docs/arithmetic.md leaves open of tensor cores, as `TensorCores` has it."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED[self.capability]}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """ptxas has made the binary; nobody runs it."""
        return 1, 1, 0, 0, 1024

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        from triton.runtime.cache import get_cache_manager

        path = get_cache_manager(metadata.hash).get_file(f"{metadata.name}.ptx")
        program = parse(Path(str(path)).read_text())

        def launch(across: int, down: int, deep: int, *rest: Any) -> None:
            assert down == deep == 1
            arguments = list(_flat(source.signature.values(), rest[6:]))
            tensors = tuple(one for _, one in arguments if isinstance(one, torch.Tensor))
            # Two pointers follow, to memory of which no kernel here has any.
            values = tuple(_bytes(kind, one) for kind, one in (*arguments, ("i64", 0), ("i64", 0)))
            name = ARITHMETICS[self.capability]
            cores = {format: TensorCores.of(name, format, **self.open) for format in ("bf16", "f16")}
            self.play(Launch(program, across, values, tensors, metadata.shared, cores))

        return launch


def _flat(kinds: Any, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Types and values of a kernel's arguments, without those that are compiled into it."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, value)
        elif kind != "constexpr":
            yield kind, getattr(value, "raw", value)


def _bytes(kind: str, value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return value.data_ptr().to_bytes(8, "little")
    if kind in ("fp32", "fp64"):
        return struct.pack("<f" if kind == "fp32" else "<d", value)
    return (int(value) & (1 << 64) - 1).to_bytes(8, "little")[: int(kind[1:]) // 8]


def interpret_compiled(capability: int, cache: str) -> None:
    """Make this process, which has not imported Triton, compile for a GPU and interpret what comes out."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    from triton.runtime import driver

    driver.set_active(InterpretedGpu(capability))


def gpu() -> InterpretedGpu:
    """Return this process's."""
    from triton.runtime import driver

    found = driver.active
    assert isinstance(found, InterpretedGpu)
    return found
