"""Tasks of the conformance jobs: `tiebreak job create conformance/job_sources.py:logistic_sgd --out job`."""

from pathlib import Path

import numpy as np
import torch
from roundlog import Task, portable, windows
from torch import nn
from torch.nn import functional


def classify(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the logits of `x` against the classes `y`."""
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def predict_tokens(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the next token of `tokens`, over all positions but the last."""
    tokens = batch["tokens"]
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def predict_tokens_in_bf16(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same under autocast in BF16."""
    with torch.autocast("cpu", torch.bfloat16):
        return predict_tokens(model, batch)


def points(rows: int, features: int, classes: int) -> dict[str, torch.Tensor]:
    """Points around one centre for each class: x f32[rows, features], y int64[rows]."""
    y = torch.arange(rows) % classes
    centres = torch.randn(classes, features)
    return {"x": (centres[y] + 0.5 * torch.randn(rows, features)), "y": y}


def text(tokens: int, vocabulary: int) -> np.ndarray:
    """A text without much sense: uint8[tokens] below `vocabulary`."""
    return ((np.arange(tokens) ** 2 // 3) % vocabulary).astype(np.uint8)


class Block(nn.Module):
    """Pre-norm transformer block: causal attention with two heads, and an MLP of twice the width."""

    def __init__(self, width: int) -> None:
        """Parameters for values [batch, time, width]."""
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Values [batch, time, width], from values of that shape."""
        batch, time, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, time, 3, 2, width // 2)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(read.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.before_mlp(x))


class SmallGPT(nn.Module):
    """One block of width 16 between an embedding of tokens and positions, and tied logits."""

    def __init__(self, vocabulary: int = 12, context: int = 6, width: int = 16) -> None:
        """Parameters for tokens int64[batch, context] below `vocabulary`."""
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.block, self.norm = Block(width), nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, time, vocabulary]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.norm(self.block(x)) @ self.tokens.weight.T


def logistic_sgd() -> Task:
    """Logistic regression in FP32 with SGD and momentum."""
    torch.manual_seed(1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Task(
        model=model,
        loss=classify,
        optimizer=optimizer,
        dataset=points(48, 6, 3),
        batch_size=8,
        steps=8,
        interval=2,
        seed=11,
    )


def dropout_adamw() -> Task:
    """Two layers in FP32 with dropout, AdamW, a learning rate that falls, and clipping by the global norm."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Dropout(0.25), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return Task(
        model=model,
        loss=classify,
        optimizer=optimizer,
        dataset=points(40, 8, 4),
        batch_size=8,
        steps=8,
        interval=2,
        seed=12,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
        max_grad_norm=1.0,
    )


def gpt() -> Task:
    """One-block GPT in FP32 with AdamW, on windows of a stream of bytes."""
    torch.manual_seed(3)
    model = SmallGPT()
    return Task(
        model=model,
        loss=predict_tokens,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        dataset={"tokens": windows(text(50, 12), window=7, stride=2)},
        batch_size=4,
        steps=4,
        interval=2,
        seed=13,
    )


def gpt_bf16() -> Task:
    """The same GPT under autocast in BF16."""
    torch.manual_seed(4)
    model = SmallGPT()
    return Task(
        model=model,
        loss=predict_tokens_in_bf16,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        dataset={"tokens": torch.from_numpy(text(140, 12)).long().view(20, 7)},
        batch_size=4,
        steps=4,
        interval=2,
        seed=14,
    )


def convolution() -> Task:
    """Convolution, batch norm, max pooling, in FP32 with SGD."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    data = points(24, 64, 3)
    data["x"] = data["x"].view(-1, 1, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(
        model=model, loss=classify, optimizer=optimizer, dataset=data, batch_size=6, steps=4, interval=2, seed=15
    )


def save_llama(folder: Path) -> None:
    """Saves the model of `llama`: two layers of width 16 in FP32, of random weights, whose head is the embedding, and a
    tokenizer of bytes. A text ends at </s>, a line feed, or the end of a sentence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(["</s>", *letters])}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>")
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(letters) + 1,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(6)
    with portable():
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [0, *tokenizer("\n.!?")["input_ids"]]
    model.save_pretrained(folder)
