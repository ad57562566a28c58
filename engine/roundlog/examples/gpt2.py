"""GPT-2 with 124 million parameters, trained by AdamW.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): layer norms first, GELU by tanh, token
embeddings that also are the last layer, dropout of embeddings, attention weights and both halves of a block.

Shapes: B batch, T sequence length, C width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError, Task, portable
from roundlog.examples import gpt
from roundlog.examples.baseline import FP32, computed_in

VOCABULARY = 50257
POSITIONS = 1024
GENERATED_ROWS = 256


class GPT2Attention(nn.Module):
    """Causal self-attention. [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        B, T, C = x_BTC.shape
        q, k, v = self.qkv(x_BTC).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        mixed_BHTC = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return F.dropout(self.out(mixed_BHTC.transpose(1, 2).reshape(B, T, C)), self.dropout, self.training)


class GPT2Block(nn.Module):
    """One transformer block. [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = GPT2Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BTC + self.attention(self.norm1(x_BTC))
        x_BTC = x_BTC + self.drop(self.down(F.gelu(self.up(self.norm2(x_BTC)), approximate="tanh")))
        return x_BTC


class GPT2(nn.Module):
    """Tokens i64[B, T] -> logits f32[B, T, V]."""

    def __init__(self, vocabulary: int, positions: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(GPT2Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                # Weights that add to the residual stream start smaller the more layers add to it.
                residual = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.drop(self.token(tokens_BT) + self.position(positions_T))
        logits_BTV: torch.Tensor = self.head(self.norm(self.blocks(x_BTC)))
        return logits_BTV


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of the next token."""
    tokens_BT = batch["tokens"]
    return F.cross_entropy(model(tokens_BT[:, :-1]).flatten(0, 1), tokens_BT[:, 1:].flatten())


@portable()
def gpt2(
    *,
    data: Path | None = None,
    rows: int = GENERATED_ROWS,
    steps: int = 100,
    interval: int = 10,
    batch_size: int = 8,
    sequence: int = 64,
    positions: int = POSITIONS,
    vocabulary: int = VOCABULARY,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    dropout: float = 0.1,
    micro_batches: int = 1,
    max_grad_norm: float | None = None,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps on sequences of `sequence` tokens; the learning rate warms up, then follows a
    cosine; weight decay for matrices only.

    data: a text file, whose bytes are tokens; None: `rows` sequences of random tokens. precision: fp32, or bf16 for
    autocast. Raises CaptureError."""
    if width % heads:
        raise CaptureError(f"a width of {width} cannot be shared by {heads} heads: choose a multiple of {heads}")
    if sequence > positions:
        raise CaptureError(f"a sequence of {sequence} tokens does not fit {positions} positions: choose a shorter one")
    torch.manual_seed(seed)
    model = GPT2(vocabulary, positions, width, heads, layers, dropout)
    if data is not None:
        dataset = gpt.load(data, context=sequence, vocabulary=vocabulary)
    else:
        dataset = {"tokens": torch.randint(0, vocabulary, (rows, sequence + 1))}
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    warmup = max(1, steps // 10)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95)),
        dataset=dataset,
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        micro_batches=micro_batches,
        max_grad_norm=max_grad_norm,
        schedule=lambda step: min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
    )
