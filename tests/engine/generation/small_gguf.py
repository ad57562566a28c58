"""A tiny Llama as a GGUF file, with a tokenizer of bytes and a chat template, as gguf's own writer writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

HEADS, KEY_HEADS = 2, 1
TEMPLATE = "{% for one in messages %}<{{ one['role'] }}>{{ one['content'] }}{% endfor %}"

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def small_model() -> Any:
    """A `transformers.LlamaForCausalLM` of random weights in FP32."""
    import transformers

    from tests.engine.generation.small_llama import small_llama

    torch.manual_seed(3)
    more = {"max_position_embeddings": 64, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": 0}
    return transformers.LlamaForCausalLM(small_llama(len(vocabulary()), 32, 64, 2, **more))


def vocabulary() -> list[str]:
    """A token that ends a text, one for every byte, and one of two bytes."""
    from tokenizers import pre_tokenizers

    return ["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]


def write_gguf(path: Path, kind: str = "F32", changes: dict[str, Any] | None = None) -> Any:
    """Writes `small_model` into a file; the model. kind: of gguf's types of tensors, for matrices. changes: values of
    fields in place of the model's, without `llama.` for those of an architecture; None for a field that is left out."""
    import gguf

    model = small_model()
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS,
        "vocab_size": config.vocab_size,
        "rope.dimension_count": config.hidden_size // HEADS,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32("llama.rope.freq_base", config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3, *[1] * (config.vocab_size - 1)])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, value in (changes or {}).items():
        key = f"llama.{name}" if name in numbers else name
        writer.kv_data[0].pop(key, None)
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, tensor in model.state_dict().items():
        numbers_of = tensor.numpy()
        heads = {"q": HEADS, "k": KEY_HEADS}.get(name.split("_proj")[0][-1] if "self_attn" in name else "", 0)
        if heads:
            # GGUF turns pairs of neighbours, transformers the first half by the second.
            rows, columns = numbers_of.shape
            numbers_of = numbers_of.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        if numbers_of.ndim == 1 or kind == "F32":
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(numbers_of))
            continue
        packed = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(_gguf_name(name), gguf.quants.quantize(numbers_of, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, number, rest = name.split(".", 3)
        return f"blk.{number}.{_NAMES[rest.removesuffix('.weight')]}.weight"
    return {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }[name]
