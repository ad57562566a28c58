"""Scripts of the kinds that people have, each with what it should do: be captured, or be refused in a sentence.

`docs/how-to/scripts.md` is an index of them, and `test_script_corpus.py` runs them all. The outcome of a script stands
in its decorator and nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from roundlog import Task

MODULES = (
    "image_scripts",
    "metric_scripts",
    "language_scripts",
    "transformers_scripts",
    "recurrent_scripts",
    "generative_scripts",
    "optimization_scripts",
    "state_scripts",
    "reinforcement_scripts",
    "science_scripts",
    "data_scripts",
    "habit_scripts",
)
"""Modules of scripts, in the order of the page. The docstring of each is the head of its section, and what follows."""

RUN: dict[str, Any] = {"batch_size": 8, "steps": 4, "interval": 2, "seed": 1}
"""What all scripts have in common: the rest of a task."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a script."""

    sentence: str = ""
    """Part of the sentence in which it is refused; empty if it is captured."""
    rewrite: str = ""
    """Name of the captured script that does the same; empty where nothing does."""
    advice: str = ""
    """What to do where no script shows it, as the page says it."""
    warning: str = ""
    """Part of the warning with which it is captured; empty if there is none."""


CAPTURED = Outcome()


def refused(sentence: str, *, rewrite: str = "", advice: str = "") -> Outcome:
    return Outcome(sentence, rewrite, advice)


Make: TypeAlias = Callable[[], Task]


@dataclass(frozen=True, slots=True)
class Script:
    """A small script of one kind."""

    title: str
    source: str
    """Where people have it from."""
    outcome: Outcome
    function: Make

    @property
    def name(self) -> str:
        return self.function.__name__

    def task(self) -> Task:
        """The task that it makes, the same every time."""
        torch.manual_seed(0)
        return self.function()


SCRIPTS: dict[str, Script] = {}
"""By name; complete when `corpus()` has been called."""


def script(title: str, *, source: str, outcome: Outcome = CAPTURED) -> Callable[[Make], Make]:
    def keep(function: Make) -> Make:
        assert function.__name__ not in SCRIPTS, function.__name__
        SCRIPTS[function.__name__] = Script(title, source, outcome, function)
        return function

    return keep


def corpus() -> dict[str, Script]:
    """All scripts by name, in the order of the page."""
    for module in MODULES:
        importlib.import_module(f"tests.scripts.{module}")
    return SCRIPTS
