"""Ten kinds of `transformers`, small, made from their configurations by a task function as a user writes it; and texts
of six."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from roundlog.capture import Task, portable

_WIDTHS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 32,
}
_TEXT = "AutoModelForMaskedLM"
_NEXT = "AutoModelForCausalLM"

_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": (_TEXT, {**_WIDTHS, "embedding_size": 16}),
    "bert": (_TEXT, _WIDTHS),
    "distilbert": (_TEXT, {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "vocab_size": 61}),
    "gpt2": (_NEXT, {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 61, "n_positions": 32}),
    "gpt_neox": (_NEXT, _WIDTHS),
    "llama": (_NEXT, {**_WIDTHS, "num_key_value_heads": 2}),
    "mamba": (_NEXT, {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61, "state_size": 4}),
    "opt": (_NEXT, {**_WIDTHS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "qwen2": (_NEXT, {**_WIDTHS, "num_key_value_heads": 2}),
    "vit": (
        "AutoModelForImageClassification",
        {**_WIDTHS, "image_size": 16, "patch_size": 8, "num_channels": 3, "num_labels": 4},
    ),
}


def _loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


@portable()
def hugging_face(kind: str, steps: int, batch_size: int = 4) -> Task:
    """A task of one of `KINDS`."""
    auto, settings = _KINDS[kind]
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(kind, **settings)
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if (getattr(config, token, None) or 0) >= 61:
            setattr(config, token, 1)
    model = getattr(transformers, auto).from_config(config, attn_implementation="eager").train()
    if kind == "vit":
        data = {"pixel_values": torch.randn(16, 3, 16, 16), "labels": torch.randint(0, 4, (16,))}
    else:
        tokens = torch.randint(2, 61, (16, 12))
        data = {"input_ids": tokens, "labels": tokens.clone()}
    return Task(
        model=model,
        loss=_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=data,
        batch_size=batch_size,
        steps=steps,
        interval=steps,
        seed=3,
    )


KINDS: dict[str, Callable[[int], Task]] = {name: partial(hugging_face, name) for name in _KINDS}

TEXT_SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {**_WIDTHS, "num_key_value_heads": 1},
    "qwen2": {**_WIDTHS, "num_key_value_heads": 1},
    "mistral": {**_WIDTHS, "num_key_value_heads": 1, "sliding_window": 32},
    "gemma3_text": {**_WIDTHS, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 32},
    "gpt2": {
        **{"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 61, "n_positions": 32},
        **{"bos_token_id": 1, "eos_token_id": 1},
    },
    "mixtral": {**_WIDTHS, "num_key_value_heads": 1, "num_local_experts": 4},
}
"""Six kinds that generate text."""

_PROMPTS = [[5, 29, 41], [17]]


@portable()
def text_of(kind: str, steps: int) -> Task:
    """The generation of text by a small model in BF16 with random weights, behind two prompts: drawn tokens, as many
    behind the longest prompt as `steps` leaves when that is read. kind: of TEXT_SETTINGS."""
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(kind, **TEXT_SETTINGS[kind], initializer_range=0.3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    new_tokens = steps + 1 - len(_PROMPTS[0])
    return Task.from_causal_lm(model, _PROMPTS, new_tokens=new_tokens, temperature=0.9, top_k=40, top_p=0.95, seed=3)
