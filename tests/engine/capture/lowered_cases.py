"""Layers with weights of their own, and what is taken apart before it is lowered, in groups that are captured together;
single functions are those of PyTorch's own table (test_opinfo).

A case is the shape of one sample and a function of a batch of them, in whatever precision the batch has; or a module,
whose own parameters are trained too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 4


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    function: Callable[[Tensor], Tensor] | None = None
    module: Callable[[], nn.Module] | None = None
    several: bool = False
    """Whether the module takes the batch more than once (attention)."""


GROUPS: dict[str, dict[str, Case]] = {}


def group(name: str, shape: tuple[int, ...] = (6,), **functions: Callable[[Tensor], Tensor]) -> None:
    GROUPS.setdefault(name, {}).update({key: Case(shape, function) for key, function in functions.items()})


def modules(name: str, shape: tuple[int, ...], *, several: bool = False, **makers: Callable[[], nn.Module]) -> None:
    GROUPS.setdefault(name, {}).update(
        {key: Case(shape, module=maker, several=several) for key, maker in makers.items()}
    )


modules(
    "products",
    (3, 6),
    several=True,
    attention=lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    decoder=lambda: nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
)


class Experts(nn.Module):
    """A mixture of experts, as transformers computes it: tokens sorted by expert, one grouped product."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(8, 3)
        self.experts = nn.Parameter(torch.randn(3, 8, 4))

    def forward(self, x: Tensor) -> Tensor:
        chosen, order = self.choice(x).argmax(1).sort()
        counts = torch.histc(chosen.to(x.dtype), bins=3, min=0, max=2)
        ends = counts.cumsum(0, dtype=torch.int32)
        if x.dtype == torch.float64:  # grouped_mm knows no FP64
            return torch.stack([row @ self.experts[expert] for row, expert in zip(x[order], chosen, strict=True)])
        return F.grouped_mm(x[order], self.experts, offs=ends)


modules("products", (8,), experts=Experts)

modules("recurrent", (3, 6), gru=lambda: nn.GRU(6, 5, batch_first=True), rnn=lambda: nn.RNN(6, 5, batch_first=True))
modules("recurrent", (3, 6), lstm=lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True))
modules("recurrent", (6,), lstm_cell=lambda: nn.LSTMCell(6, 5), gru_cell=lambda: nn.GRUCell(6, 5))

modules(
    "norms",
    (6, 3),
    group_norm=lambda: nn.GroupNorm(2, 6),
    rms=lambda: nn.RMSNorm(3),
    layer=lambda: nn.LayerNorm((6, 3)),
)
modules("norms", (3, 5, 4), instance=lambda: nn.InstanceNorm2d(3, affine=True), batch=lambda: nn.BatchNorm2d(3))
modules("norms", (3, 5, 4), evaluated=lambda: nn.BatchNorm2d(3).eval())
modules("norms", (6,), weight_norm=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
group("norms", (6, 5, 4), local_response=lambda x: F.local_response_norm(x.flatten(2), 3).view_as(x))


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
modules("spectral norm", (6,), parametrized=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))
