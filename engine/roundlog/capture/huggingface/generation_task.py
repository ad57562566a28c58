"""Generation by a causal language model of `transformers` as a task: a step of the job is one token of every sequence.

The state is what `generate` keeps with a static cache: the tokens, keys and values of the attention, the position. So
a generation is run, audited and disputed as any training is. A token is the likeliest one, or drawn, as `transformers`
chooses. Shapes: B sequences, L positions, W tokens read at once, a vocabulary of V."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MOST = 1 << 20
"""Most tokens to draw from, as receipts have it."""

_MOST_BIASED = 1024
"""Most tokens whose logits have something added to them."""

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
    subtracted: bool = False
    """Whether tokens that were generated before have a penalty."""
    floored: bool = False
    """Whether tokens have to have a share of the likeliest one's probability."""
    biased: bool = False
    """Whether some tokens' logits have something added to them."""
    constants: Sampling | None = None
    """The numbers, if they are constants of the program and no inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The choice of a token. temperature: 0 takes the likeliest one, the first of several; above 0, one is drawn from
    softmax(logits / temperature). top_k: of the k likeliest ones; 0: of all. top_p: of the fewest that have that share
    together. repetition_penalty: divides logits of tokens that were there before, or multiplies negative ones (Keskar
    et al. 2019, CTRL). min_p: of those whose probability is at least so much of the likeliest one's. presence_penalty,
    frequency_penalty: are subtracted from logits of tokens that were generated before, once, and once for each time
    (OpenAI). logit_bias: pairs of a token and what is added to its logit, before all else, ascending by token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Raises CaptureError for numbers that choose no token."""
        for name, fits, allowed in (
            # Logits are finite after the division, too.
            ("temperature", self.temperature == 0 or 2**-100 <= self.temperature < math.inf, "0, or at least 2^-100"),
            ("top_k", 0 <= self.top_k <= _MOST, f"0 to {_MOST}"),
            ("top_p", 2**-100 <= self.top_p <= 1, "at least 2^-100, up to 1"),
            ("repetition_penalty", 2**-100 <= self.repetition_penalty < math.inf, "at least 2^-100"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("presence_penalty", abs(self.presence_penalty) <= 2, "-2 to 2"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 2, "-2 to 2"),
        ):
            if not fits:
                raise CaptureError(f"{name} is {getattr(self, name)!r}: give a number, {allowed}")
        if self.temperature == 0 and (self.top_k or self.top_p < 1 or self.min_p):
            raise CaptureError(
                "top_k, top_p and min_p are for tokens that are drawn: give a temperature above 0 with them"
            )
        biased = [token for token, _ in self.logit_bias]
        if biased != sorted(set(biased)) or len(biased) > _MOST_BIASED or not all(0 <= one < _MOST for one in biased):
            raise CaptureError(
                f"logit_bias names tokens twice, unsorted or in vain: give at most {_MOST_BIASED} tokens"
            )
        if not all(0 < abs(value) <= 100 for _, value in self.logit_bias):
            raise CaptureError("logit_bias has a number that is 0 or beyond 100: give numbers from -100 to 100")

    def bias(self, vocabulary: int) -> torch.Tensor:
        """What is added to the logits of a vocabulary of V tokens, f32[1, V]. Raises CaptureError for a token that is
        not in it."""
        if self.logit_bias and self.logit_bias[-1][0] >= vocabulary:
            raise CaptureError(f"logit_bias names token {self.logit_bias[-1][0]}: give tokens below {vocabulary}")
        found = torch.zeros(1, vocabulary)
        for token, value in self.logit_bias:
            found[0, token] = value
        return found

    def form(self, vocabulary: int) -> SamplingForm:
        """Its form for a vocabulary of so many tokens."""
        # States of a program are finite, and FP32 may make no zero of a number that is none.
        plain = all(2**-126 <= number < 2**127 for number in (self.temperature or 1.0, self.repetition_penalty))
        drawn, penalised = self.temperature > 0, self.repetition_penalty != 1
        form = SamplingForm(
            drawn=drawn,
            penalised=penalised,
            subtracted=bool(self.presence_penalty or self.frequency_penalty),
            floored=self.min_p > 0,
            biased=bool(self.logit_bias),
            constants=None if plain else self,
        )
        if not self.top_k and self.top_p == 1:
            return form
        count = min(self.top_k or vocabulary, vocabulary)
        if vocabulary * min(max(64, 4 * count), vocabulary) <= _MOST_COMPARISONS:
            return replace(form, sorted=count)
        # Sorting so many would compare each with each.
        return replace(form, counted=count < vocabulary, shared=self.top_p < 1)


def chosen_tokens(
    form: SamplingForm,
    numbers: Any,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    position: torch.Tensor,
    *,
    first: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The next tokens, i64[B], by logits f32[B, V] behind the tokens i64[B, L] up to a position, i64[]. numbers: has
    the numbers of a sampling, constants of the program or its inputs, f32[] each; top_k is at most the vocabulary.
    first: position of the first generated token, i64[] or i64[B, 1], and bias: f32[1, V], where the form needs them."""
    if form.biased:
        assert bias is not None
        logits = logits + bias
    if form.penalised:
        # Places behind this one hold no token that could have been repeated.
        written = torch.arange(tokens.shape[1]) <= position
        before = torch.where(written, tokens, tokens[:, :1])
        count = torch.zeros_like(logits).scatter_add(1, before, torch.ones(before.shape))
        less = torch.where(logits < 0, logits * numbers.repetition_penalty, logits / numbers.repetition_penalty)
        logits = torch.where(count > 0, less, logits)
    if form.subtracted:
        assert first is not None
        places = torch.arange(tokens.shape[1])
        generated = ((places >= first) & (places <= position)).float().expand(tokens.shape)
        times = torch.zeros_like(logits).scatter_add(1, tokens, generated)
        logits = logits - times * numbers.frequency_penalty
        logits = torch.where(times > 0, logits - numbers.presence_penalty, logits)
    if not form.drawn:
        return logits.argmax(-1)
    logits = logits / numbers.temperature
    if form.sorted:
        likeliest, order = logits.topk(form.sorted)
        shares = likeliest.softmax(-1)
        # The first tokens that have top_p together: one is kept if those before it have less.
        kept = torch.where(shares.cumsum(-1) - shares < numbers.top_p, shares, 0.0)
        if form.floored:
            kept = torch.where((likeliest - likeliest[:, :1]).exp() >= numbers.min_p, kept, 0.0)
        return order.gather(1, torch.multinomial(kept, 1))[:, 0]
    if form.counted or form.shared or form.floored:
        most, share = numbers.top_k if form.counted else None, numbers.top_p if form.shared else None
        weights = likeliest_weights(logits, most, share)
        if form.floored:
            weights = torch.where(weights >= numbers.min_p, weights, 0.0)
        return torch.multinomial(weights, 1)[:, 0]
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


NOISE = {torch.float32: 2.0**-10, torch.bfloat16: 2.0**-4}
"""The largest difference between logits that is rounding, as a share of their range."""


class CachedModel(nn.Module):
    """A model with keys and values [B, heads, L, width] of every layer, which begin with zeros, and a position, i64[]
    of all rows or, where a subclass says so, i64[B]."""

    position: torch.Tensor

    def __init__(self, model: PreTrainedModel, batch: int, length: int) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(()))
        self.length = length
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))
        # The model itself lays keys and values out.
        laid, first = self._new_cache(), torch.zeros(batch, 1, dtype=torch.int64)
        with torch.no_grad():
            self._read(first, first, laid)
        for number, layer in enumerate(laid.layers):
            self.register_buffer(f"keys_{number}", torch.zeros_like(layer.keys))
            self.register_buffer(f"values_{number}", torch.zeros_like(layer.values))

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits f32[B, W, V] behind each of the tokens i64[B, W] from this position on, which go into the cache."""
        places = (self.position.reshape(-1, 1) + torch.arange(tokens.shape[1])).expand(tokens.shape)
        return self._read(tokens, places, self._cache(), self.mask(places))

    def mask(self, places: torch.Tensor) -> torch.Tensor | None:
        """The positions that tokens at places i64[B, W] attend to, as the model takes them; None: the model masks."""
        return None

    def layer(self) -> Any:
        """The empty cache of a layer."""
        from transformers.cache_utils import StaticLayer

        return StaticLayer(self.length)

    def _read(
        self, tokens: torch.Tensor, places: torch.Tensor, kept: Any, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        read = self.model(
            input_ids=tokens, position_ids=places, past_key_values=kept, use_cache=True, attention_mask=mask
        )
        logits: torch.Tensor = read.logits.float()
        return logits

    def _new_cache(self) -> Any:
        """A cache that the model lays out when it is first called with it."""
        from transformers.cache_utils import Cache

        count = self.model.config.get_text_config().num_hidden_layers
        return Cache(layers=[self.layer() for _ in range(count)])

    def _cache(self) -> Any:
        """The cache up to this position: its tensors are this module's own, into which the model writes."""
        found = self._new_cache()
        for number, layer in enumerate(found.layers):
            layer.keys, layer.values = getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.batch_size, layer.num_heads = layer.keys.shape[:2]
            layer.k_head_dim, layer.v_head_dim = layer.keys.shape[-1], layer.values.shape[-1]
            layer.cumulative_length = self.position.clone()
            layer.is_initialized = True
        return found

    def require_sameness(self, prompt: Sequence[int]) -> None:
        """Raises CaptureError if the model called as here gives other logits than called on all positions at once: of a
        prompt, repeated to the length."""
        tokens = torch.tensor([prompt]).repeat(1, -(-self.length // len(prompt)))[:, : self.length]
        with torch.no_grad():
            expected = self.model(input_ids=tokens, use_cache=False).logits.float()
            begun = self._new_cache()
            one_by_one = [self._read(tokens[:, at : at + 1], torch.tensor([[at]]), begun) for at in range(self.length)]
        gap = (torch.cat(one_by_one, 1) - expected).abs().max()
        apart = float(gap / (expected.max() - expected.min()))
        if not apart <= NOISE[self.model.dtype]:
            raise CaptureError(
                f"the model {type(self.model).__name__} gives other logits token by token, with a static cache, than "
                f"of all tokens at once (by {apart:.2g} of their range): choose a model that does not"
            )


class TextGenerator(CachedModel):
    """A model with what its generation keeps from token to token. Calling it reads one token of every sequence, and
    writes the next one behind the prompts; it gives minus the sum of the log-probabilities of the tokens it has chosen,
    f32[], by the model's own logits."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    ended: torch.Tensor
    trains_nothing = True
    """No parameter is to change."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: Sampling,
        stop: Sequence[int],
    ) -> None:
        super().__init__(model, len(prompts), max(map(len, prompts)) + new_tokens)
        self._how, self._stop = sampling, tuple(stop)
        tokens = torch.zeros(len(prompts), self.length, dtype=torch.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        self.register_buffer("tokens", tokens)
        self.register_buffer("lengths", torch.tensor([len(prompt) for prompt in prompts]))
        self.register_buffer("ended", torch.zeros(len(prompts), dtype=torch.bool))

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            place = self.position.expand(len(self.tokens), 1)
            token = self.tokens.gather(1, place)
            logits = self.read(token)[:, 0]
            given = self.position + 1 < self.lengths
            form = self._how.form(logits.shape[-1])
            bias = self._how.bias(logits.shape[-1]) if form.biased else None
            first = self.lengths[:, None]
            chosen = chosen_tokens(form, self._how, logits, self.tokens, self.position, first=first, bias=bias)
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


def generation_arguments(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    sampling: Sampling,
    stop: Sequence[int] = (),
    seed: int = 0,
    interval: int | None = None,
) -> dict[str, Any]:
    """Return the arguments of the task of `Task.from_causal_lm`, which says all."""
    check_generation(model, prompts, new_tokens, stop)
    try:
        generator = TextGenerator(model.eval(), prompts, new_tokens, sampling, stop).eval()
        generator.require_sameness(max(prompts, key=len))
    except CaptureError:
        raise
    except Exception as error:
        # Models of other kinds raise errors of every type when they are called so.
        raise CaptureError(
            f"the model {type(model).__name__} cannot be called token by token with a static cache "
            f"({type(error).__name__}: {error}): take one whose generate has cache_implementation='static'"
        ) from error
    steps = generator.length - 1
    return dict(
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


_LENGTH_DEPENDENT = re.compile(r'"(?:rope_)?type": "(dynamic|longrope)"')
"""Kinds of rotary positions, in a configuration, that depend on the length of what is read."""


def check_generation(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int, stop: Sequence[int]
) -> None:
    """Raises CaptureError, in one sentence, for what nothing can be generated of."""
    config = model.config.get_text_config()
    if model.dtype not in NOISE:
        raise CaptureError(f"the model is {model.dtype}: convert it, as with model.to(torch.bfloat16)")
    if not prompts or not all(prompts):
        raise CaptureError("a prompt has no tokens: give at least one to each sequence, as its tokenizer's first one")
    if new_tokens < 1:
        raise CaptureError(f"{new_tokens} new tokens are nothing to generate: give at least 1")
    size = config.vocab_size
    if bad := [token for tokens in (*prompts, stop) for token in tokens if not 0 <= token < size]:
        raise CaptureError(f"the token {bad[0]} is none of the model's {size}: take the tokenizer of this model")
    if kind := _LENGTH_DEPENDENT.search(json.dumps(config.to_dict(), default=str)):
        raise CaptureError(f"its positions are scaled by the length of the text ({kind[1]}): choose another model")
    length = max(map(len, prompts)) + new_tokens
    for name in ("max_position_embeddings", "sliding_window"):
        most = getattr(config, name, None)
        if most is not None and 0 < most < length:
            raise CaptureError(f"{length} positions are more than the model's {name} of {most}: ask for fewer tokens")


def generated_tokens(state: Mapping[str, torch.Tensor], stop: Sequence[int] = ()) -> list[list[int]]:
    """New tokens of every sequence, by the last checkpoint of such a job: its states by name. They end before the first
    token of `stop`."""
    found = []
    for row, length in zip(state["buffer/tokens"].tolist(), state["buffer/lengths"].tolist(), strict=True):
        new = row[length:]
        found.append(new[: next((at for at, token in enumerate(new) if token in stop), len(new))])
    return found
