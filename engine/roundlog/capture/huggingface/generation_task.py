"""Generation by a causal language model of `transformers` as a task: a step of the job is one token of every sequence.

The state is what `generate` keeps with a static cache: the tokens, keys and values of the attention, the position. So
a generation is run, audited and disputed as any training is. Shapes: B sequences, L positions, a vocabulary of V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from roundlog.capture.task import Task


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
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, up to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
        ):
            if not fits:
                raise CaptureError(f"{name} is {getattr(self, name)!r}: give a number, {allowed}")
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise CaptureError("top_k and top_p are for tokens that are drawn: give a temperature above 0 with them")


_NOISE = {torch.float32: 2.0**-10, torch.bfloat16: 2.0**-4}
"""The largest difference between logits that is rounding, as a share of their range."""


class TextGenerator(nn.Module):
    """A model with what its generation keeps from token to token. Calling it reads one token of every sequence, and
    writes the next one behind the prompts; it gives minus the sum of the log-probabilities of the tokens it has chosen,
    f32[], by the model's own logits."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    position: torch.Tensor
    ended: torch.Tensor

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: Sampling,
        stop: Sequence[int],
    ) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(()))
        self._how, self._stop = sampling, tuple(stop)
        self.length = max(map(len, prompts)) + new_tokens
        tokens = torch.zeros(len(prompts), self.length, dtype=torch.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        self.register_buffer("tokens", tokens)
        self.register_buffer("lengths", torch.tensor([len(prompt) for prompt in prompts]))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ended", torch.zeros(len(prompts), dtype=torch.bool))
        # The model itself lays keys and values out, [B, heads, L, width].
        cache = self._new_cache()
        with torch.no_grad():
            self._read(tokens[:, :1], torch.zeros(len(prompts), 1, dtype=torch.int64), cache)
        for number, layer in enumerate(cache.layers):
            self.register_buffer(f"keys_{number}", torch.zeros_like(layer.keys))
            self.register_buffer(f"values_{number}", torch.zeros_like(layer.values))

    def _read(self, tokens: torch.Tensor, places: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits f32[B, 1, V] behind a token of every sequence, i64[B, 1], at its place, which goes into the cache."""
        read = self.model(input_ids=tokens, position_ids=places, past_key_values=cache, use_cache=True)
        logits: torch.Tensor = read.logits.float()
        return logits

    def _new_cache(self) -> Any:
        """A cache that the model lays out when it is first called with it."""
        from transformers.cache_utils import Cache, StaticLayer

        count = self.model.config.get_text_config().num_hidden_layers
        return Cache(layers=[StaticLayer(self.length) for _ in range(count)])

    def _cache(self) -> Any:
        """The cache up to this position: its tensors are this module's own, into which the model writes."""
        cache = self._new_cache()
        for number, layer in enumerate(cache.layers):
            layer.keys, layer.values = getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.batch_size, layer.num_heads = layer.keys.shape[:2]
            layer.k_head_dim, layer.v_head_dim = layer.keys.shape[-1], layer.values.shape[-1]
            layer.cumulative_length = self.position.clone()
            layer.is_initialized = True
        return cache

    def apart_from_the_model(self, prompt: Sequence[int]) -> float:
        """The largest difference of logits, as a share of their range, between the model called as here and called on
        all positions at once: of a prompt, repeated to the length."""
        tokens = torch.tensor([prompt]).repeat(1, -(-self.length // len(prompt)))[:, : self.length]
        with torch.no_grad():
            expected = self.model(input_ids=tokens, use_cache=False).logits.float()
            cache = self._new_cache()
            one_by_one = [self._read(tokens[:, at : at + 1], torch.tensor([[at]]), cache) for at in range(self.length)]
        gap = (torch.cat(one_by_one, 1) - expected).abs().max()
        return float(gap / (expected.max() - expected.min()))

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            place = self.position.expand(len(self.tokens), 1)
            token = self.tokens.gather(1, place)
            logits = self._read(token, place, self._cache())[:, 0]
            given = self.position + 1 < self.lengths
            chosen = self._chosen(logits)
            counts = ~(given | self.ended)
            if self._stop:
                chosen = torch.where(self.ended, self._stop[0], chosen)
                stops = torch.stack([chosen == one for one in self._stop]).any(0)
                self.ended.copy_(self.ended | counts & stops)
            after = place + 1
            self.tokens.scatter_(1, after, torch.where(given[:, None], self.tokens.gather(1, after), chosen[:, None]))
            self.position.add_(1)
            told = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
            loss = -torch.where(counts, told, 0.0).sum()
        # A job has an optimizer, of a number that nothing depends on.
        return loss + self.unused

    def _chosen(self, logits: torch.Tensor) -> torch.Tensor:
        """The next token by logits, f32[B, V] -> i64[B]."""
        how = self._how
        if how.repetition_penalty != 1:
            # Places behind this one hold no token that could have been repeated.
            written = torch.arange(self.length) <= self.position
            before = torch.where(written, self.tokens, self.tokens[:, :1])
            count = torch.zeros_like(logits).scatter_add(1, before, torch.ones(before.shape))
            less = torch.where(logits < 0, logits * how.repetition_penalty, logits / how.repetition_penalty)
            logits = torch.where(count > 0, less, logits)
        if how.temperature == 0:
            return logits.argmax(-1)
        logits = logits / how.temperature
        if not how.top_k and how.top_p == 1:
            return torch.multinomial(logits.softmax(-1), 1)[:, 0]
        count_of_k = min(how.top_k or logits.shape[-1], logits.shape[-1])
        likeliest, tokens = logits.topk(count_of_k)
        shares = likeliest.softmax(-1)
        # The first tokens that have top_p together: one is kept if those before it have less.
        kept = torch.where(shares.cumsum(-1) - shares < how.top_p, shares, 0.0)
        return tokens.gather(1, torch.multinomial(kept, 1))[:, 0]


def generation_task(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    sampling: Sampling,
    stop: Sequence[int] = (),
    seed: int = 0,
    interval: int | None = None,
) -> Task:
    """The task of `Task.from_causal_lm`, which says all."""
    from roundlog.capture.task import Task

    _check(model, prompts, new_tokens, stop)
    try:
        generator = TextGenerator(model.eval(), prompts, new_tokens, sampling, stop).eval()
        apart = generator.apart_from_the_model(max(prompts, key=len))
    except Exception as error:
        # Models of other kinds raise errors of every type when they are called so.
        raise CaptureError(
            f"the model {type(model).__name__} cannot be called token by token with a static cache "
            f"({type(error).__name__}: {error}): take one whose generate has cache_implementation='static'"
        ) from error
    if not apart <= _NOISE[model.dtype]:
        raise CaptureError(
            f"the model {type(model).__name__} gives other logits token by token, with a static cache, than of all "
            f"tokens at once (by {apart:.2g} of their range): choose a model that does not"
        )
    steps = generator.length - 1
    return Task(
        model=generator,
        loss=_one_token,
        optimizer=torch.optim.SGD([generator.unused], lr=0.0),
        dataset={"none": torch.zeros(1)},
        batch_size=1,
        steps=steps,
        interval=steps if interval is None else interval,
        seed=seed,
    )


def _one_token(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model()
    return loss


def _check(model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int, stop: Sequence[int]) -> None:
    """Raises CaptureError, in one sentence, for what nothing can be generated of."""
    config = model.config.get_text_config()
    if model.dtype not in _NOISE:
        raise CaptureError(f"the model is {model.dtype}: convert it, as with model.to(torch.bfloat16)")
    if not prompts or not all(prompts):
        raise CaptureError("a prompt has no tokens: give at least one to each sequence, as its tokenizer's first one")
    if new_tokens < 1:
        raise CaptureError(f"{new_tokens} new tokens are nothing to generate: give at least 1")
    size = config.vocab_size
    if bad := [token for tokens in (*prompts, stop) for token in tokens if not 0 <= token < size]:
        raise CaptureError(f"the token {bad[0]} is none of the model's {size}: take the tokenizer of this model")
    length = max(map(len, prompts)) + new_tokens
    for name in ("max_position_embeddings", "sliding_window"):
        most = getattr(config, name, None)
        if most is not None and 0 < most < length:
            raise CaptureError(
                f"{length} positions are more than the model's {name} of {most}: give shorter prompts, or ask for "
                "fewer new tokens"
            )


def generated_tokens(state: Mapping[str, torch.Tensor], stop: Sequence[int] = ()) -> list[list[int]]:
    """New tokens of every sequence, by the last checkpoint of such a job: its states by name. They end before the first
    token of `stop`."""
    found = []
    for row, length in zip(state["buffer/tokens"].tolist(), state["buffer/lengths"].tolist(), strict=True):
        new = row[length:]
        found.append(new[: next((at for at, token in enumerate(new) if token in stop), len(new))])
    return found
