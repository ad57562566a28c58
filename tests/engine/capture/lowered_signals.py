"""Rotary embeddings, alignments and bags: what is taken apart before it is lowered."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.capture.lowered_cases import group, modules

ANGLES = torch.arange(3.0)


def turned(x: Tensor) -> Tensor:
    """Rotary embeddings, as Llama 4 has them."""
    factors = torch.polar(torch.ones_like(ANGLES), ANGLES).to(torch.complex128 if x.dtype == torch.double else None)
    return torch.view_as_real(torch.view_as_complex(x.reshape(len(x), 3, 2)) * factors).flatten(1)


PLACES = torch.tensor([2, 0, 1, 2])


def turned_back(x: Tensor) -> Tensor:
    """Back by angles that places choose, an axis of heads beside them."""
    angles = torch.outer(torch.arange(4.0), ANGLES).to(x.dtype)
    factors = torch.complex(angles.cos(), angles.sin())[1:][PLACES].conj().unsqueeze(1).expand(4, 1, 3)
    heads = torch.view_as_complex(x.reshape(len(x), 3, 2)).unsqueeze(1)
    turned = heads.transpose(1, 2) * factors.transpose(1, 2).clone()
    return torch.view_as_real(turned.view(4, 3)).flatten(1)


group("rotary embeddings", turned=turned, turned_back=turned_back)


def aligned(x: Tensor, **options) -> Tensor:
    """CTC over 6 steps of 5 labels, for samples of different lengths."""
    labels = torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 0], [2, 0, 0]])
    steps, lengths = torch.tensor([6, 6, 5, 4]), torch.tensor([3, 3, 2, 1])
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, steps, lengths, **options)


def aligned_in_line(x: Tensor) -> Tensor:
    """With the labels of all samples one after another."""
    labels = torch.tensor([1, 2, 2, 3, 1, 4, 4, 4, 2])
    return F.ctc_loss(x.log_softmax(-1).transpose(0, 1), labels, (6, 6, 5, 4), (3, 3, 2, 1), reduction="sum")


def too_short(x: Tensor) -> Tensor:
    """Two samples cannot be aligned."""
    labels = torch.tensor([[1, 1, 1], [3, 1, 4], [4, 4, 4], [2, 0, 0]])
    steps, lengths = torch.tensor([3, 6, 4, 6]), torch.tensor([3, 3, 3, 1])
    log_probs = x.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probs, labels, steps, lengths, reduction="none", zero_infinity=True)


group(
    "alignments",
    (6, 5),
    mean=aligned,
    each=lambda x: aligned(x, reduction="none", blank=0),
    in_line=aligned_in_line,
    too_short=too_short,
)

WORDS = torch.tensor([[0, 2, 1], [3, 3, 0], [4, 1, 2], [0, 0, 3]])
OFFSETS = torch.tensor([0, 2, 2, 9])


class Bag(nn.Module):
    """An EmbeddingBag over fixed words; with `offsets`, in bags of different sizes, one of them empty."""

    def __init__(self, *, offsets: bool = False, **options) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 6, **options)
        self.offsets = offsets

    def forward(self, x: Tensor) -> Tensor:
        return (self.bag(WORDS.flatten(), OFFSETS) if self.offsets else self.bag(WORDS)) * x


class Padded(nn.Module):
    """An Embedding with a row that pads, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6, padding_idx=-2)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(WORDS).sum(1) * x


modules("bags of embeddings", (6,), one_by_one=Padded)
modules(
    "bags of embeddings",
    (6,),
    summed=lambda: Bag(mode="sum"),
    averaged=Bag,
    without_padding=lambda: Bag(mode="mean", padding_idx=0),
    by_offsets=lambda: Bag(offsets=True, mode="mean"),
)
modules(
    "spectral norm",
    (6,),
    parametrized=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
)
