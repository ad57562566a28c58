"""A causal language model of `transformers` with a static cache of its own: keys and values are buffers of a module, so
that they are state of a program. Shapes: B sequences, L positions, W tokens read at once, a vocabulary of V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
