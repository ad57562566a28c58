"""Triton's kernels are tried before they are used, here in Triton's interpreter, and the reference marks where they
fail. What they compute, as they are compiled for devices, is tried in tests/devices."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from roundlog.kernels import cuda
from roundlog.kernels import tape as of
from roundlog.operators import bounds as marking
from roundlog.operators.bounds import (
    Ambiguous,
    RelativeBound,
)

from tests.engine.kernels.triton_processes import needs_triton


@needs_triton
@pytest.mark.parametrize("check", ["marking_agrees", "philox_agrees"])
def test_kernels_are_tried_on_a_few_numbers_before_they_are_used(check: str, interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(getattr(cuda, check), torch.device("cpu")).result()
    assert not interpreter.submit(_agrees_when_spoiled, check).result()


def _agrees_when_spoiled(check: str) -> bool:
    """With subnormals flushed, or random numbers one word further."""
    from roundlog.kernels.cuda import triton_kernels as kernels

    name = {"marking_agrees": "_round", "philox_agrees": "uniform"}[check]
    right = getattr(kernels, name)

    def flushing(v, bound, factor):  # type: ignore[no-untyped-def]
        low, marked = right(v, bound, factor)
        return kernels.tl.where(kernels.tl.abs(low) < 2.0**-126, 0.0, low), marked

    def further(key, size, device):  # type: ignore[no-untyped-def]
        return right(key, size + 1, device)[1:]

    setattr(kernels, name, flushing if name == "_round" else further)
    try:
        agrees: bool = getattr(cuda, check)(torch.device("cpu"))
        return agrees
    finally:
        setattr(kernels, name, right)


@pytest.mark.slow
@needs_triton
def test_every_instruction_is_tried_before_tapes_are_used(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(cuda.tape_agrees, torch.device("cpu")).result()
    for code in (of.ADD, of.DIV, of.SQRT, of.NEG, of.FLOOR, of.ROUND):
        assert not interpreter.submit(_agrees_where_subnormal_numbers_are_flushed, code).result(), code


def _agrees_where_subnormal_numbers_are_flushed(by: int) -> bool:
    """True if results agree where one instruction flushes subnormal numbers, as compilers may have it do.

    by: the code of that instruction."""
    from roundlog.kernels.cuda import triton_kernels as tape

    tl, right = tape.tl, tape._do

    def flushing(code, a, b, c):  # type: ignore[no-untyped-def]
        if code == by:
            a = tl.where(tl.abs(a) < 2.0**-126, a * 0.0, a)
        return right(code, a, b, c)

    tape._do = flushing
    try:
        return cuda.tape_agrees(torch.device("cpu"))
    finally:
        tape._do = right


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
