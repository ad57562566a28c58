"""Tensors that are put aside in a file come back as they were."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from roundlog.data.spill_file import SpillFile
from roundlog.training.trial import _Promoted

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "numbers": lambda: torch.tensor([[1.5, -0.0], [torch.inf, torch.nan]]),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(3, 4)),
    "a transposed one": lambda: torch.arange(12).reshape(3, 4).T,
    "an expanded one": lambda: torch.tensor([2.0], dtype=torch.float64).expand(5, 3),
    "a column": lambda: torch.arange(12).reshape(3, 4)[:, 1],
    "one number, expanded": lambda: torch.tensor(2.0).expand(1, 1),
    "nothing": lambda: torch.empty(0, 3),
    "one number": lambda: torch.tensor(7, dtype=torch.int32),
    "truth values": lambda: torch.tensor([True, False, True]),
    "half a number": lambda: torch.randn(7).to(torch.bfloat16),
}


@pytest.mark.parametrize("in_fp64", [False, True])
def test_tensors_come_back_as_they_were(in_fp64: bool) -> None:
    """Under a mode, too, that has every operator give FP64."""
    made = [make() for make in TENSORS.values()]
    with _Promoted(torch.float64) if in_fp64 else nullcontext():
        file = SpillFile("some numbers")
        put = [file.put(tensor) for tensor in made]
        back = [one.tensor() for one in reversed(put)][::-1]
    for was, found in zip(made, back, strict=True):
        assert (found.shape, found.dtype, found.is_contiguous()) == (was.shape, was.dtype, True)
        assert not found.requires_grad
        one, two = (x.detach().contiguous().as_strided((x.numel(),), (1,)) for x in (was, found))
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def test_what_is_put_aside_outlives_its_file_object(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = (SpillFile("some numbers").put(torch.full((1000,), value)) for value in (1.0, 2.0))
    gc.collect()
    assert bool((first.tensor() == 1).all()) and bool((second.tensor() == 2).all())
    assert not list(tmp_path.iterdir()), "the files have no names"
