"""Generation by a causal language model of `transformers` as a task: a step of the job is one token of every sequence.

The state is what `generate` keeps with a static cache: the tokens, keys and values of the attention, the position. So
a generation is run, audited and disputed as any training is. Shapes: B sequences, L positions, a vocabulary of V.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError
from roundlog.capture.huggingface.sampling import Sampling
from roundlog.capture.huggingface.static_cache import NOISE, CachedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
            chosen = self._how.choose(logits, self.tokens, self.position)
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
    if (kind := _length_dependent(config.to_dict())) is not None:
        raise CaptureError(
            f"the model's positions are scaled by the length of the text (rope_type {kind}), so that a token has other "
            "keys in a longer one: choose a model whose are not"
        )
    length = max(map(len, prompts)) + new_tokens
    for name in ("max_position_embeddings", "sliding_window"):
        most = getattr(config, name, None)
        if most is not None and 0 < most < length:
            raise CaptureError(
                f"{length} positions are more than the model's {name} of {most}: give shorter prompts, or ask for "
                "fewer new tokens"
            )


def _length_dependent(config: object) -> str | None:
    """The kind of rotary positions, anywhere in a configuration, that depend on the length of what is read."""
    if not isinstance(config, Mapping):
        return None
    for name in ("rope_type", "type"):
        if config.get(name) in ("dynamic", "longrope"):
            return str(config[name])
    return next((kind for value in config.values() if (kind := _length_dependent(value)) is not None), None)


def generated_tokens(state: Mapping[str, torch.Tensor], stop: Sequence[int] = ()) -> list[list[int]]:
    """New tokens of every sequence, by the last checkpoint of such a job: its states by name. They end before the first
    token of `stop`."""
    found = []
    for row, length in zip(state["buffer/tokens"].tolist(), state["buffer/lengths"].tolist(), strict=True):
        new = row[length:]
        found.append(new[: next((at for at, token in enumerate(new) if token in stop), len(new))])
    return found
