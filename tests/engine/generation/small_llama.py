"""Configurations of small models of text."""

from typing import Any

import transformers


def small_llama(words: int, width: int = 16, inner: int = 32, layers: int = 1, **more: Any) -> Any:
    """Of a Llama with two heads, of which one has keys and values. more: of its configuration."""
    sizes = {"vocab_size": words, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, **more)
