"""Captured draws are functions of (seed, step, stream), by the formulas that the rules state."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, tau

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.decompositions import TRIALS, standard_gamma
from roundlog.execution import Batches, Executor
from roundlog.rounding import Recorder
from roundlog.training.job import Job
from scipy import stats
from torch import nn
from torch.distributions import Beta, Dirichlet, Gamma, StudentT

from tests.engine.tasks import small_task

SEED = 77
MANY = 4000


class Draws(nn.Module):
    """Leaves what it draws in a buffer, where a test can see it."""

    drawn: torch.Tensor

    def __init__(self, draw: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.ones(2))
        self.draw = draw
        self.register_buffer("drawn", torch.zeros_like(draw()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.drawn.copy_(self.draw())
        return (x * self.weight).sum()


def task_of(draw: Callable[[], torch.Tensor]) -> Task:
    data = {"x": torch.ones(4, 2)}
    return small_task(Draws(draw), lambda m, batch: m(batch["x"]), data, batch_size=2, steps=3, seed=SEED)


def drawn_at(draw: Callable[[], torch.Tensor], *steps: int) -> list[np.ndarray]:
    """What is drawn in each of these steps."""
    job = Job.from_task(lambda: task_of(draw))
    executor, batches, place = Executor(job.program), Batches(job.dataset, job.spec), job.program.state_names.index
    given = [job.inputs(batches, step, list(job.initial.values())) for step in steps]
    return [executor.run(inputs, Recorder(4)).states[place("buffer/drawn")].numpy().copy() for inputs in given]


def drawn(draw: Callable[[], torch.Tensor], step: int) -> np.ndarray:
    return drawn_at(draw, step)[0]


def uniform(step: int, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers by NumPy's Philox, and in FP64: multiples of 2^-24."""
    words = np.random.Philox(key=[SEED, step * 2**32 + stream]).random_raw((prod(shape) + 1) // 2)
    halves = words.view(np.uint32)[: prod(shape)]
    return ((halves >> 8) * 2.0**-24).reshape(shape)


def f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def normal(step: int, shape: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Box and Muller's, rounded after every operator."""
    u, v = uniform(step, first, shape), uniform(step, first + 1, shape)
    u[u == 0] = 2.0**-25
    radius = f32(np.sqrt(f32(-2 * f32(np.log(u)))))
    return f32(radius * f32(np.cos(f32(f32(np.array(tau)) * v))))


@pytest.mark.slow_but("negative")
@pytest.mark.parametrize(
    ("low", "high", "draw"),
    [
        (-7, 5, lambda: torch.randint(-7, 5, (40, 3))),
        (0, 65536, lambda: torch.randint(65536, (40, 3))),
        (2, 9, lambda: torch.randint_like(torch.zeros(40, 3, dtype=torch.int64), 2, 9)),
    ],
    ids=["negative", "the most", "like"],
)
def test_integers_are_uniform_numbers_rounded_down(low: int, high: int, draw: Callable[[], torch.Tensor]) -> None:
    found = drawn(draw, 1)
    assert found.dtype == np.int64
    assert found.tolist() == (low + np.floor(uniform(1, 0, (40, 3)) * (high - low))).tolist()


def test_more_integers_than_can_be_counted_are_refused() -> None:
    with pytest.raises(CaptureError, match="draws from 65537 integers: up to 65536 are supported"):
        capture(lambda: task_of(lambda: torch.randint(65537, (4,))))


@pytest.mark.slow
def test_a_permutation_is_the_order_of_uniform_numbers() -> None:
    found = drawn(lambda: torch.randperm(50), 2)
    assert found.tolist() == np.argsort(uniform(2, 0, (50,)), kind="stable").tolist()


def test_every_draw_has_a_stream_of_its_own() -> None:
    found = drawn(lambda: torch.stack([torch.randn(9), torch.randint(5, (9,)).float(), torch.randn(9)]), 1)
    assert found[0].tolist() == normal(1, (9,)).tolist()
    assert found[1].tolist() == np.floor(uniform(1, 2, (9,)) * 5).tolist()
    assert found[2].tolist() == normal(1, (9,), first=3).tolist()


@pytest.mark.slow
def test_integers_of_32_bits_that_wrap_around_are_refused() -> None:
    """Programs hold them in 64 bits."""

    def far() -> torch.Tensor:
        return (torch.randint(2, 5, (20,), dtype=torch.int32) + (2**31 - 1)).long()

    assert (far() < 0).all(), "PyTorch's wrap"
    with pytest.raises(CaptureError, match="the captured step is not yours: at step 0 the change of buffer/drawn"):
        drawn(far, 1)


@pytest.mark.slow_but("*law0")
@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda: torch._standard_gamma(torch.full((MANY,), 0.4)), stats.gamma(0.4)),
        (lambda: Gamma(2.5, 2.0).sample((MANY,)), stats.gamma(2.5, scale=0.5)),
        (lambda: Beta(0.4, 0.4).sample((MANY,)), stats.beta(0.4, 0.4)),
        (lambda: Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((MANY,))[:, 1], stats.beta(1.0, 2.5)),
        (lambda: StudentT(4.0).sample((MANY,)), stats.t(4.0)),
    ],
)
def test_numbers_of_the_gamma_family_follow_their_law(draw: Callable[[], torch.Tensor], law) -> None:
    found, other = (one.astype(np.float64) for one in drawn_at(draw, 1, 2))
    assert stats.kstest(found, law.cdf).pvalue > 1e-3
    assert abs(found.mean() - law.mean()) < 5 * law.std() / MANY**0.5
    assert not np.array_equal(found, other), "every step has numbers of its own"


