"""A tiny language model in a folder, with a tokenizer of bytes, and generators of it that are captured once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import roundlog.generation
import torch
from roundlog.generation import GenerationReceipt, Generator, parse_generation_receipt
from roundlog.generation.generation_receipt import tokens_hash
from roundlog.generation.model_folder import weight_root

POSITIONS = 48
"""Of every generator: no text depends on them."""

LEAST = 8
"""Positions that nothing is generated with, but a refusal."""

WORDS = 257

TEMPLATE = (
    "{% for one in messages %}<{{ one['role'] }}>{{ one['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(
    folder: Path, dtype: torch.dtype = torch.float32, template: str | None = TEMPLATE, cancels: bool = False
) -> Path:
    """Writes a Llama of random weights into a folder. cancels: two large products of every logit are each other's
    negative, so that arithmetics of tensor cores lose what is small beside them."""
    import transformers

    from tests.engine.generation.small_llama import small_llama

    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(
        small_llama(WORDS, max_position_embeddings=64, initializer_range=0.3, bos_token_id=None, eos_token_id=0)
    )
    if cancels:
        with torch.no_grad():
            layer = model.model.layers[0]
            model.model.embed_tokens.weight[:, 1] = model.model.embed_tokens.weight[:, 0]
            for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
                product.weight[1] = product.weight[0]
            model.lm_head.weight[:, 0] = 2.0**16
            model.lm_head.weight[:, 1] = -(2.0**16)
    model.to(dtype).save_pretrained(folder)
    byte_tokenizer(template).save_pretrained(folder)
    return folder


def byte_tokenizer(template: str | None = TEMPLATE, merges: Sequence[tuple[str, str]] = ()) -> Any:
    """A tokenizer with a token for every byte, and one that ends a text. merges: pairs that are a token together, in
    the place of one of a byte that no text has; two others of these have none then."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(["</s>", *letters]) if not merges or letter not in "õö"}
    words |= {"".join(pair): words.pop(chr(0xFF - at)) for at, pair in enumerate(merges)}
    plain: Any = Tokenizer(models.BPE(vocab=words, merges=[*merges]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>", chat_template=template)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Commands of this process capture a model with an arithmetic once, however many positions they ask for."""
    kept = dict[tuple[bytes, str, int], Generator]()

    def kept_generator(model: Any, *, positions: int, arithmetic: str = "exact", **tell: Any) -> Generator:
        Generator(model, positions=positions)  # refuses what it always does
        assert positions <= POSITIONS
        room = POSITIONS if positions > LEAST else positions
        key = (weight_root(model), arithmetic, room)
        if key not in kept:
            kept[key] = Generator(model, positions=room, arithmetic=arithmetic, **tell)
        kept[key].on_tokens = lambda tokens: None
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roundlog.generation, "Generator", kept_generator)
        yield


def edited(receipt: Path, change: dict[str, Any]) -> Path:
    """A receipt with fields changed, by their names with dots, and what follows from its tokens made to fit;
    unsigned. The file is written in place."""
    plain = json.loads(receipt.read_text())
    plain.pop("signer", None), plain.pop("signature", None)
    for name, value in change.items():
        *path, last = name.split(".")
        place = plain
        for one in path:
            place = place[one]
        assert last in place and place[last] != value, name
        place[last] = value
    if "tokens" in change:
        tokens = plain["tokens"]
        plain |= {"token_count": len(tokens), "tokens_hash": "0x" + tokens_hash(tokens).hex()}
    receipt.write_text(json.dumps(plain))
    return receipt


def read(path: Path) -> GenerationReceipt:
    """The receipt in a file."""
    return parse_generation_receipt(path.read_bytes())
