"""Models of Hugging Face's transformers, built from a config: one of every family, trained and audited as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from torch import nn

transformers = pytest.importorskip("transformers")

STEPS, ROWS, TOKENS, WORDS = 2, 6, 6, 40


def _loss(model: nn.Module, batch) -> torch.Tensor:
    return model(**batch).loss


def words() -> torch.Tensor:
    return torch.randint(3, WORDS, (ROWS, TOKENS))


def same_words() -> dict[str, torch.Tensor]:
    found = words()
    return {"input_ids": found, "labels": found}


def masked_words() -> dict[str, torch.Tensor]:
    found = words()
    labels = torch.where(torch.rand(found.shape) < 0.3, found, -100)
    labels[:, 0] = found[:, 0]
    return {"input_ids": found, "labels": labels}


def two_texts() -> dict[str, torch.Tensor]:
    return {"input_ids": words(), "labels": words()}


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(ROWS, 3, 8, 8), "labels": torch.randint(0, 3, (ROWS,))}


def images_and_words() -> dict[str, torch.Tensor]:
    found = torch.cat([torch.full((ROWS, 4), IMAGE), torch.randint(3, IMAGE, (ROWS, TOKENS))], 1)
    return {"input_ids": found, "labels": found, "pixel_values": torch.randn(ROWS, 3, 8, 8)}


IMAGE = WORDS - 1
SIZE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
PATCHES = {"image_size": 8, "patch_size": 4, "num_attention_heads": 2}


def llama(dropout: float) -> Any:
    return transformers.LlamaConfig(**SIZE, **HEADS, vocab_size=WORDS, attention_dropout=dropout, use_cache=False)


def bert(dropout: float) -> Any:
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return transformers.BertConfig(**SIZE, vocab_size=WORDS, num_attention_heads=2, max_position_embeddings=16, **drops)


def t5(dropout: float) -> Any:
    size = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "dropout_rate": dropout}
    return transformers.T5Config(vocab_size=WORDS, decoder_start_token_id=0, use_cache=False, **size)


def vit(dropout: float) -> Any:
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return transformers.ViTConfig(**SIZE, **PATCHES, num_labels=3, **drops)


def mixtral(dropout: float) -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_dropout": dropout}
    return transformers.MixtralConfig(**SIZE, **HEADS, vocab_size=WORDS, use_cache=False, **experts)


def llava(dropout: float) -> Any:
    eyes = transformers.CLIPVisionConfig(**SIZE | {"num_hidden_layers": 2}, **PATCHES)
    parts = {"vision_config": eyes, "text_config": llama(dropout)}
    return transformers.LlavaConfig(**parts, image_token_id=IMAGE, image_token_index=IMAGE)


FAMILIES: dict[str, tuple[str, Callable[[float], Any], Callable[[], dict[str, torch.Tensor]]]] = {
    "decoder": ("LlamaForCausalLM", llama, same_words),
    "encoder": ("BertForMaskedLM", bert, masked_words),
    "encoder-decoder": ("T5ForConditionalGeneration", t5, two_texts),
    "vision": ("ViTForImageClassification", vit, images),
    "mixture": ("MixtralForCausalLM", mixtral, same_words),
    "vision and language": ("LlavaForConditionalGeneration", llava, images_and_words),
}


def task_of(family: str, dropout: float) -> Task:
    torch.manual_seed(4)
    kind, config, rows = FAMILIES[family]
    model, data = getattr(transformers, kind)(config(dropout)).train(), rows()
    return Task(
        model=model,
        loss=_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=data,
        batch_size=3,
        steps=STEPS,
        interval=STEPS,
        seed=5,
    )


@pytest.mark.slow_but("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_from_a_config_is_trained_and_audited_as_it_is(family: str, tmp_path) -> None:
    job = Job.from_task(lambda: task_of(family, dropout=0.1))
    assert any(node.op == "uniform" for node in job.program.nodes), "dropout is on"
    result = Trainer(job, tmp_path / "trainer").run()
    followed = Auditor(job, tmp_path / "follower", log_dir=result.log_dir, verify_log=1.0).run()
    alone = Auditor(job, tmp_path / "alone").run()
    assert followed.checkpoint_root == alone.checkpoint_root == result.checkpoint_root
    assert followed.findings == []
