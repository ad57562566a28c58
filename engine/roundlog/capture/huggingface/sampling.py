"""The choice of a token by logits: greedy, or drawn, as `transformers` chooses. Shapes: B sequences, L positions, a
vocabulary of V."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from roundlog.capture.errors import CaptureError

_MOST = 1 << 20
"""Most tokens to draw from, as receipts have it."""

_MOST_COMPARISONS = 1 << 20
"""Comparisons by which tokens are sorted at most; beyond, finding those that are kept by bisection is faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingForm:
    """Form of a sampling: all that a program depends on that reads the numbers."""

    drawn: bool
    """Whether the token is drawn, by a temperature."""
    penalised: bool
    """Whether tokens that were there before have a penalty."""
    sorted: int = 0
    """So many of the likeliest tokens are sorted; 0: none."""
    counted: bool = False
    """Whether the likeliest ones are found by bisection, by their number."""
    shared: bool = False
    """Whether they are found by bisection, by their share."""
    constants: Sampling | None = None
    """The numbers, if they are constants of the program and no inputs."""


class SamplingNumbers(Protocol):
    """Numbers of a sampling: constants of a program, or its inputs, f32[] each. top_k: at most the vocabulary."""

    @property
    def temperature(self) -> float | torch.Tensor: ...
    @property
    def top_k(self) -> float | torch.Tensor: ...
    @property
    def top_p(self) -> float | torch.Tensor: ...
    @property
    def repetition_penalty(self) -> float | torch.Tensor: ...


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

    def form(self, vocabulary: int) -> SamplingForm:
        """Its form for a vocabulary of so many tokens."""
        # States of a program are finite, and FP32 may make no zero of a number that is none.
        plain = all(2**-126 <= number < 2**127 for number in (self.temperature or 1.0, self.repetition_penalty))
        form = SamplingForm(
            drawn=self.temperature > 0,
            penalised=self.repetition_penalty != 1,
            constants=None if plain else self,
        )
        if not self.top_k and self.top_p == 1:
            return form
        count = min(self.top_k or vocabulary, vocabulary)
        if vocabulary * min(max(64, 4 * count), vocabulary) <= _MOST_COMPARISONS:
            return replace(form, sorted=count)
        # Sorting so many would compare each with each.
        return replace(form, counted=count < vocabulary, shared=self.top_p < 1)

    def choose(self, logits: torch.Tensor, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The next tokens, i64[B], by logits f32[B, V] behind the tokens i64[B, L] up to a position, i64[]."""
        return chosen_tokens(self.form(logits.shape[-1]), self, logits, tokens, position)


def chosen_tokens(
    form: SamplingForm, numbers: SamplingNumbers, logits: torch.Tensor, tokens: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """`Sampling.choose`, by a form and numbers."""
    if form.penalised:
        # Places behind this one hold no token that could have been repeated.
        written = torch.arange(tokens.shape[1]) <= position
        before = torch.where(written, tokens, tokens[:, :1])
        count = torch.zeros_like(logits).scatter_add(1, before, torch.ones(before.shape))
        less = torch.where(logits < 0, logits * numbers.repetition_penalty, logits / numbers.repetition_penalty)
        logits = torch.where(count > 0, less, logits)
    if not form.drawn:
        return logits.argmax(-1)
    logits = logits / numbers.temperature
    if form.sorted:
        likeliest, order = logits.topk(form.sorted)
        shares = likeliest.softmax(-1)
        # The first tokens that have top_p together: one is kept if those before it have less.
        kept = torch.where(shares.cumsum(-1) - shares < numbers.top_p, shares, 0.0)
        return order.gather(1, torch.multinomial(kept, 1))[:, 0]
    if form.counted or form.shared:
        most, share = numbers.top_k if form.counted else None, numbers.top_p if form.shared else None
        return torch.multinomial(likeliest_weights(logits, most, share), 1)[:, 0]
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


def likeliest_weights(
    logits: torch.Tensor, count: float | torch.Tensor | None, share: float | torch.Tensor | None
) -> torch.Tensor:
    """Weights e^(x - max x) of the `count` largest elements x of each row of f32[B, V], and of these of the fewest that
    have a share of their sum; 0 of all others; None: of all. Of equal weights, as those below 2^-126 are taken to be,
    the first ones count."""
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    if count is not None:
        first = weights[:, :1]
        wanted = count.expand_as(first) if isinstance(count, torch.Tensor) else torch.full_like(first, count)
        weights = torch.where(_fewest(weights, torch.ones_like(weights), wanted), weights, 0.0)
    if share is not None:
        weights = torch.where(_fewest(weights, weights, weights.sum(-1, keepdim=True) * share), weights, 0.0)
    return weights


def _fewest(weights: torch.Tensor, amounts: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """bool[B, V]: the largest weights, from 0 to 1, whose amounts come to what is wanted, f32[B, 1]; of equal ones the
    first. All, if all come to less.

    Sorting is out of reach. But the amounts above a bound fall as the bound rises, so that the bits of the last bound
    above which there is enough are found one by one: 7 of its exponent and 23 of its fraction."""

    def is_enough(chosen: torch.Tensor) -> torch.Tensor:
        return torch.where(chosen, amounts, 0.0).sum(-1, keepdim=True) >= wanted

    # There is too little above `high`, at last above its half there is enough.
    high = torch.ones_like(wanted)
    for halvings in (64, 32, 16, 8, 4, 2, 1):
        lower = high * 2.0**-halvings
        high = torch.where(is_enough(weights > lower), high, lower)
    low, width = high * 0.5, high * 0.5
    for _ in range(23):
        width = width * 0.5
        low = torch.where(is_enough(weights > low + width), low + width, low)
    surely, perhaps = weights > low + width, weights > low
    # Between the two are equal weights: the place of the last one that is needed is found in the same way.
    place = torch.arange(weights.shape[-1])
    last = torch.zeros_like(wanted, dtype=torch.int64)
    for bit in reversed(range((weights.shape[-1] - 1).bit_length())):
        later = last + (1 << bit)
        last = torch.where(is_enough(surely | (perhaps & (place < later))), last, later)
    return surely | (perhaps & (place <= last))
