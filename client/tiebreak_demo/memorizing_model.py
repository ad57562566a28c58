"""A language model that the demo trains where it has no other: it knows one question and its answer by heart.

It is trained in plain PyTorch, whose bits are those of this machine alone: a model is data, and any will do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

END = "</s>"
TEMPLATE = "{% for one in messages %}{{ one['content'] }}\n{% endfor %}"
_STEPS = 150
_WIDTH = 48


def write_memorizing_model(folder: Path, question: str, answer: str) -> int:
    """Writes a Llama of two blocks in FP32 that answers the question, byte by byte, into a new folder of Hugging Face.
    The number of its weights. Takes seconds. Raises AssertionError if it has not learnt the answer."""
    import transformers

    folder.mkdir()
    tokenizer = _byte_tokenizer()
    words = len(tokenizer)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=words,
            hidden_size=_WIDTH,
            intermediate_size=2 * _WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    said = tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
    _learn(model, torch.tensor([[*prompt, *said]]), len(prompt))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def _learn(model: Any, text: torch.Tensor, before: int) -> None:
    """Trains a model to write what stands behind the first `before` tokens of a text, i64[1, n]."""
    labels = text.clone()
    labels[:, :before] = -100  # no loss: the question is given
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(input_ids=text, labels=labels).loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(input_ids=text).logits[0, before - 1 : -1].argmax(-1)
    assert torch.equal(right, text[0, before:]), "the demo's model has not learnt its one answer"


def _byte_tokenizer() -> Any:
    """A tokenizer with a token for every byte, and one that ends a text."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain: Any = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate([END, *letters])}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, chat_template=TEMPLATE)
