"""Python may ask a traced tensor for its value where that comes from constants alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.engine.capture.calls import Calls, linear_through, refused

COUNTS = torch.tensor([2, 1, 3])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
LATE = torch.arange(6) % 3 == 1


class Attending(nn.Module):
    """A layer that looks whether its mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(self.layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x[None].expand(6, 6, 6), mask=CAUSAL.to(x.dtype))[0]


KNOWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a branch": lambda x: x if COUNTS.sum() > 3 else -x,
    "a number": lambda x: x * COUNTS.sum().item(),
    "a list": lambda x: sum(x[:n].sum() for n in COUNTS.tolist()) * x,
    "made inside": lambda x: x * float((torch.arange(6) + 2).prod().item()),
    "rows repeated": lambda x: x[:3].repeat_interleave(COUNTS, 0),
    "rows repeated by what is computed": lambda x: x[:3].repeat_interleave(COUNTS * COUNTS[1], 0),
    "marked elements": lambda x: x[LATE].repeat(3, 1) + x[:, LATE].repeat(1, 3),
    "marked elements of a computed mask": lambda x: x[torch.ones(6).cumsum(0) > 3].repeat(2, 1),
    "places of marked elements": lambda x: x[(COUNTS > 1).nonzero().flatten()].repeat(3, 1),
    "a causal mask": Attending(),
}


@pytest.mark.parametrize("what", KNOWN)
def test_it_trains_as_by_pytorch(what: str) -> None:
    linear_through(KNOWN[what])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x ** x.sum().item(),
        lambda x: x * float(torch.rand(())),
        lambda x: x[x[:, 0] > 0].median() * x,
    ],
)
def test_what_depends_on_data_or_chance_is_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    refused(Calls(function), r"depends on values|takes a number out|into numbers of Python")
