"""Modules whose steps write texts: a reader of tokens, and the choice of one token. Shapes: B sequences, L positions, W
tokens read at once, a vocabulary of V."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.huggingface import CachedModel, Sampling, SamplingForm, chosen_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@cache
def _layer_class() -> Any:
    from transformers.cache_utils import StaticLayer

    class ChunkLayer(StaticLayer):  # type: ignore[misc]
        """Keys and values of a layer. If the position is i64[B], each row is written at its own."""

        def update(self, keys: torch.Tensor, values: torch.Tensor, *_: object, **__: object) -> Any:
            if not self.is_initialized or self.cumulative_length.dim() == 0:
                return super().update(keys, values)
            # Every row has a place of its own, and index_copy_ would need to know that places differ.
            rows, width = keys.shape[0], keys.shape[-2]
            place = torch.arange(self.max_cache_len) - self.cumulative_length[:, None]
            inside = ((place >= 0) & (place < width))[:, None, :, None]
            for kept, new in ((self.keys, keys), (self.values, values)):
                if width > 1:
                    assert rows == 1
                    new = new.index_select(2, place[0].clamp(0, width - 1))
                kept.copy_(torch.where(inside, new, kept))
            return self.keys, self.values

    return ChunkLayer


class ChunkReader(CachedModel):
    """A model that reads W tokens of every row from its position on: its step leaves logits f32[B, W, V] behind each of
    them, and keys and values in the cache. Either B or W is 1. A token attends to the positions of its branch, which
    begins at `begins` i64[W], and to the first `seen` i64[W], as if these stood directly before its branch."""

    tokens: torch.Tensor
    logits: torch.Tensor
    begins: torch.Tensor
    seen: torch.Tensor

    def __init__(self, model: PreTrainedModel, batch: int, length: int, width: int) -> None:
        super().__init__(model, batch, length)
        self.register_buffer("position", torch.zeros(batch, dtype=torch.int64))
        self.register_buffer("tokens", torch.zeros(batch, width, dtype=torch.int64))
        self.register_buffer("begins", torch.zeros(width, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(width, dtype=torch.int64))
        size = model.config.get_text_config().vocab_size
        self.register_buffer("logits", torch.zeros(batch, width, size))

    def mask(self, places: torch.Tensor) -> torch.Tensor:
        """The positions that each token attends to, [B, 1, W, L], as its attention takes them. For several positions
        the model itself would mask by cases, of which a program would compute each."""
        at, (begins, seen) = torch.arange(self.length), (self.begins[:, None], self.seen[:, None])
        allowed = (at <= places[:, None, :, None]) & ((at >= begins) | (at < seen))
        if self.model.config._attn_implementation == "sdpa":
            return allowed
        return torch.where(allowed, 0.0, torch.finfo(self.model.dtype).min).to(self.model.dtype)

    def layer(self) -> Any:
        return _layer_class()(self.length)

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            places = self.position[:, None] + torch.arange(self.tokens.shape[1])
            of_text = places - self.begins + self.seen
            logits = self._read(self.tokens, of_text, self._cache(), self.mask(places))
            self.logits.copy_(logits)
            # A buffer that no step changes would be a constant of the program.
            for kept in (self.tokens, self.begins, self.seen):
                kept.add_(0)
            self.position.add_(self.tokens.shape[1])
        return self.unused


class TokenSampler(nn.Module):
    """The choice of one token by itself. Its step takes logits f32[1, V] behind the token at a position of i64[1, L],
    and the numbers of a sampling; it writes the token that it chooses behind it, and leaves log-probabilities in place
    of logits. The draws of step t are those of step t of a job that generates with the same seed."""

    logits: torch.Tensor
    tokens: torch.Tensor
    position: torch.Tensor
    chosen: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    repetition_penalty: torch.Tensor
    first: torch.Tensor
    bias: torch.Tensor

    def __init__(self, form: SamplingForm, vocabulary: int, length: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self._form = form
        self.register_buffer("logits", torch.zeros(1, vocabulary))
        self.register_buffer("tokens", torch.zeros(1, length, dtype=torch.int64))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("chosen", torch.zeros(1, dtype=torch.int64))
        for name in _numbers(form):
            self.register_buffer(name, torch.ones(()))
        self.register_buffer("first", torch.zeros((), dtype=torch.int64) if form.subtracted else None)
        self.register_buffer("bias", torch.zeros(1, vocabulary) if form.biased else None)

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            logits = self.logits.clone()
            numbers = self._form.constants or self
            chosen = chosen_tokens(
                self._form, numbers, logits, self.tokens, self.position, first=self.first, bias=self.bias
            )
            for name in _numbers(self._form):
                # A buffer that no step writes would be a constant of the program.
                getattr(self, name).mul_(1.0)
            if self._form.subtracted:
                self.first.add_(0)
            if self._form.biased:
                self.bias.mul_(1.0)
            self.logits.copy_(logits.log_softmax(-1))
            self.position.add_(1)
            self.tokens.scatter_(1, self.position.expand(1, 1), chosen[:, None])
            self.chosen.copy_(chosen)
        return self.unused


class Likelihoods(nn.Module):
    """Log-probabilities of all tokens, in place of logits f32[W, V]."""

    logits: torch.Tensor

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.register_buffer("logits", torch.zeros(width, vocabulary))

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            self.logits.copy_(self.logits.log_softmax(-1))
        return self.unused


def _numbers(form: SamplingForm) -> tuple[str, ...]:
    """Names of the numbers of a sampling that are inputs of its form's program."""
    subtracted = ("presence_penalty", "frequency_penalty") if form.subtracted else ()
    return ("temperature", "top_k", "top_p", "repetition_penalty", *subtracted, *(["min_p"] * form.floored))


def sampler_numbers(how: Sampling, form: SamplingForm, first: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """The numbers of a sampling as states of a `TokenSampler`, but for those that are constants of its program. first:
    position of the first generated token. Raises CaptureError for a bias of a token that is not
    in the vocabulary."""
    found: dict[str, torch.Tensor] = {}
    if form.constants is None:
        found = {f"buffer/{name}": torch.tensor(float(getattr(how, name))) for name in _numbers(form)}
    if form.subtracted:
        found["buffer/first"] = torch.tensor(first)
    if form.biased:
        found["buffer/bias"] = how.bias(vocabulary)
    return found
