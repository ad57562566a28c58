"""Words and sequences

Sequences of several lengths are padded to one, and what is padding is masked: a program has one shape for each
value."""

from __future__ import annotations

import math
import random

import torch
from roundlog import Task
from script_corpus import RUN, refused, script
from script_rows import words
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence


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
    return Task(
        model=model,
        loss=next_word,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        dataset=words(),
        max_grad_norm=1.0,
        **RUN,
    )


@script("nn.TransformerEncoder with a causal mask", source="PyTorch's tutorial on language modelling")
def transformer_encoder() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.decode = nn.Embedding(16, 8), nn.Linear(8, 16)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
            place, rate = torch.arange(8)[:, None], torch.exp(torch.arange(0, 8, 2) * (-math.log(10000.0) / 8))
            self.register_buffer("pe", torch.stack([torch.sin(place * rate), torch.cos(place * rate)], 2).flatten(1))

        def forward(self, ids: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            return self.decode(self.encoder(self.embed(ids) * math.sqrt(8) + self.pe, mask, is_causal=True))

    model = Net()
    return Task(
        model=model, loss=next_word, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), dataset=words(), **RUN
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

    model = Net()
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


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

    model = Decoder(Rotary())
    return Task(model=model, loss=next_word, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)


@script("Masked words, drawn in the step", source="BERT, with Hugging Face's collator moved into the step")
def masked_words() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ids, labels = batch["ids"][:, :8].clone(), batch["ids"][:, :8].clone()
        masked = torch.bernoulli(torch.full(labels.shape, 0.5)).bool()
        labels[~masked] = -100
        ids[masked] = 0
        return F.cross_entropy(m(ids).view(-1, 16), labels.view(-1), ignore_index=-100)

    model = Decoder(nn.Linear(8, 8))
    return Task(model=model, loss=loss, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)


@script(
    "The mean of x[mask]",
    source="a habit of losses over padded sequences",
    outcome=refused("shape depends on values", rewrite="weighted_mean"),
)
def mean_of_mask() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, targets = m(batch["ids"][:, :-1]), batch["ids"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        mask = torch.arange(8) < batch["length"][:, None] - 1
        return each[mask].mean()

    model = Decoder(nn.Linear(8, 8))
    return Task(model=model, loss=loss, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)


@script("A mean weighted by a mask", source="the same, written for fixed shapes")
def weighted_mean() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, targets = m(batch["ids"][:, :-1]), batch["ids"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        mask = torch.arange(8) < batch["length"][:, None] - 1
        return torch.where(mask, each, 0.0).sum() / mask.sum()

    model = Decoder(nn.Linear(8, 8))
    return Task(model=model, loss=loss, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(16, 8), layer, nn.Linear(8, 16)


@script("An LSTM that begins each batch at zero", source="PyTorch's word_language_model")
def lstm() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            y, _ = self.layer(self.embed(ids))
            return self.head(y)

    model = Net(nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.2))
    return Task(
        model=model,
        loss=next_word,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        dataset=words(),
        max_grad_norm=0.25,
        **RUN,
    )


@script(
    "An LSTM whose state begins as None and is carried on",
    source="truncated backpropagation through time",
    outcome=refused("not the same from one time to the next", rewrite="lstm_state"),
)
def lstm_state_none() -> Task:
    class Net(Recurrent):
        state = None

        def forward(self, ids: Tensor) -> Tensor:
            y, state = self.layer(self.embed(ids), self.state)
            self.state = tuple(part.detach() for part in state)
            return self.head(y)

    model = Net(nn.LSTM(8, 8, batch_first=True))
    return Task(model=model, loss=next_word, optimizer=torch.optim.Adam(model.parameters()), dataset=words(), **RUN)


@script(
    "An LSTM whose state begins as zeros and is carried on",
    source="PyTorch's word_language_model: init_hidden",
    outcome=refused("not the same from one time to the next", rewrite="lstm_state"),
)
def lstm_state_zero() -> Task:
    class Net(Recurrent):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__(layer)
            self.hidden = (torch.zeros(1, 8, 8), torch.zeros(1, 8, 8))

        def forward(self, ids: Tensor) -> Tensor:
            hidden = tuple(part.detach() for part in self.hidden)
            y, self.hidden = self.layer(self.embed(ids), hidden)
            return self.head(y)

    model = Net(nn.LSTM(8, 8, batch_first=True))
    return Task(model=model, loss=next_word, optimizer=torch.optim.Adam(model.parameters()), dataset=words(), **RUN)


@script("An LSTM whose state is two attributes", source="the same, with a tensor for each part of the state")
def lstm_state() -> Task:
    class Net(Recurrent):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__(layer)
            self.h, self.c = torch.zeros(1, 8, 8), torch.zeros(1, 8, 8)

        def forward(self, ids: Tensor) -> Tensor:
            y, (h, c) = self.layer(self.embed(ids), (self.h, self.c))
            self.h, self.c = h.detach(), c.detach()
            return self.head(y)

    model = Net(nn.LSTM(8, 8, batch_first=True))
    return Task(model=model, loss=next_word, optimizer=torch.optim.Adam(model.parameters()), dataset=words(), **RUN)


@script(
    "A GRU over packed sequences",
    source="PyTorch forums, on sequences of several lengths",
    outcome=refused("packed sequences have a shape that depends on values", rewrite="padded_gru"),
)
def packed_gru() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor, length: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.embed(ids), length, batch_first=True, enforce_sorted=False)
            return self.head(self.layer(packed)[1][-1])

    model = Net(nn.GRU(8, 8, batch_first=True))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


@script("A GRU over padded sequences", source="the same, with the last step of each sequence gathered")
def padded_gru() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor, length: Tensor) -> Tensor:
            y, _ = self.layer(self.embed(ids))
            return self.head(y[torch.arange(len(ids)), length - 1])

    model = Net(nn.GRU(8, 8, batch_first=True))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


@script(
    "Teacher forcing by a coin of Python",
    source="PyTorch's tutorial on translation with a sequence to sequence network",
    outcome=refused("draws from", rewrite="teacher_forcing"),
)
def teacher_forcing_by_random() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            h, word, found = torch.zeros(len(ids), 8), ids[:, 0], []
            for t in range(1, 5):
                h = self.layer(self.embed(word), h)
                found.append(self.head(h))
                word = ids[:, t] if random.random() < 0.5 else found[-1].argmax(1)
            return torch.stack(found, 2)

    model = Net(nn.GRUCell(8, 8))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["ids"][:, 1:5]),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


