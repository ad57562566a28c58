"""Compiled kernels need every barrier that the compiler has put into them, and give the same memory in whatever order
warps and blocks are executed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from roundlog.kernels import cuda
from roundlog.kernels.cuda.bf16_products import DEPTHS
from roundlog.number_format import FLOAT32

from tests.devices.interpreted_gpu import ARITHMETICS, Launch, gpu
from tests.devices.ptx_machine import DivergenceError
from tests.devices.ptx_memory import RaceError
from tests.engine.kernels.tensor_core_cases import arithmetic_of, gaussian
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = needs_triton

ORDERING = (
    *("bar.sync", "bar.warp.sync", "fence.proxy.async.shared::cta", "cp.async.commit_group", "cp.async.wait_group"),
    *("wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned"),
)
CPU = torch.device("cpu")


def _mark() -> None:
    from roundlog.kernels.cuda import triton_kernels as kernels

    # In the second block, some lines have nothing to be marked.
    y = torch.rand(1500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kernels.mark_flat(y, y * 2.0 ** -(torch.arange(1500) // 30), 1.0)


def _multiply(layout: int, native: bool) -> Callable[[], None]:
    def multiply() -> None:
        from roundlog.kernels.cuda import bf16_product_kernels, tensor_core_kernels

        a, b = gaussian("bf16", np.random.default_rng(layout), 19, 205 if native else 45, 35)
        a, b = a.mT.contiguous().mT if layout == 2 else a, b.mT.contiguous().mT if layout == 1 else b
        arithmetic = arithmetic_of(ARITHMETICS[gpu().capability], "bf16")
        tensor_core_kernels.segment_sums(a, b, arithmetic, native)
        if native:
            norms = (torch.ones(1, side, dtype=torch.float64) for side in (19, 35))
            bf16_product_kernels.decide(a[None], b[None], *norms, 2.0**-30, arithmetic, DEPTHS[layout])
            bf16_product_kernels.sum_elements(a[None], b[None], torch.arange(40), 100)

    return multiply


def _multiply_by_integers() -> None:
    from roundlog.kernels.cuda import integer_product_kernels as kernels

    # Three times the terms of a dot, and not all of the columns of a tile.
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=numbers) for shape in ((1, 19, 70), (1, 70, 35)))
    kernels.decide(a, b.mT.contiguous().mT, 2.0**-40, 3, FLOAT32)


WORK: dict[str, Callable[[], object]] = {
    "marking": _mark,
    "tapes and random numbers": lambda: (cuda.tape_agrees(CPU), cuda.philox_agrees(CPU)),
    "products of digits": _multiply_by_integers,
    **{f"products, layout {layout}": _multiply(layout, True) for layout in range(3)},
    **{f"products in integers, layout {layout}": _multiply(layout, False) for layout in range(3)},
}


def launches(work: str) -> list[tuple[Launch, list[torch.Tensor]]]:
    """The launches of some work, and the memory that they found."""
    found: list[tuple[Launch, list[torch.Tensor]]] = []

    def play(launch: Launch) -> None:
        found.append((launch, [one.clone() for one in launch.tensors]))
        launch.run()

    gpu().play = play
    WORK[work]()
    gpu().play = Launch.run
    # A square that is left to tensor cores has nothing to do in integers.
    skipped = "_emulate" if work.startswith("products, ") else ""
    return [(launch, memory) for launch, memory in found if launch.program.name != skipped]


def run(launch: Launch, memory: list[torch.Tensor], order: int = 0) -> None:
    for one, held in zip(launch.tensors, memory, strict=True):
        one.copy_(held)
    launch.run(order)


def unnoticed(work: str) -> tuple[list[str], int]:
    """Instructions that order accesses and that nobody misses, of those that were tried, whose number is returned."""
    found, tried = [], 0
    for launch, memory in launches(work):
        for place in launch.program.places(*ORDERING):
            tried += 1
            try:
                run(replace(launch, program=launch.program.without(place)), memory)
            except RaceError:
                continue
            except DivergenceError:
                if not launch.program.instructions[place].opcode.startswith("bar."):
                    continue
            found.append(f"{launch.program.name}: {place} {launch.program.instructions[place].text}")
    return found, tried


SPARE = {"products of digits": 21}
"""Instructions that a kernel does not need: each copy is a group of its own, and each dot is waited for."""

ONE_LAYOUT = [work for work in WORK if not work.endswith(("1", "2"))]
OTHERS = [pytest.param(work, marks=pytest.mark.slow) for work in WORK if work not in ONE_LAYOUT]


# With tensor memory there are barriers that order its allocation, which no access here depends on.
@pytest.mark.parametrize("gpu_process", [80, 90], ids="sm_{}".format, indirect=True)
@pytest.mark.parametrize("work", [*ONE_LAYOUT, *OTHERS])
def test_without_any_one_of_its_barriers_a_kernel_has_a_race(gpu_process: ProcessPoolExecutor, work: str) -> None:
    found, tried = gpu_process.submit(unnoticed, work).result()
    assert len(found) <= SPARE.get(work, 0) < tried, found


def depending(work: str) -> tuple[list[str], int]:
    """Kernels whose memory depends on the order of warps and blocks, of as many as are returned."""
    found, tried = [], 0
    for launch, memory in launches(work):
        memories = []
        for order in (0, 1, -1):
            run(launch, memory, order)
            memories.append([one.clone().contiguous().view(torch.uint8) for one in launch.tensors])
        tried += 1
        if not all(torch.equal(a, b) for other in memories[1:] for a, b in zip(memories[0], other, strict=True)):
            found.append(launch.program.name)
    return found, tried


@pytest.mark.parametrize("work", [*ONE_LAYOUT, *OTHERS])
def test_the_order_of_warps_and_blocks_does_not_matter(gpu_process: ProcessPoolExecutor, work: str) -> None:
    found, tried = gpu_process.submit(depending, work).result()
    assert found == [] and tried > 0
