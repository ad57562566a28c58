"""Cases of layers with weights of their own: attention, experts, recurrent layers, norms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.capture.lowered_cases import group, modules

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
