"""Which subclasses of `transformers.Trainer`, and which callbacks, a job follows: transformers' own, known ones of trl,
and those that replace only methods whose results a task has, or that change no number of a training run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_FOLLOWED = """compute_loss loss_is_scaled_for_ga create_optimizer create_scheduler get_optimizer_cls_and_kwargs
    get_decay_parameter_names call_model_init _remove_unused_columns _set_signature_columns_if_needed
    _get_collator_with_removed_columns"""
"""Methods that are called while the task is made, or traced with every step."""

# Evaluation and prediction; reports and files; searches, and what adds or removes callbacks.
_WITHOUT_EFFECT = """evaluate evaluation_loop predict prediction_step get_eval_dataloader get_test_dataloader
    _get_eval_sampler _evaluate _determine_best_metric num_examples
    log floating_point_ops store_flos save_model push_to_hub create_model_card init_hf_repo is_local_process_zero
    is_world_process_zero end _save _save_checkpoint _save_rng_state _save_optimizer_and_scheduler _save_scaler
    _get_output_dir _push_from_checkpoint _finish_current_push _track_num_input_tokens _get_learning_rate
    hyperparameter_search _report_to_hp_search _tune_save_checkpoint add_callback pop_callback remove_callback"""

MAY_BE_REPLACED = frozenset((_FOLLOWED + " " + _WITHOUT_EFFECT).split())
"""Methods that any subclass may replace."""

_TRL = "trl"
_TRL_VERSIONS = ("1.16",)
"""Versions, without the last number, that are held against `train()`."""

_OF_TRL: dict[str, frozenset[str]] = {
    "trl.trainer.base_trainer._BaseTrainer": frozenset(),
    # It takes the step of `Trainer`, and says where activations are kept meanwhile.
    "trl.trainer.sft_trainer.SFTTrainer": frozenset(("training_step",)),
}
"""Class that a job follows -> methods that it may replace besides."""

_HOMES = ("transformers", "contextlib", "torch")
"""Packages that the methods of transformers' own `Trainer` come from, decorators included."""

_CALLBACKS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback")
_CALLBACK_MODULES = (
    "transformers.integrations.",
    "transformers.trainer_jit_checkpoint",
    "transformers.utils.notebook",
)


def is_of_trl(trainer: object) -> bool:
    """Whether a trainer's class is trl's, or a subclass of one."""
    return any(_package(kind) == _TRL for kind in type(trainer).__mro__)


def class_refusals(trainer: Any, base: type) -> Iterator[str]:
    """A sentence for every class of trl's that no job follows, and for every method of `base`, transformers' own class,
    that a subclass, the object itself or other code replaces though a task would not follow it; for those of its
    accelerator, too."""
    if is_of_trl(trainer):
        version = str(getattr(sys.modules[_TRL], "__version__", "of no version"))
        if version.rpartition(".")[0] not in _TRL_VERSIONS:
            yield (
                f"trl is {version}, which nobody has held a job against: install trl {' or '.join(_TRL_VERSIONS)}.*, "
                "or train by transformers.Trainer"
            )
    for kind in type(trainer).__mro__[: type(trainer).__mro__.index(base)]:
        known = _OF_TRL.get(f"{kind.__module__}.{kind.__qualname__}")
        if known is None and _package(kind) == _TRL:
            yield (
                f"trl's {kind.__name__} is none of the trainers whose steps a job follows (SFTTrainer): train by a "
                "transformers.Trainer with its loss in compute_loss"
            )
            return
        for name in vars(kind):
            if _is_replaced(name, base) and name not in (known or ()):
                yield (
                    f"{kind.__name__} replaces Trainer.{name}, which a job does not follow: compute the loss in "
                    "compute_loss and leave the rest to Trainer, or give a roundlog.Task with your own loss"
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
            yield f"the method {name} of the trainer's accelerator has been replaced, which no job follows: undo it"


def callback_refusals(trainer: Any) -> Iterator[str]:
    """A sentence for every callback that does more than to report: what it does at a step is no part of a program."""
    for callback in trainer.callback_handler.callbacks:
        kind = type(callback)
        is_own = kind.__module__ == "transformers.trainer_callback" and kind.__name__ in _CALLBACKS
        if not is_own and not kind.__module__.startswith(_CALLBACK_MODULES):
            yield (
                f"the callback {kind.__name__} may change the training, and a program does not call it: take it out by "
                f"trainer.remove_callback({kind.__name__}) before"
            )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_replaced(name: str, base: type) -> bool:
    own = name.startswith("__") and name.endswith("__")
    return not own and hasattr(base, name) and name not in MAY_BE_REPLACED
