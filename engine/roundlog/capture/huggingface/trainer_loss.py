"""The loss of a `transformers.Trainer`, and what it counts in a whole batch, as objects that are called, can be copied
with the model, and hold nothing that a step changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError
from roundlog.capture.huggingface.known_trainers import is_of_trl
from roundlog.data import micro_batches

COUNT = "num_items_in_batch"
"""Name of the number of tokens that count in a batch, as `Trainer` calls it."""

_NO_PART_OF_A_LOSS = (
    *("train_dataset", "eval_dataset", "data_collator", "optimizer", "lr_scheduler", "callback_handler", "control"),
    "gather_function",
)


class TrainerLoss:
    """The loss of a trainer as a function of a model and a part of a batch."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = _reduced(trainer, _NO_PART_OF_A_LOSS, state=_Counts("state"), is_in_train=True)
        if is_of_trl(trainer):
            self._trainer.accelerator.gather_for_metrics = _LOGGED.gathered
            vars(self._trainer).update(_metrics=_LOGGED, _total_train_tokens=_LOGGED)

    def __call__(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """f32[]: `Trainer.compute_loss` of one micro-batch."""
        inputs = {name: field for name, field in batch.items() if name != COUNT}
        with _in_bf16(model) if self._trainer.args.bf16 else nullcontext():
            loss: torch.Tensor = self._trainer.compute_loss(model, inputs, num_items_in_batch=batch.get(COUNT))
        return loss


class TokenCount:
    """The number of tokens that count in all micro-batches of a batch, where the loss of a trainer is divided by it."""

    def __init__(self, trainer: Any) -> None:
        has_function = trainer.compute_loss_func is not None or None
        without = (*_NO_PART_OF_A_LOSS, "model", "model_wrapped", "model_init", "processing_class", "state")
        self._trainer = _reduced(trainer, without, compute_loss_func=has_function)
        self._parts: int = trainer.args.gradient_accumulation_steps

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        samples = micro_batches(batch, self._parts)
        _, count = self._trainer.get_batch_samples(iter(samples), len(samples), self._trainer.args.device)
        return {} if count is None else {COUNT: count}

    def is_in_loss(self, batch: Mapping[str, torch.Tensor]) -> bool:
        """Whether losses of micro-batches are added up as they are, as in `Trainer.training_step`. batch: some rows."""
        trainer = self._trainer
        if trainer.loss_is_scaled_for_ga is not None:
            return bool(trainer.loss_is_scaled_for_ga)
        counted = trainer.model_accepts_loss_kwargs and bool(self(batch))
        return counted or trainer.compute_loss_func is not None


def _reduced(trainer: Any, without: Iterable[str], **attributes: Any) -> Any:
    """A copy of a trainer, with attributes that are None and others, and an accelerator that has prepared nothing."""
    made, accelerator = copy.copy(trainer), copy.copy(trainer.accelerator)
    vars(accelerator).update(_models=[], _optimizers=[], _schedulers=[], _dataloaders=[])
    vars(made).update(dict.fromkeys(without), accelerator=accelerator, **attributes)
    return made


class _Counts:
    """An attribute of a trainer that `train()` changes from step to step."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copies
            raise AttributeError(name)
        raise CaptureError(
            f"the loss reads {self._name}.{name} of the trainer, which changes from step to step: give a roundlog.Task "
            "with your own loss, which may keep tensors in buffers"
        )


class _Logged:
    """Numbers that are counted for trl's log alone, and what holds them. They have no value and go into no tensor: what
    else they meet raises TypeError."""

    def gathered(self, *_: object) -> _Logged:
        return self

    sum = mean = item = append = __getitem__ = __truediv__ = __floordiv__ = __add__ = gathered

    def __setitem__(self, name: str, value: object) -> None: ...

    def __gt__(self, other: object) -> bool:
        return True if other == 0 else NotImplemented


_LOGGED = _Logged()


@contextmanager
def _in_bf16(model: nn.Module) -> Iterator[None]:
    """While this lasts, the model's forward computes under autocast, and gives FP32: as `Accelerator.prepare_model` has
    it for `train()`."""
    from accelerate.utils.operations import convert_outputs_to_fp32  # type: ignore[import-untyped]

    own = vars(model).get("forward")  # of a library that has put another one there
    computed = torch.autocast(device_type="cpu", dtype=torch.bfloat16)(model.forward)
    model.forward = convert_outputs_to_fp32(computed)
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own