@script("Teacher forcing by torch.where", source="the same, decided for every row")
def teacher_forcing() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            h, word, found = torch.zeros(len(ids), 8), ids[:, 0], []
            for t in range(1, 5):
                h = self.layer(self.embed(word), h)
                found.append(self.head(h))
                word = torch.where(torch.rand(len(ids)) < 0.5, ids[:, t], found[-1].argmax(1))
            return torch.stack(found, 2)

    model = Net(nn.GRUCell(8, 8))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["ids"][:, 1:5]),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4, bias=False), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


@script(
    "Experts that take their rows by nonzero",
    source="Mixtral as in transformers",
    outcome=refused("shape depends on values", rewrite="experts_by_masks"),
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

    model = Decoder(Mixture())
    return Task(model=model, loss=next_word, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)


@script("Experts that see all rows, by masks", source="a dense mixture of experts, with a loss of balance")
def experts_by_masks() -> Task:
    class Mixture(Experts):
        def forward(self, x: Tensor) -> Tensor:
            share = self.gate(x).softmax(-1)
            kept = torch.zeros_like(share).scatter(-1, share.topk(2, dim=-1).indices, 1.0)
            self.balance = 4 * (share.mean((0, 1)) * kept.mean((0, 1))).sum()
            return sum(expert(x) * (share * kept)[..., i, None] for i, expert in enumerate(self.experts))

    model = Decoder(Mixture())
    return Task(
        model=model,
        loss=lambda m, batch: next_word(m, batch) + 0.01 * m.mixer.balance,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=words(),
        **RUN,
    )


@script("CTC", source="PyTorch's CTCLoss, as in speech recognition")
def ctc() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.layer(self.embed(ids))[0]).log_softmax(-1)

    model, criterion = Net(nn.GRU(8, 8, batch_first=True, bidirectional=False)), nn.CTCLoss(zero_infinity=True)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        frames = torch.full((len(batch["ids"]),), 9)
        return criterion(m(batch["ids"]).transpose(0, 1), batch["target"], frames, batch["length"] // 3)

    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        dataset={**words(), "target": torch.randint(1, 16, (32, 3))},
        **RUN,
    )


@script(
    "Sparse gradients of an embedding",
    source="PyTorch's Embedding(sparse=True) with SparseAdam",
    outcome=refused("gets a sparse gradient", rewrite="bag_of_words"),
)
def sparse_embedding() -> Task:
    model = nn.Sequential(nn.EmbeddingBag(16, 8, mode="mean", sparse=True), nn.Linear(8, 3))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=words(),
        **RUN,
    )


@script("A bag of words", source="PyTorch's tutorial on text classification")
def bag_of_words() -> Task:
    model = nn.Sequential(nn.EmbeddingBag(16, 8, mode="mean"), nn.Linear(8, 3))
    return Task(
        model=model,
        loss=lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=words(),
        **RUN,
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

    model = Decoder(Mixer())
    return Task(model=model, loss=next_word, optimizer=torch.optim.AdamW(model.parameters()), dataset=words(), **RUN)
