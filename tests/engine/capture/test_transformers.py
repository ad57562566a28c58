"""Models of Hugging Face's transformers, built from a config: one of every family, trained and audited as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.trainings import train_by_program, train_by_pytorch

transformers = pytest.importorskip("transformers")

STEPS, ROWS, TOKENS, WORDS = 2, 6, 6, 40


def _loss(model: nn.Module, batch) -> torch.Tensor:
    return model(**batch).loss


def _words() -> torch.Tensor:
    return torch.randint(3, WORDS, (ROWS, TOKENS))


def decoder(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attention_dropout=dropout,
        use_cache=False,
    )
    words = _words()
    return transformers.LlamaForCausalLM(config), {"input_ids": words, "labels": words}


def encoder(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    words = _words()
    labels = torch.where(torch.rand(words.shape) < 0.3, words, -100)
    labels[:, 0] = words[:, 0]
    return transformers.BertForMaskedLM(config), {"input_ids": words, "labels": labels}


def encoder_decoder(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        dropout_rate=dropout,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": _words(), "labels": _words()}


def vision(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    data = {"pixel_values": torch.randn(ROWS, 3, 8, 8), "labels": torch.randint(0, 3, (ROWS,))}
    return transformers.ViTForImageClassification(config), data


def mixture(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.MixtralConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=16,
        attention_dropout=dropout,
        use_cache=False,
    )
    words = _words()
    return transformers.MixtralForCausalLM(config), {"input_ids": words, "labels": words}


def vision_and_language(dropout: float) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    image_word = WORDS - 1
    eyes = transformers.CLIPVisionConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    language = decoder(dropout)[0].config
    config = transformers.LlavaConfig(
        vision_config=eyes, text_config=language, image_token_id=image_word, image_token_index=image_word
    )
    words = torch.cat([torch.full((ROWS, 4), image_word), torch.randint(3, image_word, (ROWS, TOKENS))], 1)
    data = {"input_ids": words, "labels": words, "pixel_values": torch.randn(ROWS, 3, 8, 8)}
    return transformers.LlavaForConditionalGeneration(config), data


FAMILIES: dict[str, Callable[[float], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "decoder": decoder,
    "encoder": encoder,
    "encoder-decoder": encoder_decoder,
    "vision": vision,
    "mixture": mixture,
    "vision and language": vision_and_language,
}


def task_of(family: str, dropout: float) -> Task:
    torch.manual_seed(4)
    model, data = FAMILIES[family](dropout)
    model.train()
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


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_from_a_config_is_trained_and_audited_as_it_is(family: str, tmp_path) -> None:
    job = Job.from_task(task_of(family, dropout=0.1))
    assert any(node.op == "uniform" for node in job.program.nodes), "dropout is on"
    result = Trainer(job, tmp_path / "trainer").run()
    followed = Auditor(job, tmp_path / "follower", log_dir=result.log_dir, verify_log=1.0).run()
    alone = Auditor(job, tmp_path / "alone").run()
    assert followed.checkpoint_root == alone.checkpoint_root == result.checkpoint_root
    assert followed.findings == []


@pytest.mark.slow_but("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_without_dropout_every_parameter_moves_as_with_pytorch(family: str) -> None:
    """SGD takes steps as long as the gradients: a loss hardly shows a wrong one, and AdamW but its sign."""
    task = task_of(family, dropout=0.0)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9)
    task = replace(task, optimizer=optimizer, steps=3, interval=3)
    # PyTorch's product of groups, by which a mixture goes to its experts, knows no FP64.
    dtype = torch.float32 if family == "mixture" else torch.float64
    ours, theirs = train_by_program(Job.from_task(task), 3), train_by_pytorch(task, 3, dtype)
    for name, parameter in task.model.named_parameters():
        end = theirs[f"parameter/{name}"]
        moved = (end - parameter.detach().double()).norm()
        # FP32 rounds what it stores after every step, and leaves something of gradients that are zero (keys' biases).
        rounding = 3 * 2.0**-24 * end.norm() + 1e-9
        apart = float((ours[f"parameter/{name}"].double() - end).norm())
        assert apart <= 1e-3 * float(moved) + float(rounding), name