def test_a_number_that_no_trial_gives_is_less_likely_than_one_in_two_to_the_64th() -> None:
    """The first trial of a concentration of 1, where rejections are most frequent among those of 1 and more."""

    def taken(x: np.ndarray, of: float) -> np.ndarray:
        d = of - 1 / 3
        base = np.maximum(1 + x / np.sqrt(9 * d), 1e-300)
        return np.minimum(1, np.exp(x * x / 2 + d * (1 - base**3 + 3 * np.log(base))))

    x, width = np.linspace(-9, 9, 200_001, retstep=True)
    rejected = [1 - (stats.norm.pdf(x) * taken(x, of)).sum() * width for of in (1.0, 1.1, 1.5, 2.0, 10.0)]
    assert rejected == sorted(rejected, reverse=True) and rejected[0] == pytest.approx(0.0483, abs=1e-4)
    assert rejected[0] ** TRIALS < 2.0**-65


def test_where_no_trial_is_taken_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normal numbers far below where a number would be positive: nothing is taken, and nothing is infinite."""
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: torch.full(*shape, -50.0))
    assert standard_gamma(torch.tensor([1.0, 4 / 3])).tolist() == pytest.approx([2 / 3, 1.0])


WEIGHTS = torch.tensor([[0.0, 2.0, 1.0, 5.0, 0.0], [3.0, 0.0, 0.0, 0.0, 1.0]])


@pytest.mark.slow
def test_choices_with_replacement_are_partial_sums_below_uniform_numbers() -> None:
    found = drawn(lambda: torch.multinomial(WEIGHTS, 4000, replacement=True), 1)
    sums = np.cumsum(WEIGHTS.numpy().astype(np.float64), axis=1)
    targets = f32(uniform(1, 0, (2, 4000)) * sums[:, -1:])
    assert found.tolist() == (sums[:, None, :] <= targets[:, :, None]).sum(2).tolist()
    for row, weights in zip(found, WEIGHTS.numpy(), strict=True):
        shares = np.bincount(row, minlength=5) / 4000
        assert np.abs(shares - weights / weights.sum()).max() < 0.03


@pytest.mark.slow
def test_one_choice_is_the_largest_quotient_however_many_there_are() -> None:
    def by_order(weights: torch.Tensor, count: int) -> torch.Tensor:
        return (weights / torch.empty_like(weights).exponential_()).topk(count)[1][..., :1]

    weights = WEIGHTS.repeat(20, 1)
    assert drawn(lambda: torch.multinomial(weights, 1), 1).tolist() == drawn(lambda: by_order(weights, 2), 1).tolist()
    assert drawn(lambda: torch.multinomial(torch.eye(2, 20_000).flip(1), 1), 1).tolist() == [[19_999], [19_998]]


@pytest.mark.slow
def test_choices_without_replacement_come_once_and_in_proportion() -> None:
    weights = WEIGHTS[0].expand(3000, 5)
    found = drawn(lambda: torch.multinomial(weights, 3), 1)
    assert all(sorted(row) == [1, 2, 3] for row in found.tolist())
    shares = np.bincount(found[:, 0], minlength=5) / 3000
    assert np.abs(shares - WEIGHTS[0].numpy() / 8).max() < 0.04
