"""Recurrent layers over packed sequences: trained as by PyTorch, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog import Job, Task
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.engine.capture.calls import refused
from tests.engine.trainings import train_by_program, train_by_pytorch

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


def packed(batch: Batch) -> PackedSequence:
    return pack_padded_sequence(batch["x"], batch["length"], batch_first=True, enforce_sorted=False)


class Reader(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 3)


def of_last_state(m: nn.Module, batch: Batch) -> Tensor:
    state = m.layer(packed(batch))[1]
    state = state[0] if isinstance(state, tuple) else state
    return state.square().sum() + m.head.weight.square().sum()


def of_all_words(m: nn.Module, batch: Batch) -> Tensor:
    out, lengths = pad_packed_sequence(m.layer(packed(batch))[0], batch_first=True, padding_value=0.5)
    mask = torch.arange(out.shape[1]) < lengths[:, None]
    tags = batch["tags"][:, : out.shape[1]]
    return F.cross_entropy(m.head(out)[mask], tags[mask]) + 0.01 * out.square().sum()


def of_last_word(m: nn.Module, batch: Batch) -> Tensor:
    out, lengths = pad_packed_sequence(m.layer(packed(batch))[0], batch_first=True)
    return m.head(out[torch.arange(len(out)), lengths - 1]).square().mean()


def of_packed_words(m: nn.Module, batch: Batch) -> Tensor:
    words = packed(batch)
    words = PackedSequence(torch.tanh(words.data) * 2.0, *words[1:])
    return m.head(m.layer(words)[0].data).square().mean()


def of_a_total_length(m: nn.Module, batch: Batch) -> Tensor:
    out, lengths = pad_packed_sequence(m.layer(packed(batch))[0], batch_first=True, total_length=8)
    return m.head(out.sum(1) / lengths[:, None]).square().mean()


def of_a_state(m: nn.Module, batch: Batch) -> Tensor:
    first = m.head.weight.mean() * torch.arange(1.0, 5.0)[None, :, None].expand(1, 4, 5)
    return m.layer(packed(batch), first)[1].square().sum()


CASES: dict[str, tuple[Callable[[], nn.RNNBase], Loss]] = {
    "a GRU's last state": (lambda: nn.GRU(4, 5, batch_first=True), of_last_state),
    "two layers of an LSTM in both directions": (lambda: nn.LSTM(4, 5, 2, bidirectional=True), of_all_words),
    "its last states": (lambda: nn.LSTM(4, 5, 2, bidirectional=True), of_last_state),
    "an RNN with relu": (lambda: nn.RNN(4, 5, nonlinearity="relu"), of_all_words),
    "an RNN without biases": (lambda: nn.RNN(4, 5, bias=False), of_packed_words),
    "the last word": (lambda: nn.GRU(4, 5), of_last_word),
    "a total length": (lambda: nn.GRU(4, 5), of_a_total_length),
    "a first state": (lambda: nn.GRU(4, 5), of_a_state),
}


def task_of(layer: Callable[[], nn.RNNBase], loss: Loss) -> Task:
    torch.manual_seed(0)
    model = Reader(layer())
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={
            "x": torch.randn(12, 6, 4),
            "length": torch.tensor([3, 5, 1, 2, 6, 6, 1, 4, 2, 2, 2, 2]),
            "tags": torch.randint(3, (12, 6)),
        },
        batch_size=4,
        steps=3,
        interval=1,
        seed=5,
    )


@pytest.mark.slow_but("the last word", "a total length")
@pytest.mark.parametrize("what", CASES)
def test_it_trains_as_by_pytorch(what: str) -> None:
    task = task_of(*CASES[what])
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 3), train_by_program(job, 3)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


def test_dropout_between_layers_draws_for_the_words_that_count() -> None:
    Job.from_task(task_of(lambda: nn.LSTM(4, 5, 2, dropout=0.3), of_all_words))  # which compares with PyTorch's steps


def test_what_is_packed_by_hand_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(PackedSequence(x, torch.tensor([2, 1, 1])))[1]

    refused(Net(), r"not made by pack_padded_sequence in this step")
