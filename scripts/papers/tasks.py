"""The tasks that are measured, by size, and the hardware profiles that stand for different machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from machines.profiles import MACHINES
from roundlog.capture import Task
from roundlog.examples.cifar10 import resnet50, vgg11
from roundlog.examples.gpt2 import gpt2
from roundlog.examples.logistic import logistic

PROFILES: dict[str, dict[str, str]] = {
    "A": {},
    "B": {**MACHINES["compatible"].variables, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "C": {**MACHINES["AVX2"].variables},
}
"""Environment of a fresh process: A as the machine is, B its oldest instruction set on one thread, C AVX2."""

Make = Callable[..., Task]
MAKERS: dict[str, Make] = {"resnet": resnet50, "gpt2": gpt2, "logistic": logistic, "vgg11": vgg11}

SMALL: dict[str, dict[str, Any]] = {
    "resnet": {"rows": 128, "width": 8, "stages": 2, "batch_size": 16},
    "gpt2": {
        "rows": 64, "width": 64, "heads": 4, "layers": 2, "vocabulary": 512, "sequence": 32, "positions": 32,
    },
    "logistic": {"rows": 1 << 13},
    "vgg11": {"rows": 64},
}  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {"resnet": {}, "gpt2": {}, "logistic": {}, "vgg11": {}}


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work of a measurement. Logistic regression and VGG-11 have the papers' steps, but fewer."""

    models: dict[str, dict[str, Any]]
    correction_steps: int
    divergence_steps: int
    timed_rounds: int
    bits: tuple[int, ...]


SIZES = {
    "small": Size(SMALL, correction_steps=3, divergence_steps=10, timed_rounds=3, bits=(32, 26, 23)),
    "brief": Size(PAPER, correction_steps=1, divergence_steps=2, timed_rounds=1, bits=(32,)),
    "paper": Size(PAPER, correction_steps=10, divergence_steps=100, timed_rounds=9, bits=(32, 29, 26)),
}

WARM_UP = 2
"""Timed steps that compile and fill caches, and are not counted."""

TITLES = {"resnet": "ResNet-50", "gpt2": "GPT-2", "logistic": "logistic regression", "vgg11": "VGG-11"}


def make(name: str, arguments: dict[str, Any], steps: int, seed: int = 7) -> Task:
    """The task of that name, for so many steps, its data in the order of that seed."""
    return MAKERS[name](steps=steps, interval=steps, seed=seed, **arguments)
