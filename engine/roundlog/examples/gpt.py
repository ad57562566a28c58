"""A small GPT on the bytes of any text file: layer norm, causal attention, GELU, dropout, trained by AdamW.

Shapes: B batch, T context length, C width, H heads, V = 256 byte values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError, Task, portable
from roundlog.examples.baseline import FP32, computed_in
from roundlog.storage import open_regular

BYTES = 256
"""Tokens there are: a text is taken byte by byte."""

_MAX_TEXT = 1 << 30  # bytes; tokens are stored as eight bytes each


def load(text: Path, *, context: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Windows of `context` + 1 bytes that overlap by one: {"tokens": i64[rows, context + 1]}, all below `vocabulary`.
    Raises CaptureError."""
    try:
        with open_regular(text) as file:
            content = file.read(_MAX_TEXT + 1)
    except OSError as error:
        raise CaptureError(f"{text} cannot be read ({error.strerror}): check the path") from error
    if len(content) > _MAX_TEXT:
        raise CaptureError(f"{text} has more than the {_MAX_TEXT} bytes that are read: take a part of it")
    if len(content) <= context:
        raise CaptureError(f"the text {text} has {len(content)} bytes, at least {context + 1} are needed: take another")
    if max(content) >= vocabulary:
        raise CaptureError(
            f"the text {text} has a byte {max(content)}, the model only {vocabulary} tokens: set its vocabulary"
        )
    tokens = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    return {"tokens": tokens.unfold(0, context + 1, context).to(torch.int64)}


class Attention(nn.Module):
    """Causal self-attention, written out. [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        B, T, C = x_BTC.shape
        q, k, v = self.qkv(x_BTC).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        scores_BHTT = q @ k.transpose(-2, -1) / math.sqrt(C // self.heads)
        future_TT = torch.ones(T, T, dtype=torch.bool, device=x_BTC.device).triu(1)
        weights_BHTT = self.drop(F.softmax(scores_BHTT.masked_fill(future_TT, float("-inf")), dim=-1))
        mixed_BTC: torch.Tensor = self.out((weights_BHTT @ v).transpose(1, 2).reshape(B, T, C))
        return mixed_BTC


class TransformerBlock(nn.Module):
    """One transformer block, layer norms first. [B, T, C] -> [B, T, C]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BTC + self.attention(self.norm1(x_BTC))
        x_BTC = x_BTC + self.mlp(self.norm2(x_BTC))
        return x_BTC


class GPT(nn.Module):
    """Input bytes i64[B, T], output logits f32[B, T, V]."""

    def __init__(self, context: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTC = self.token(tokens_BT) + self.position.weight
        logits_BTV: torch.Tensor = self.head(self.norm(self.blocks(x_BTC)))
        return logits_BTV


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of the next byte."""
    tokens = batch["tokens"]
    return F.cross_entropy(model(tokens[:, :-1]).reshape(-1, BYTES), tokens[:, 1:].reshape(-1))


@portable()
def gpt(
    *,
    data: Path,
    steps: int = 100,
    interval: int = 10,
    batch_size: int = 8,
    context: int = 64,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.1,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps on the bytes of the text `data`; the learning rate warms up, then follows a
    cosine; gradients are clipped. precision: fp32, or bf16 for autocast. Raises CaptureError."""
    if width % heads:
        raise CaptureError(f"a width of {width} cannot be shared by {heads} heads: choose a multiple of {heads}")
    torch.manual_seed(seed)
    model = GPT(context, width, heads, layers, dropout)
    warmup = max(1, steps // 10)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1),
        dataset=load(data, context=context, vocabulary=BYTES),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        max_grad_norm=1.0,
        schedule=lambda step: min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
    )
