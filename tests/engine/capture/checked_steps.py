"""Steps that check their own values: `assert` as Python compiles it, which pytest does not leave as it is in tests."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def asserts(y: Tensor) -> Tensor:
    assert torch.isfinite(y).all()
    assert not y.isnan().any() and y.abs().max() < 1e9, "too large"
    assert -1e9 < y.min() < 1e9
    return torch.tanh(y)


def raises(y: Tensor) -> Tensor:
    if torch.isnan(y).any() or torch.isinf(y).any():
        print("not finite")
        raise ValueError(f"the values are {y}")
    if not (y < 1e9).all():
        raise ValueError
    return torch.tanh(y)


def raises_otherwise(y: Tensor) -> Tensor:
    if y.abs().max() < 1e9:
        y = torch.tanh(y)
    else:
        raise ValueError
    return y


def asserts_in_a_context(y: Tensor) -> Tensor:
    with torch.no_grad():
        assert (y < 1e9).all()
    return torch.tanh(y)


def raises_by_number(y: Tensor) -> Tensor:
    if (y > 1e9).sum().item() > 3:
        raise ValueError("too many")
    return torch.tanh(y)


def raises_in_a_loop(y: Tensor) -> Tensor:
    for row in y:
        if row.sum() > 1e9:
            raise ValueError
    return torch.tanh(y)


def asserts_in_a_checkpoint(y: Tensor) -> Tensor:
    return checkpoint(asserts, y, use_reentrant=True)  # type: ignore[no-any-return]


def raises_in_a_hook(y: Tensor) -> Tensor:
    y = torch.tanh(y)
    y.register_hook(raises_if_too_large)
    return y


def raises_if_too_large(gradient: Tensor) -> None:
    if (gradient > 1e9).any():
        raise ValueError


def catches(y: Tensor) -> Tensor:
    try:
        assert (y < 1e9).all()
    except AssertionError:
        y = y * 0
    return torch.tanh(y)


def catches_of_a_function(y: Tensor) -> Tensor:
    try:
        return asserts(y)
    except AssertionError:
        return y


def suppresses(y: Tensor) -> Tensor:
    with contextlib.suppress(AssertionError):
        assert (y < 1e9).all()
        y = torch.tanh(y)
    return y


def reacts(y: Tensor) -> Tensor:
    if y.sum() > 1e9:
        y = y * 0
    return torch.tanh(y)


def returns(y: Tensor) -> Tensor:
    if y.sum() > 1e9:
        if y.sum() > 2e9:
            return y
        raise ValueError
    return torch.tanh(y)


def replaces_nan(y: Tensor) -> Tensor:
    if torch.isnan(y).any():
        y = torch.zeros_like(y)
    return torch.tanh(y)
