"""Trainers of `trl` that a job follows: what their code does beside the loss, by class and version.

`SFTTrainer.compute_loss` is traced as it is. But it counts entropy, accuracy and tokens for its log, by what
`Accelerator.gather_for_metrics` gives, and decides by that which number it logs: nothing of this is in the loss."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

PACKAGE = "trl"

_VERSIONS = ("1.16",)
"""Versions, without the last number, whose code has been read for this module and is held against `train()`."""

_TRAINERS = {"trl.trainer.sft_trainer.SFTTrainer", "trl.trainer.base_trainer._BaseTrainer"}

CONTEXTS = ("maybe_activation_offload_context",)
"""Attributes in whose context a step is taken: where its activations are kept, or nothing."""


def kinds_of_trl(trainer: Any) -> list[type]:
    """Classes of trl's that a trainer is made of."""
    return [kind for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] == PACKAGE]


def trl_refusals(trainer: Any) -> Iterator[str]:
    """The reasons, as sentences, why a job does not follow what is trl's of a trainer."""
    kinds = kinds_of_trl(trainer)
    if not kinds:
        return
    version = str(getattr(sys.modules[PACKAGE], "__version__", "of no version"))
    if version.rpartition(".")[0] not in _VERSIONS:
        yield (
            f"trl is {version}, which nobody has held a job against: install trl {' or '.join(_VERSIONS)}.*, "
            "or train by transformers.Trainer"
        )
    for kind in kinds:
        if f"{kind.__module__}.{kind.__qualname__}" not in _TRAINERS:
            yield (
                f"trl's {kind.__name__} is none of the trainers whose steps a job follows (SFTTrainer): train by a "
                "transformers.Trainer with its loss in compute_loss"
            )
            return


def without_metrics(trainer: Any) -> None:
    """Has a trainer count nothing for its log when its loss is computed. It and its accelerator are copies by then."""
    if not kinds_of_trl(trainer):
        return
    trainer.accelerator = copy.copy(trainer.accelerator)
    trainer.accelerator.gather_for_metrics = _Gather(trainer.accelerator.gather_for_metrics)
    trainer._metrics, trainer._total_train_tokens = _NoLog(), _METRIC


class _Metric:
    """A number for the log. It has no value, and goes into no tensor: whatever else it meets raises TypeError."""

    def sum(self) -> _Metric:
        return self

    mean = item = sum

    def __truediv__(self, other: object) -> _Metric:
        return self if isinstance(other, _Metric) else NotImplemented

    def __floordiv__(self, other: object) -> _Metric:
        return self if isinstance(other, int) else NotImplemented

    def __add__(self, other: object) -> _Metric:
        return self if isinstance(other, _Metric) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return True if other == 0 else NotImplemented


_METRIC = _Metric()


class _Gather:
    """`Accelerator.gather_for_metrics` of one process. To trl's own code it gives numbers for the log."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self._own = own

    def __call__(self, input_data: Any, *rest: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return _METRIC if caller.partition(".")[0] == PACKAGE else self._own(input_data, *rest, **options)


class _NoLog:
    """Takes what is to be logged, by any names."""

    def __getitem__(self, name: str) -> _NoLog:
        return self

    def __setitem__(self, name: str, value: object) -> None: ...

    def append(self, value: object) -> None: ...
