"""The choice of a token by logits: greedy, or drawn, as `transformers` chooses. Shapes: B sequences, L positions, a
vocabulary of V."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from roundlog.capture.errors import CaptureError

_MOST = 1 << 20
"""Most tokens to draw from, as receipts have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The choice of a token. temperature: 0 takes the likeliest one, the first of several; above 0, one is drawn from
    softmax(logits / temperature). top_k: of the k likeliest ones; 0: of all. top_p: of the fewest that have that share
    together. repetition_penalty: divides logits of tokens that were there before, or multiplies negative ones (Keskar
    et al. 2019, CTRL)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Raises CaptureError for numbers that choose no token."""
        for name, fits, allowed in (
            # Logits are finite after the division, too.
            ("temperature", self.temperature == 0 or 2**-100 <= self.temperature < math.inf, "0, or at least 2^-100"),
            ("top_k", 0 <= self.top_k <= _MOST, f"0 to {_MOST}"),
            ("top_p", 2**-100 <= self.top_p <= 1, "at least 2^-100, up to 1"),
            ("repetition_penalty", 2**-100 <= self.repetition_penalty < math.inf, "at least 2^-100"),
        ):
            if not fits:
                raise CaptureError(f"{name} is {getattr(self, name)!r}: give a number, {allowed}")
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise CaptureError("top_k and top_p are for tokens that are drawn: give a temperature above 0 with them")

    def choose(self, logits: torch.Tensor, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The next tokens, i64[B], by logits f32[B, V] behind the tokens i64[B, L] up to a position, i64[]."""
        if self.repetition_penalty != 1:
            # Places behind this one hold no token that could have been repeated.
            written = torch.arange(tokens.shape[1]) <= position
            before = torch.where(written, tokens, tokens[:, :1])
            count = torch.zeros_like(logits).scatter_add(1, before, torch.ones(before.shape))
            less = torch.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
            logits = torch.where(count > 0, less, logits)
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits / self.temperature
        if not self.top_k and self.top_p == 1:
            return torch.multinomial(logits.softmax(-1), 1)[:, 0]
        count_of_k = min(self.top_k or logits.shape[-1], logits.shape[-1])
        likeliest, order = logits.topk(count_of_k)
        shares = likeliest.softmax(-1)
        # The first tokens that have top_p together: one is kept if those before it have less.
        kept = torch.where(shares.cumsum(-1) - shares < self.top_p, shares, 0.0)
        return order.gather(1, torch.multinomial(kept, 1))[:, 0]


class TokenSampler(nn.Module):
    """The choice of one token by itself. Its step takes logits f32[1, V] behind the token at a position of i64[1, L],
    writes the token that it chooses behind it, and leaves log-probabilities in place of logits. The draws of step t are
    those of step t of a job that generates with the same seed."""

    logits: torch.Tensor
    tokens: torch.Tensor
    position: torch.Tensor
    chosen: torch.Tensor

    def __init__(self, sampling: Sampling, vocabulary: int, length: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self._how = sampling
        self.register_buffer("logits", torch.zeros(1, vocabulary))
        self.register_buffer("tokens", torch.zeros(1, length, dtype=torch.int64))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("chosen", torch.zeros(1, dtype=torch.int64))

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            logits = self.logits.clone()
            chosen = self._how.choose(logits, self.tokens, self.position)
            self.logits.copy_(logits.log_softmax(-1))
            self.position.add_(1)
            self.tokens.scatter_(1, self.position.expand(1, 1), chosen[:, None])
            self.chosen.copy_(chosen)
        return self.unused
