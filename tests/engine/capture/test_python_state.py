"""Python state that a step reads or draws from: followed where nothing depends on it, refused otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.capture.python_state.snapshot import Snapshot
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.script_tasks import Forward, Net, refused, same, task_of


def _counts(net: Net, x: Tensor) -> Tensor:
    net.n += 1
    return net.a(x) * 0.5**net.n


def _begins_with_nothing(net: Net, x: Tensor) -> Tensor:
    net.h = torch.tanh(net.a(x)).detach() if net.h is None else net.h * 0.5
    return net.a(x) + net.h


@pytest.mark.parametrize(
    ("forward", "sentences"),
    [
        (lambda n, x: n.a(x) * random.choice([1, 2]), ["the step draws from Python's random"]),
        (lambda n, x: n.a(x) + np.random.rand(6).sum(), ["the step draws from numpy.random"]),
        (lambda n, x: n.a(x) * (random.seed(1) or random.random()), ["sets a seed of Python's"]),
        (lambda n, x: n.a(x) + (np.random.seed(1) or np.random.rand()), ["sets a seed of Python's or numpy's"]),
    ],
)
def test_draws_of_python_and_numpy_are_refused(forward: Forward, sentences: list[str]) -> None:
    model = Net(forward)
    refused(task_of(model), *sentences)


@pytest.mark.parametrize("forward", [_counts, _begins_with_nothing])
def test_python_state_that_a_step_depends_on_is_followed(forward: Forward) -> None:
    model = Net(forward)
    model.n, model.h = 0, None
    job = Job.from_task(task_of(model))
    assert (model.n, model.h) == (0, None)
    same(task_of(model))
    assert "number/0" in job.program.schedule_names


def test_a_counter_that_nothing_depends_on_is_left_alone() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.n += 1
        return net.a(x)

    model = Net(forward)
    model.n = 0
    same(task_of(model))


def test_a_seed_that_is_set_inside_the_step_is_refused() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return net.a(x) * torch.rand(6)

    refused(
        task_of(Net(forward)), "aten.rand.default (at test_python_state.py:", "from a seed that is set inside the step"
    )


def test_a_generator_of_the_users_is_replaced_by_the_programs_randomness() -> None:
    generator = torch.Generator().manual_seed(1)

    def forward(net: Net, x: Tensor) -> Tensor:
        return net.a(x) * torch.rand((), generator=generator) + torch.randperm(6, generator=generator)

    job = Job.from_task(task_of(Net(forward)))
    assert sum(node.op == "uniform" for node in job.program.nodes) == 2


@pytest.mark.parametrize(
    "generator",
    [random.Random(1), np.random.default_rng(1), np.random.RandomState(1)],
    ids=["Random", "Generator", "State"],
)
def test_generators_of_python_and_numpy_are_refused_even_if_little_depends_on_them(generator: random.Random) -> None:
    model = Net(lambda n, x: n.a(x) if generator.random() >= 0.0 else x)
    refused(task_of(model), "the step draws from generator", "by torch")


def test_the_operating_systems_randomness_is_refused() -> None:
    generator = random.SystemRandom()
    refused(task_of(Net(lambda n, x: n.a(x) * generator.random())), "draws from the operating system")


def test_what_changes_outside_of_tensors_is_refused() -> None:
    factors = np.ones(6, dtype=np.float32)

    def forward(net: Net, x: Tensor) -> Tensor:
        factors[:] *= 0.9
        return net.a(x) + torch.from_numpy(factors)

    refused(task_of(Net(forward)), "every step changes factors, an array of numpy's")


def test_a_step_that_fails_on_the_first_batch_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps_left"  # which nobody puts back
    file.write_text("3")

    def forward(net: Net, x: Tensor) -> Tensor:
        left = int(file.read_text())
        file.write_text(str(left - 1))
        if not left:
            raise RuntimeError("no step is left")
        return net.a(x)

    refused(task_of(Net(forward)), "your own step fails on the first batch: no step is left")


@pytest.mark.slow_cases("1", "3", "5")
@pytest.mark.parametrize("turn", range(6))
def test_another_thread_that_draws_once_meanwhile_refuses_nothing(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of the moments at which generators are looked at."""
    looked, moved_generators = [], Snapshot.moved_generators

    def drawn_elsewhere(snapshot: Snapshot) -> list[str]:
        looked.append(None)
        if len(looked) == turn + 1:
            random.random()
        return moved_generators(snapshot)

    monkeypatch.setattr(Snapshot, "moved_generators", drawn_elsewhere)
    same(task_of(Net(lambda n, x: n.a(x) * 2)))
    assert len(looked) > turn or turn > 1
