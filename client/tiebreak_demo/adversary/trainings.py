"""Four small trainings with the operators of large ones, so that a game about one of their numbers takes seconds.

Shapes: B batch, T sequence length, C width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from roundlog import training as engine
from roundlog.capture import Task
from roundlog.examples import BF16, FP32, GPT2Block, computed_in, digits_data, digits_loss
from torch import nn
from torch.nn import functional as F

from tiebreak_demo.adversary.frauds import FraudKind

STEPS, INTERVAL = 6, 3

_VERSE = (
    "the first machine adds from the left and the second machine adds from the right "
    "and neither of the two is wrong but their sums are not the same in the last place "
    "so let there be one right answer to every sum and let whoever gives another lose "
)
_LENGTH = 16
_CODE, _LONG_CODE = 8, 160
"""Numbers in the fixed code of a position."""
_LARGE = 64


def _short_numbers(rows: int, columns: int, *, bits: int) -> torch.Tensor:
    """f32[rows, columns] of numbers in (-1, 1) with at most `bits` significant bits. A product of 12 and 13 bits has
    25, one more than FP32 keeps. Many sums of such products therefore lie halfway between two FP32 numbers, on every
    machine and at every step, so that a rounding log has decisions to lie about."""
    generator = torch.Generator().manual_seed(bits)
    numbers: torch.Tensor = torch.randint(1 - 2**bits, 2**bits, (rows, columns), generator=generator) / 2**bits
    return numbers


class Letters(nn.Module):
    """A language model of one block whose last layer is its embedding. Beside the trained positions it adds a fixed
    code, a product of `places`, f32[T, K], and `mix`, f32[K, C]. Letters i64[B, T] -> logits f32[B, T, V]."""

    places: torch.Tensor
    mix: torch.Tensor

    def __init__(self, vocabulary: int, places: torch.Tensor, mix: torch.Tensor, heads: int, dropout: float) -> None:
        super().__init__()
        width = mix.shape[1]
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(_LENGTH, width)
        self.register_buffer("places", places)
        self.register_buffer("mix", mix)
        self.block = GPT2Block(width, heads, dropout)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, letters_BT: torch.Tensor) -> torch.Tensor:
        x_BTC = self.tokens(letters_BT) + self.positions.weight + self.places @ self.mix
        logits_BTV: torch.Tensor = self.head(self.norm(self.block(x_BTC)))
        return logits_BTV


class Digits(nn.Module):
    """A convolutional net with batch norm and dropout. Images f32[B, 1, 8, 8] -> logits f32[B, 10]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(images))), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        logits: torch.Tensor = self.head(self.drop(x.flatten(1)))
        return logits


def _next_letter(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    letters_BT = batch["letters"]
    return F.cross_entropy(model(letters_BT[:, :-1]).flatten(0, 1), letters_BT[:, 1:].flatten())


def gpt() -> Task:
    """Return a GPT of one block: attention, layer norm, GELU, dropout, a tied embedding, AdamW."""
    return _gpt(_short_numbers(_LENGTH, _CODE, bits=12), _short_numbers(_CODE, 32, bits=13), FP32)


def _gpt(places: torch.Tensor, mix: torch.Tensor, precision: str) -> Task:
    torch.manual_seed(7)
    alphabet = sorted(set(_VERSE))
    text = torch.tensor([alphabet.index(letter) for letter in _VERSE])
    model = Letters(len(alphabet), places, mix, heads=2, dropout=0.1)
    return Task(
        model=model,
        loss=computed_in(precision, _next_letter),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset={"letters": text.unfold(0, _LENGTH + 1, 2).contiguous()},
        batch_size=16,
        steps=STEPS,
        interval=INTERVAL,
        seed=7,
    )


def gpt_in_bf16() -> Task:
    """Return the GPT under autocast: weights in FP32, activations and most gradients in BF16."""
    return replace(gpt(), loss=computed_in(BF16, _next_letter))


def gpt_on_tensor_cores() -> Task:
    """Return the GPT under autocast, whose code is a sum of small terms between two large ones that cancel: what tensor
    cores truncate, and in which order they add, shows in BF16."""
    places, mix = _short_numbers(_LENGTH, _LONG_CODE, bits=8), _short_numbers(_LONG_CODE, 32, bits=7) / 4
    places[:, [0, -1]] = _LARGE
    mix[0], mix[-1] = _LARGE, -_LARGE
    return _gpt(places, mix, BF16)


def conv() -> Task:
    """Return a convolutional net on handwritten digits: batch norm, pooling, dropout, SGD with momentum."""
    torch.manual_seed(7)
    model = Digits(width=4, dropout=0.1)
    return Task(
        model=model,
        loss=digits_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        dataset={name: field[:200] for name, field in digits_data().items()},
        batch_size=32,
        steps=STEPS,
        interval=INTERVAL,
        seed=7,
        schedule=lambda step: 1 - step / STEPS,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """parameter: the lies are about its gradient, a sum that the contract computes in several segments, about its
    first optimizer slot, and in BF16 about its conversion, the product with that, and its update. rate: the schedule's
    column with the learning rate. kinds: of the frauds about it. arithmetic: of products of matrices in BF16."""

    name: str
    task: Callable[[], Task]
    parameter: str
    rate: str
    kinds: Sequence[FraudKind]
    arithmetic: str = "exact"

    def job(self) -> engine.Job:
        return engine.Job.from_task(self.task, arithmetic=self.arithmetic)


_OF_BF16 = (FraudKind.ACTIVATION, FraudKind.CONVERSION, FraudKind.MASTER)
_OF_TENSOR_CORES = (FraudKind.ACCUMULATOR, FraudKind.LAST_ROUNDING, FraudKind.GROUP_ORDER, FraudKind.FP32_SUMS)
_IN_FP32 = tuple(kind for kind in FraudKind if kind not in _OF_BF16 + _OF_TENSOR_CORES)
# One ulp of an exponential in FP32 vanishes where the softmax is rounded to BF16, and hardly a rounding is in doubt.
_IN_BF16 = tuple(kind for kind in _IN_FP32 + _OF_BF16 if kind not in (FraudKind.FUNCTION, FraudKind.ROUNDING))
TRAININGS = (
    Training(name="GPT", task=gpt, parameter="block.down.weight", rate="0/step_size", kinds=_IN_FP32),
    Training(name="conv net", task=conv, parameter="conv1.weight", rate="0/lr", kinds=_IN_FP32),
    Training(
        name="GPT in BF16",
        task=gpt_in_bf16,
        parameter="block.down.weight",
        rate="0/step_size",
        kinds=_IN_BF16,
    ),
    Training(
        name="GPT on tensor cores",
        task=gpt_on_tensor_cores,
        parameter="block.down.weight",
        rate="0/step_size",
        kinds=_OF_TENSOR_CORES,
        arithmetic="hopper",
    ),
)
