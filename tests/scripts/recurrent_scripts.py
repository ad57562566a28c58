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


class Frames(Recurrent):
    """Log-probabilities of labels, [steps, rows, 16]; label 0 is the blank."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(ids))[0]).log_softmax(-1).transpose(0, 1)


@script(
    "CTC",
    source="PyTorch's CTCLoss, as in speech recognition",
    outcome=refused("write CTC's recursion over the steps, in logarithms", rewrite="ctc_by_steps"),
)
def ctc() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        frames, lengths = torch.full((len(batch["ids"]),), 9), torch.full((len(batch["ids"]),), 3)
        return F.ctc_loss(m(batch["ids"]), batch["target"], frames, lengths)

    return task(Frames(nn.GRU(8, 8, batch_first=True)), loss, {**words(), "target": torch.randint(1, 16, (32, 3))})


@script("CTC step by step", source="Graves et al. 2006, of labels that are equally many in all rows")
def ctc_by_steps() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        labels, frames = batch["target"], m(batch["ids"])
        path = F.pad(torch.stack([torch.zeros_like(labels), labels], -1).flatten(1), (0, 1))  # blank, label, ..., blank
        of_path = torch.stack([frame.gather(1, path) for frame in frames.unbind()])
        # From one label to the next without a blank, if they are not the same.
        skips = F.pad((path[:, 2:] != 0) & (path[:, 2:] != path[:, :-2]), (2, 0))
        paths = torch.where(torch.arange(path.shape[1]) < 2, of_path[0], -1e30)
        for frame in of_path[1:].unbind():
            one, two = (F.pad(paths[:, :-by], (by, 0), value=-1e30) for by in (1, 2))
            paths = torch.stack([paths, one, torch.where(skips, two, -1e30)]).logsumexp(0) + frame
        return -(paths[:, -2:].logsumexp(1) / labels.shape[1]).mean()

    return task(Frames(nn.GRU(8, 8, batch_first=True)), loss, {**words(), "target": torch.randint(1, 16, (32, 3))})
