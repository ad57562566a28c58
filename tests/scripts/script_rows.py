"""Small data sets of the scripts: 32 rows of random numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def images(size: int = 8) -> dict[str, Tensor]:
    return {"x": torch.randn(32, 3, size, size), "y": torch.randint(4, (32,))}


def rows() -> dict[str, Tensor]:
    return {"x": torch.randn(32, 6), "y": torch.randint(3, (32,))}


def pairs() -> dict[str, Tensor]:
    return {"a": torch.randn(32, 6), "b": torch.randn(32, 6), "same": torch.randint(2, (32,))}


def words() -> dict[str, Tensor]:
    return {"ids": torch.randint(1, 16, (32, 9)), "y": torch.randint(3, (32,)), "length": torch.randint(3, 10, (32,))}
