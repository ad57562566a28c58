"""Changes of a `Trainer` beside its arguments: methods that a subclass replaces, as the trainers of `trl` do that a job
follows, and callbacks."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

from roundlog.capture.huggingface.wrappers import only_wraps

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


FOLLOWED = frozenset(
    {
        # Called while the task is made, or traced with every step.
        *("compute_loss", "loss_is_scaled_for_ga", "create_optimizer", "create_scheduler"),
        *("get_optimizer_cls_and_kwargs", "get_decay_parameter_names", "call_model_init"),
        *("_remove_unused_columns", "_set_signature_columns_if_needed", "_get_collator_with_removed_columns"),
    }
)
"""Methods that a subclass may replace, because a task has what they give."""

WITHOUT_EFFECT = frozenset(
    {
        # Evaluation and prediction.
        *("evaluate", "evaluation_loop", "predict", "prediction_step", "get_eval_dataloader", "get_test_dataloader"),
        *("_get_eval_sampler", "_evaluate", "_determine_best_metric", "num_examples"),
        # Reports and files.
        *("log", "floating_point_ops", "store_flos", "save_model", "push_to_hub", "create_model_card", "init_hf_repo"),
        *("is_local_process_zero", "is_world_process_zero", "end", "_save", "_save_checkpoint", "_save_rng_state"),
        *("_save_optimizer_and_scheduler", "_save_scaler", "_get_output_dir", "_push_from_checkpoint"),
        *("_finish_current_push", "_track_num_input_tokens", "_get_learning_rate"),
        # Searches, and what adds or removes callbacks.
        *("hyperparameter_search", "_report_to_hp_search", "_tune_save_checkpoint"),
        *("add_callback", "pop_callback", "remove_callback"),
    }
)
"""Methods that a subclass may replace, because they change no number of a training run."""

_HOMES = ("transformers", "contextlib", "torch")
"""Packages that the methods of transformers' own `Trainer` come from, decorators included."""

_CALLBACKS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback")
_CALLBACK_ROOMS = (
    "transformers.integrations.",
    "transformers.trainer_jit_checkpoint",
    "transformers.utils.notebook",
)


def override_refusals(trainer: Any, base: type) -> Iterator[str]:
    """A sentence for every method of `base`, transformers' own class, that a subclass, the object itself or other code
    replaces though a task would not follow it, and for those of its accelerator. A method that only wraps the one below
    it is followed: `wrappers.py` says which."""
    for kind in type(trainer).__mro__[: type(trainer).__mro__.index(base)]:
        contexts = CONTEXTS if kind in kinds_of_trl(trainer) else ()
        for name, method in vars(kind).items():
            if _is_replaced(name, base) and not only_wraps(method, getattr(base, name), contexts):
                yield (
                    f"{kind.__name__} replaces Trainer.{name}, which a job does not follow: compute the loss in "
                    "compute_loss, and leave the rest to Trainer, or only print and log around super()"
                )
    for name in vars(trainer):
        if _is_replaced(name, base) and callable(getattr(base, name)):
            yield f"the trainer's method {name} has been replaced, which a job does not follow: undo it"
    for name, value in vars(base).items():
        home = getattr(getattr(value, "__func__", value), "__globals__", {}).get("__name__", "transformers")
        if _is_replaced(name, base) and home.partition(".")[0] not in _HOMES:
            yield f"Trainer.{name} has been replaced by a function of {home}, which a job does not follow: undo it"
    for name in vars(trainer.accelerator):
        if callable(getattr(type(trainer.accelerator), name, None)):
            yield (
                f"the method {name} of the trainer's accelerator has been replaced, which a job does not follow: "
                "undo it"
            )


def _is_replaced(name: str, base: type) -> bool:
    own = name.startswith("__") and name.endswith("__")
    return not own and hasattr(base, name) and name not in FOLLOWED | WITHOUT_EFFECT


def callback_refusals(trainer: Any) -> Iterator[str]:
    """A sentence for every callback that does more than to report: what it does at a step is no part of a program."""
    for callback in trainer.callback_handler.callbacks:
        kind = type(callback)
        if kind.__module__.startswith(_CALLBACK_ROOMS):
            continue
        if kind.__module__ == "transformers.trainer_callback" and kind.__name__ in _CALLBACKS:
            continue
        yield (
            f"the callback {kind.__name__} may change the training, and a program does not call it: take it out by "
            f"trainer.remove_callback({kind.__name__}) before"
        )
