"""Recurrent nets

A state that is carried from batch to batch is a tensor of its final shape from the start. `next_word` is that of words
and sequences."""

from __future__ import annotations

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from tests.scripts.language_scripts import next_word
from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import task, words


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(16, 8), layer, nn.Linear(8, 16)


@script(
    "An LSTM whose state begins as None and is carried on",
    source="truncated backpropagation through time",
    outcome=refused(
        "a step reads model.state[0], where there is no tensor before the first step", rewrite="lstm_state_zero"
    ),
)
def lstm_state_none() -> Task:
    class Net(Recurrent):
        state = None

        def forward(self, ids: Tensor) -> Tensor:
            y, state = self.layer(self.embed(ids), self.state)
            self.state = tuple(part.detach() for part in state)
            return self.head(y)

    return task(Net(nn.LSTM(8, 8, batch_first=True)), next_word, words())


@script("An LSTM whose state begins as zeros and is carried on", source="PyTorch's word_language_model: init_hidden")
def lstm_state_zero() -> Task:
    class Net(Recurrent):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__(layer)
            self.hidden = (torch.zeros(1, 8, 8), torch.zeros(1, 8, 8))

        def forward(self, ids: Tensor) -> Tensor:
            hidden = tuple(part.detach() for part in self.hidden)
            y, self.hidden = self.layer(self.embed(ids), hidden)
            return self.head(y)

    return task(Net(nn.LSTM(8, 8, batch_first=True)), next_word, words())


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

    return task(
        Net(nn.GRU(8, 8, batch_first=True)),
        lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]),
        words(),
    )


@script("A GRU over padded sequences", source="the same, with the last step of each sequence gathered")
def padded_gru() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor, length: Tensor) -> Tensor:
            y, _ = self.layer(self.embed(ids))
            return self.head(y[torch.arange(len(ids)), length - 1])

    return task(
        Net(nn.GRU(8, 8, batch_first=True)),
        lambda m, batch: F.cross_entropy(m(batch["ids"], batch["length"]), batch["y"]),
        words(),
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

    return task(Net(nn.GRUCell(8, 8)), lambda m, batch: F.cross_entropy(m(batch["ids"]), batch["ids"][:, 1:5]), words())


@script("CTC", source="PyTorch's CTCLoss, as in speech recognition")
def ctc() -> Task:
    class Net(Recurrent):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.layer(self.embed(ids))[0]).log_softmax(-1)

    model, criterion = Net(nn.GRU(8, 8, batch_first=True, bidirectional=False)), nn.CTCLoss(zero_infinity=True)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        frames = torch.full((len(batch["ids"]),), 9)
        return criterion(m(batch["ids"]).transpose(0, 1), batch["target"], frames, batch["length"] // 3)

    return task(model, loss, {**words(), "target": torch.randint(1, 16, (32, 3))})
