"""A model of random weights with a tokenizer of bytes and a chat template, as a folder: small, and whole."""

from __future__ import annotations

from pathlib import Path

import torch

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
POSITIONS = 96


def save_small_model(folder: Path) -> Path:
    """Saves a Llama of 262 tokens in BF16: all bytes, and six special ones. Its texts are bytes drawn almost evenly, so
    many of its characters are cut."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from tests.engine.generation.small_llama import small_llama

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", additional_special_tokens=special[2:5]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": True}
    config = small_llama(len(vocabulary), 32, 48, 2, max_position_embeddings=128, **ends)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def characters_of(tokens: list[int]) -> str:
    """The text of tokens of that model, by its bytes alone: what its decoder should come to."""
    from tokenizers import pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {character: byte for byte, character in bytes_to_unicode().items()}
    data = bytes(numbers[alphabet[token - 6]] for token in tokens if token >= 6)
    return data.decode(errors="replace")
