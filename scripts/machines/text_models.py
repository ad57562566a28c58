"""Six architectures of language models, small, with random weights, as folders that `tiebreak serve` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from roundlog.generation.generation_receipt import DTYPES

VOCABULARY = 97
_STOP = 5
"""The token that ends a text."""
_SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _SHAPE,
    "qwen2": _SHAPE,
    "mistral": {**_SHAPE, "sliding_window": 512},
    "gemma3_text": {**_SHAPE, "head_dim": 8, "sliding_window": 512},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.3},
    # With larger weights, another rounding chooses other experts, and in BF16 the generator refuses what differs so.
    "mixtral": {**_SHAPE, "num_local_experts": 4, "initializer_range": 0.02},
}
"""Configurations by the names of `transformers`: Llama, Qwen, Mistral, Gemma, GPT-2, and a mixture of experts."""

TEXT_MODELS = [f"{name}_{dtype}" for name in ARCHITECTURES for dtype in DTYPES]
"""Names of the models: architecture and format of the weights."""


def save_text_model(name: str, folder: Path) -> None:
    """Saves one of TEXT_MODELS with a tokenizer, whose words are the numbers of their tokens. Weights are drawn here,
    once: torch's random numbers differ between machines."""
    transformers.utils.logging.disable_progress_bar()
    kind, _, dtype = name.rpartition("_")
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(
        kind, **ARCHITECTURES[kind], vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=_STOP, pad_token_id=0
    )
    transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="0", eos_token=str(_STOP))
