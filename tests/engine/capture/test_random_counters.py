"""Programs of random counters, whose steps are known by running them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from roundlog.capture import Task
from torch import Tensor

from tests.engine.capture.later_steps import STEPS, Net, followed, task_of

UPDATES: list[Callable[[int], int]] = [
    lambda n: n + 1,
    lambda n: n - 3,
    lambda n: (n + 1) % 11,
    lambda n: n * 3 % 31,
    lambda n: n // 2,
    lambda n: -n,
    lambda n: n + 1 if n < 17 else 0,
    lambda n: divmod(n + 5, 7)[1],
    lambda n: abs(n - 20),
    lambda n: n ^ 5,
]
QUESTIONS: list[Callable[[int, int], bool]] = [
    lambda n, k: n > k,
    lambda n, k: n == k,
    lambda n, k: n % 8 == k % 8,
    lambda n, k: k <= n < k + 5,
    lambda n, k: bool(n & 8),
    lambda n, k: not n,
    lambda n, k: round(n / 7) == k,
    lambda n, k: int(n // 9) in (k, k + 1),
]


@pytest.mark.slow_but("0", "1")
@pytest.mark.parametrize("seed", range(24))
def test_random_counters_are_followed_as_they_run(seed: int) -> None:
    """Programs of two counters, each updated and asked at random; what every step does is known by running it."""
    draw = random.Random(seed)
    updates, questions = draw.choices(UPDATES, k=2), draw.choices(QUESTIONS, k=2)
    limits, start = [draw.randrange(-5, 40) for _ in range(2)], [draw.randrange(9) for _ in range(2)]
    matters = draw.random() < 0.5

    def step(counters: list[int]) -> bool:
        first = questions[0](counters[0], limits[0])
        counters[0] = updates[0](counters[0])
        if first:
            counters[1] = updates[1](counters[1])
        return questions[1](counters[1], limits[1])

    def make() -> Task:
        held = list(start)

        def loss(model: Net, batch: dict[str, Tensor]) -> Tensor:
            return model(batch["x"]).square().mean() * (2 if step(held) and matters else 1)

        return task_of(Net(), loss)

    counters = list(start)
    answers = [step(counters) for _ in range(STEPS)]
    job = followed(make)
    numbers = job.schedule[:, 1:].T.tolist()
    assert numbers == ([[2.0 if answer else 1.0 for answer in answers]] if matters and len(set(answers)) > 1 else [])
