"""Words and sequences

Sequences of several lengths are padded to one, and what is padding is masked: a program has one shape for each
value."""

from __future__ import annotations

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import task, words


class Attention(nn.Module):
    """Causal attention as in nanoGPT."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Decoder(nn.Module):
    def __init__(self, mixer: nn.Module, *, tied: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe, self.mixer = nn.Embedding(16, 8), nn.Embedding(9, 8), mixer
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.ln, self.lm_head = nn.LayerNorm(8), nn.Linear(8, 16, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        x = x + self.mixer(self.ln(x))
        return self.lm_head(x + self.mlp(x))


def next_word(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = m(batch["ids"][:, :-1])
    return F.cross_entropy(logits.reshape(-1, 16), batch["ids"][:, 1:].reshape(-1))


@script("A GPT block with tied embeddings", source="nanoGPT")
def gpt() -> Task:
    model = Decoder(Attention(), tied=True)
    return task(
        model,
        next_word,
        words(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        max_grad_norm=1.0,
    )


@script("A mask of padding for nn.MultiheadAttention", source="classification of texts of several lengths")
def padding_mask() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(16, 8, padding_idx=0), nn.Linear(8, 3)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

        def forward(self, ids: Tensor, length: Tensor) -> Tensor:
            padding = torch.arange(ids.shape[1]) >= length[:, None]
            x = self.embed(ids.masked_fill(padding, 0))
            y, _ = self.attention(x, x, x, key_padding_mask=padding)
            return self.head(y.masked_fill(padding[:, :, None], 0.0).sum(1) / length[:, None])

    return task(Net(), lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]), words())


@script("Rotary embeddings, cached at the first call", source="GPT-NeoX, and many that follow it")
def rotary() -> Task:
    class Rotary(Attention):
        cos = sin = None

        def angles(self, t: int) -> tuple[Tensor, Tensor]:
            if self.cos is None or self.cos.shape[0] < t:
                rate = 1.0 / 10000 ** (torch.arange(0, 4, 2).float() / 4)
                angle = torch.outer(torch.arange(t).float(), rate).repeat(1, 2)
                self.cos, self.sin = angle.cos(), angle.sin()
            return self.cos, self.sin

        def turn(self, x: Tensor) -> Tensor:
            cos, sin = self.angles(x.shape[2])
            one, two = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-two, one], dim=-1) * sin

        def forward(self, x: Tensor) -> Tensor:
            n, t, c = x.shape
            q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(n, t, c))

    return task(Decoder(Rotary()), next_word, words())


@script("Masked words, drawn in the step", source="BERT, with Hugging Face's collator moved into the step")
def masked_words() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ids, labels = batch["ids"][:, :8].clone(), batch["ids"][:, :8].clone()
        masked = torch.bernoulli(torch.full(labels.shape, 0.5)).bool()
        labels[~masked] = -100
        ids[masked] = 0
        return F.cross_entropy(m(ids).view(-1, 16), labels.view(-1), ignore_index=-100)

    return task(Decoder(nn.Linear(8, 8)), loss, words())


@script(
    "The mean of x[mask]",
    source="a habit of losses over padded sequences",
    outcome=refused("(loss * mask).sum() / mask.sum()", rewrite="weighted_mean"),
)
def mean_of_mask() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, targets = m(batch["ids"][:, :-1]), batch["ids"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        mask = torch.arange(8) < batch["length"][:, None] - 1
        return each[mask].mean()

    return task(Decoder(nn.Linear(8, 8)), loss, words())


@script("A mean weighted by a mask", source="the same, written for fixed shapes")
def weighted_mean() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, targets = m(batch["ids"][:, :-1]), batch["ids"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        mask = torch.arange(8) < batch["length"][:, None] - 1
        return torch.where(mask, each, 0.0).sum() / mask.sum()

    return task(Decoder(nn.Linear(8, 8)), loss, words())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4, bias=False), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


@script(
    "Experts that take their rows by nonzero",
    source="Mixtral as in transformers",
    outcome=refused("weigh them by a mask of zeros and ones", rewrite="experts_by_masks"),
)
def experts_by_nonzero() -> Task:
    class Mixture(Experts):
        def forward(self, x: Tensor) -> Tensor:
            rows = x.reshape(-1, 8)
            weight, chosen = self.gate(rows).softmax(-1).topk(2, dim=-1)
            found = torch.zeros_like(rows)
            for number, expert in enumerate(self.experts):
                row, place = torch.where(chosen == number)
                found.index_add_(0, row, expert(rows[row]) * weight[row, place, None])
            return found.view(x.shape)

    return task(Decoder(Mixture()), next_word, words())


@script("Experts that see all rows, by masks", source="a dense mixture of experts, with a loss of balance")
def experts_by_masks() -> Task:
    class Mixture(Experts):
        def forward(self, x: Tensor) -> Tensor:
            share = self.gate(x).softmax(-1)
            kept = torch.zeros_like(share).scatter(-1, share.topk(2, dim=-1).indices, 1.0)
            self.balance = 4 * (share.mean((0, 1)) * kept.mean((0, 1))).sum()
            return sum(expert(x) * (share * kept)[..., i, None] for i, expert in enumerate(self.experts))

    return task(Decoder(Mixture()), lambda m, batch: next_word(m, batch) + 0.01 * m.mixer.balance, words())


@script(
    "Sparse gradients of an embedding",
    source="PyTorch's Embedding(sparse=True) with SparseAdam",
    outcome=refused("gets a sparse gradient", rewrite="bag_of_words"),
)
def sparse_embedding() -> Task:
    model = nn.Sequential(nn.EmbeddingBag(16, 8, mode="mean", sparse=True), nn.Linear(8, 3))
    return task(
        model,
        lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["y"]),
        words(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@script("A bag of words", source="PyTorch's tutorial on text classification")
def bag_of_words() -> Task:
    model = nn.Sequential(nn.EmbeddingBag(16, 8, mode="mean"), nn.Linear(8, 3))
    return task(
        model,
        lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["y"]),
        words(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@script("Heads split by einops", source="ViT of lucidrains")
def einops_heads() -> Task:
    from einops import rearrange, reduce, repeat

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.cls = nn.Linear(8, 24, bias=False), nn.Parameter(torch.randn(1, 1, 8))

        def forward(self, x: Tensor) -> Tensor:
            seen = torch.cat([repeat(self.cls, "1 1 c -> n 1 c", n=len(x)), x], dim=1)
            q, k, v = (rearrange(y, "n t (h d) -> n h t d", h=2) for y in self.qkv(seen).chunk(3, dim=-1))
            y = rearrange((q @ k.transpose(-1, -2) * 0.5).softmax(-1) @ v, "n h t d -> n t (h d)")
            return y[:, 1:] + reduce(y, "n t c -> n 1 c", "mean")

    return task(Decoder(Mixer()), next_word, words())
