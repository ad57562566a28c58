"""What Triton compiles for A100, H100 and B200, executed instruction by instruction, gives the processor's bits:
marking, random numbers, and chains of elementwise operators."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from roundlog.definitions import opcodes
from roundlog.kernels import tape as of
from roundlog.kernels.machine_code import Chain, TapeOperand
from roundlog.kernels.tape import BF16, BOOL, F32, Tape
from roundlog.operators.bounds import Ambiguous, FullBound, RelativeBound, mark_by_reference, mark_by_triton
from roundlog.randomness import philox_word, stream_key, uniform

from tests.devices.interpreted_gpu import Launch, gpu
from tests.devices.ptx_program import UnknownPtxError
from tests.engine.kernels.test_marking import SPECIAL, bounds, values
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = needs_triton

FAR = (1 << 31) - 77
"""A block that a grid can have, and whose elements are more than 32 bits can count."""


def same(found: tuple[torch.Tensor, Ambiguous], expected: tuple[torch.Tensor, Ambiguous]) -> bool:
    """True if they are equal to the bit, but for the many kinds of NaN."""
    (rounded, marked), (right, near) = found, expected
    pairs = [(rounded, right), (marked.indices, near.indices), (marked.y, near.y), (marked.d, near.d)]
    return all(a.shape == b.shape and torch.equal(_words(a), _words(b)) for a, b in pairs)


def _words(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    return torch.where(x.isnan(), torch.nan, x).view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def wrongly_marked(shape: tuple[int, ...] | None) -> list[str]:
    """Bounds and scales by which some numbers are marked otherwise than by the reference."""
    y = torch.tensor(SPECIAL, dtype=torch.float64) if shape is None else values(shape, 1)
    some = [RelativeBound(0.0), RelativeBound(2.0**-49, 2.0**-1000), FullBound(torch.full_like(y, 2.0**-160))]
    return [
        f"{bound} {scale}"
        for bound in (some if shape is None else bounds(y, 2)[-2:])
        for scale in (1.0, 4.0)
        if not same(mark_by_triton(y, bound, scale), mark_by_reference(y, bound, scale))
    ]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (1, 8, 128), (1, 1, 5001), None], ids=str)
def test_marking_is_the_references(gpu_process: ProcessPoolExecutor, shape: tuple[int, ...] | None) -> None:
    assert gpu_process.submit(wrongly_marked, shape).result() == []


def moved(launch: Launch, pointers: dict[int, int], first: int = FAR) -> None:
    """Execute two blocks of a huge grid. pointers: bytes that a block takes of memory, by places of parameters."""

    def back(place: int, value: bytes) -> bytes:
        shift = pointers.get(place, 0) * first
        return (int.from_bytes(value, "little") - shift & (1 << 64) - 1).to_bytes(8, "little") if shift else value

    parameters = tuple(back(place, value) for place, value in enumerate(launch.parameters))
    replace(launch, grid=first + 2, parameters=parameters).run(first=first)


def far_away() -> list[torch.Tensor]:
    """Two blocks of random numbers, and two of rounded numbers with their counts, far beyond 2^32 elements."""
    from roundlog.kernels.cuda import triton_kernels as kernels

    random = torch.empty(2048)
    gpu().play = lambda launch: moved(launch, {0: 4096})
    kernels._uniform[(1,)](random, (FAR + 2) * 1024, *stream_key(3, 1, 4), enable_fp_fusion=False)
    y = values((1, 1, 2048), 5).reshape(-1)
    d, out, counts = y.abs() * 2.0**-30, torch.empty(2048), torch.empty(16, dtype=torch.int32)
    gpu().play = lambda launch: moved(launch, {0: 8192, 1: 8192, 2: 4096, 3: 32})
    size = FAR * 1024 + 2047
    kernels._round_and_count[(1,)](
        y, d, out, counts, size, 0.0, 0.0, 1.0, form=kernels.FULL, enable_fp_fusion=False
    )  # fmt: skip
    ends = counts.cumsum(0)
    indices, near, limits = (torch.empty(int(ends[-1]), dtype=x) for x in (torch.int64, torch.float64, torch.float64))
    gpu().play = lambda launch: moved(launch, {0: 8192, 1: 8192, 2: 32, 3: 64})
    kernels._collect[(1,)](
        y, d, counts, ends, indices, near, limits, size, 0.0, 0.0, 1.0, form=kernels.FULL, enable_fp_fusion=False
    )  # fmt: skip
    gpu().play = Launch.run
    return [random, y, d, out, indices, near, limits]


def test_places_beyond_32_bits_are_right(gpu_process: ProcessPoolExecutor) -> None:
    random, y, d, out, indices, near, limits = gpu_process.submit(far_away).result()
    for element in (0, 1, 1023, 1024, 2047):
        assert random[element] * 2**24 == philox_word(3, 1, 4, FAR * 1024 + element) >> 8
    expected = mark_by_reference(y[:-1], FullBound(d[:-1]), 1.0)
    assert same((out[:-1], Ambiguous(indices - FAR * 1024, near, limits)), expected) and len(indices) > 50


def random_numbers(key: tuple[int, int], size: int) -> torch.Tensor:
    from roundlog.kernels.cuda import triton_kernels as kernels

    return kernels.uniform(key, size, torch.device("cpu"))


@pytest.mark.parametrize("size", [1, 9, 1025, 5000])
@pytest.mark.parametrize("place", [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**32 - 1)])
def test_random_numbers_are_the_same(gpu_process: ProcessPoolExecutor, place: tuple[int, int, int], size: int) -> None:
    found = gpu_process.submit(random_numbers, stream_key(*place), size).result()
    assert torch.equal(found, uniform(*place, (size,)))


HOSTILE = [0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 1.0, -2.5, 1 + 2.0**-23, 3e38, math.inf, -math.inf, math.nan]
PATTERNS = {(1, 1): 1, (1, 60): 60, (60, 7): 7, (7, 60): 60}
"""How inputs smaller than the output are read, and how large they are."""


def input_of(rng: np.random.Generator, kind: int, size: int) -> torch.Tensor:
    if kind == BOOL:
        return torch.from_numpy(rng.random(size) < 0.5)
    some = rng.standard_normal(size) * 2.0 ** rng.integers(-140, 120, size)
    numbers = np.where(rng.random(size) < 0.5, some, rng.choice(HOSTILE, size)).astype(np.float32)
    return torch.from_numpy(numbers).to(torch.bfloat16 if kind == BF16 else torch.float32)


DTYPES = {F32: torch.float32, BOOL: torch.bool, BF16: torch.bfloat16}
SIZE = 1260


def played(seed: int) -> list[tuple[str, bool]]:
    """(Kind of an output, whether it is the processor's) of a random tape, and whether both found it not finite."""
    from roundlog.kernels.cuda import triton_kernels as kernels

    rng = np.random.default_rng(seed)
    kinds = [(F32, BOOL, BF16)[(seed + i) % 3] for i in range(6)]
    patterns = [(1, SIZE), *PATTERNS, (1, SIZE)]
    inputs = [input_of(rng, kind, PATTERNS.get(how, SIZE)) for kind, how in zip(kinds, patterns, strict=True)]
    codes = rng.permutation([*opcodes().values(), *opcodes().values()])
    rows = []
    for place, code in enumerate(codes.tolist()):
        a, b, c = rng.integers(0, 6 + place, 3).tolist()
        rows.append((code, a, b, c, int(rng.random() < 0.02)))
    # Every product is added to something as well, which a compiler would like to do at once.
    for place, row in enumerate(rows[:]):
        if row[0] == of.MUL:
            rows.append((of.ADD, 6 + place, 0, 0, 0))
    written = [(F32, BOOL)[place % 5 == 0] for place in range(len(rows))]
    written = [BF16 if row[0] == of.ROUND else kind for row, kind in zip(rows, written, strict=True)]
    tape = Tape(tuple(rows), tuple(range(6, 6 + len(rows))))
    here = [torch.empty(SIZE, dtype=DTYPES[kind]) for kind in written]
    there = [torch.empty_like(x) for x in here]
    chain = Chain(tape, [TapeOperand(kind, *how) for kind, how in zip(kinds, patterns, strict=True)], written, SIZE)
    fine = chain.play([x.data_ptr() for x in inputs], [x.data_ptr() for x in here])
    bad = torch.zeros(1, dtype=torch.int32)
    kernels.play(tape, inputs, patterns, there, bad)
    found = [(str(x.dtype), _alike(x, y)) for x, y in zip(here, there, strict=True)]
    return [*found, ("finite", fine == (not bad.any()))]


def _alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether they have the same bits, any NaN being as good as another."""
    if x.dtype == torch.bool:
        return torch.equal(x, y)
    words = torch.int32 if x.dtype == torch.float32 else torch.int16
    return torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num().view(words), y.nan_to_num().view(words))


@pytest.mark.parametrize("seed", range(3))
def test_tapes_are_the_processors(gpu_process: ProcessPoolExecutor, seed: int) -> None:
    found = gpu_process.submit(played, seed).result()
    assert all(right for _, right in found), found
    assert {kind for kind, _ in found} == {"torch.float32", "torch.bool", "torch.bfloat16", "finite"}


def fused() -> str:
    from roundlog.kernels.cuda import triton_kernels as kernels

    y = torch.ones(9, dtype=torch.float64)
    try:
        kernels._round_and_count[(1,)](y, y, y.float(), y.int(), 9, 0.0, 0.0, 1.0, form=0, enable_fp_fusion=True)
    except UnknownPtxError as error:
        return str(error)
    return "nothing"


def test_a_device_would_contract_products_if_it_might(gpu_process: ProcessPoolExecutor) -> None:
    assert gpu_process.submit(fused).result() == "mul.f64"
