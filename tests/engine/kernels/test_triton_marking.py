"""Triton's kernels do what the torch reference does, to the bit: on a CUDA device, or in Triton's interpreter, which
runs them on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import pytest
import torch
from roundlog.kernels import cuda
from roundlog.operators import bounds as marking
from roundlog.operators.bounds import (
    Ambiguous,
    Bound,
    FullBound,
    RelativeBound,
    mark_by_reference,
    mark_by_triton,
)

from tests.engine.kernels.test_marking import SPECIAL, bounds, values
from tests.engine.kernels.triton_processes import needs_triton

Mark = Callable[[torch.Tensor, Bound, float], tuple[torch.Tensor, Ambiguous]]


@pytest.fixture(scope="module")
def by_triton(request: pytest.FixtureRequest) -> Mark:
    if torch.cuda.is_available():
        return _on_device
    pool = request.getfixturevalue("interpreter")
    return lambda y, bound, scale: pool.submit(mark_by_triton, y, bound, scale).result()


def _on_device(y: torch.Tensor, bound: Bound, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    parts = {name: getattr(bound, name) for name in type(bound).__slots__}
    there = type(bound)(**{name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in parts.items()})
    rounded, marked = mark_by_triton(y.cuda(), there, scale)
    return rounded.cpu(), Ambiguous(marked.indices.cpu(), marked.y.cpu(), marked.d.cpu())


def same(found: tuple[torch.Tensor, Ambiguous], expected: tuple[torch.Tensor, Ambiguous]) -> bool:
    """True if they are equal to the bit, but for the many kinds of NaN."""
    (rounded, marked), (right, near) = found, expected
    pairs = [(rounded, right), (marked.indices, near.indices), (marked.y, near.y), (marked.d, near.d)]
    return all(a.shape == b.shape and torch.equal(_words(a), _words(b)) for a, b in pairs)


def _words(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    return torch.where(x.isnan(), torch.nan, x).view(torch.int32 if x.dtype == torch.float32 else torch.int64)


@needs_triton
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (4, 1, 9000), (1, 8, 128), (1, 1, 1025)])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_marking_is_the_references_to_the_bit(by_triton: Mark, shape: tuple[int, ...], scale: float) -> None:
    y = values(shape, 1)
    for bound in bounds(y, 2):
        expected = mark_by_reference(y, bound, scale)
        assert len(expected[1].indices) or isinstance(bound, RelativeBound)
        assert same(by_triton(y, bound, scale), expected), bound


@needs_triton
def test_every_special_value_is_rounded_and_marked_as_the_reference_does(by_triton: Mark) -> None:
    y = torch.tensor(SPECIAL, dtype=torch.float64)
    assert len(mark_by_reference(y, RelativeBound(0.0), 1.0)[1].indices) not in (0, len(y))
    for bound in (RelativeBound(0.0), RelativeBound(2.0**-49, 2.0**-1000), FullBound(torch.full_like(y, 2.0**-160))):
        for scale in (1.0, 4.0):
            assert same(by_triton(y, bound, scale), mark_by_reference(y, bound, scale))


@needs_triton
def test_nothing_is_contracted(by_triton: Mark) -> None:
    """The lower end of an interval is so near to a boundary here that an FMA would round it to another number."""
    generator = torch.Generator().manual_seed(5)
    y, boundary = (torch.rand(2000, dtype=torch.float64, generator=generator) + shift for shift in (1.0, 0.25))
    boundary = boundary.float().double() + 2.0**-26
    factor = 1 + 2.0**-40
    d = (y - boundary - y * 2.0**-52) / factor
    # The reach on a machine with FMA: one product, rounded, is added to the other one as it is.
    pairs = zip(d.tolist(), (y * 2.0**-52).tolist(), strict=True)
    reach = [float(Fraction(a) * Fraction(factor) + Fraction(b)) for a, b in pairs]
    contracted = y - torch.tensor(reach, dtype=torch.float64)
    expected = mark_by_reference(y, FullBound(d), 1.0)
    assert (contracted.float() != expected[0]).any()
    assert same(by_triton(y, FullBound(d), 1.0), expected)


@needs_triton
def test_the_kernels_are_tried_on_a_few_numbers_before_they_are_used(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(cuda.marking_agrees, torch.device("cpu")).result()
    assert not interpreter.submit(_agrees_with_flushed_subnormals).result()


def _agrees_with_flushed_subnormals() -> bool:
    from roundlog.kernels.cuda import triton_kernels as kernels

    right = kernels._round

    def flushing(v, bound, factor):  # type: ignore[no-untyped-def]
        low, marked = right(v, bound, factor)
        return kernels.tl.where(kernels.tl.abs(low) < 2.0**-126, 0.0, low), marked

    kernels._round = flushing
    try:
        return cuda.marking_agrees(torch.device("cpu"))
    finally:
        kernels._round = right


@pytest.mark.parametrize("failing", ["marking_agrees", "tape_agrees", "philox_agrees"])
def test_without_triton_or_where_it_fails_the_reference_marks(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert not cuda.has_kernels.__wrapped__(device)
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    for name in ("marking_agrees", "tape_agrees", "philox_agrees"):
        monkeypatch.setattr(cuda, name, lambda device: True)
    assert cuda.has_kernels.__wrapped__(device)

    def fails(device: torch.device) -> bool:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(cuda, failing, fails)
    with pytest.warns(UserWarning, match="no compiler"):
        assert not cuda.has_kernels.__wrapped__(device)
    monkeypatch.setattr(cuda, failing, lambda device: False)
    with pytest.warns(UserWarning, match="IEEE 754"):
        assert not cuda.has_kernels.__wrapped__(device)


@pytest.mark.parametrize(("works", "chosen"), [(True, "mark_by_triton"), (False, "mark_by_reference")])
def test_a_tensor_on_cuda_is_marked_by_triton_where_it_works(
    monkeypatch: pytest.MonkeyPatch, works: bool, chosen: str
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    nothing = Ambiguous(torch.empty(0, dtype=torch.int64), *torch.empty(2, 0, dtype=torch.float64))
    made: list[tuple[str, tuple[torch.Tensor, Ambiguous]]] = []

    def by(name: str, y: torch.Tensor) -> tuple[torch.Tensor, Ambiguous]:
        made.append((name, (y.float(), nothing)))
        return made[-1][1]

    for name in ("mark_by_triton", "mark_by_reference"):
        monkeypatch.setattr(marking, name, lambda y, bound, scale, name=name: by(name, y))
    monkeypatch.setattr(marking, "has_kernels", lambda device: works)
    with FakeTensorMode():
        for size, expected in ((3, chosen), (0, "mark_by_reference")):
            y = torch.empty(size, dtype=torch.float64, device="cuda")
            rounded, marked = marking.mark(y, RelativeBound(0.0), 1.0)
            name, (whole, few) = made.pop()
            assert (name, made) == (expected, []) and rounded is whole and marked is few
