"""A task from a `transformers.Trainer`: the step that its `train()` would take, as a model, a loss and an optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from roundlog.capture.errors import CaptureError, a_kind, reason
from roundlog.capture.huggingface.arguments import argument_refusals
from roundlog.capture.huggingface.overrides import callback_refusals, override_refusals, trl_refusals, without_metrics
from roundlog.capture.huggingface.rows import rows_of
from roundlog.capture.task import Task, micro_batches
from roundlog.data import Field

if TYPE_CHECKING:
    from transformers import Trainer


Found = TypeVar("Found")

_COUNT = "num_items_in_batch"
"""Name of the number of tokens that count in a batch, as `Trainer` calls it."""


def task_of(trainer: Trainer, interval: int | None) -> Task:
    """The task of `Task.from_trainer`. Raises CaptureError, for all that a job cannot follow at once."""
    _check_kind(trainer)
    arguments: Any = trainer.args
    refusals = Refusals()
    refusals.add(_refusals(trainer))
    loader = refusals.attempt(_loader, trainer)
    steps, every = 0, interval
    dataset: dict[str, torch.Tensor | Field] = {}
    if loader is not None:
        steps, steps_an_epoch = refusals.attempt(_steps, trainer, loader) or (0, 0)
        dataset = refusals.attempt(_rows, loader, arguments.train_batch_size, bool(refusals)) or {}
        if steps and every is None:
            every = refusals.attempt(_interval, arguments, steps, steps_an_epoch)
    if _COUNT in dataset:
        refusals.add([f"the collator gives a field {_COUNT}, which Trainer computes itself: give it another name"])
    model: Any = trainer.model
    if not refusals:
        _align_special_tokens(trainer, model)
        model.train()
    made = refusals.attempt(_updates, trainer, max(1, steps))
    refusals.confirm_none()
    assert made is not None and every is not None
    optimizer, schedule = made
    loss = TrainerLoss(trainer)
    parts = arguments.gradient_accumulation_steps
    return Task(
        model=model,
        loss=loss,
        optimizer=optimizer,
        dataset=dataset,
        batch_size=arguments.train_batch_size * parts,
        steps=steps,
        interval=every,
        seed=arguments.seed,
        schedule=schedule,
        micro_batches=parts,
        max_grad_norm=arguments.max_grad_norm if arguments.max_grad_norm > 0 else None,  # so does `train()`
        accumulate="sum" if loss.is_scaled(dataset) else "mean",
        of_batch=loss.of_batch,
    )


def _refusals(trainer: Any) -> Iterator[str]:
    """Refusals of what a job cannot follow of a trainer, but for its data and its steps."""
    from transformers import Trainer

    arguments = trainer.args
    made_by = type(trainer).create_optimizer.__module__
    yield from trl_refusals(trainer)
    yield from override_refusals(trainer, Trainer)
    yield from argument_refusals(
        arguments,
        own_optimizer=trainer.optimizer is not None
        or trainer.optimizer_cls_and_kwargs is not None
        or made_by.partition(".")[0] != "transformers",
        own_scheduler=trainer.lr_scheduler is not None and not trainer._created_lr_scheduler,
    )
    yield from callback_refusals(trainer)
    noise = trainer.neftune_noise_alpha
    if noise is not None and noise != arguments.neftune_noise_alpha:
        yield (
            f"the trainer's neftune_noise_alpha is {noise}, which a job does not follow: noise on embeddings is added "
            "by hooks of train(), so leave it away"
        )
    if trainer.state.global_step or trainer.is_in_train:
        yield "the trainer has trained already: make a job of a fresh one"
    if trainer.model_wrapped is not trainer.model:
        yield (
            "the trainer's model is not the one that train() takes, model_wrapped: give the model to Trainer, and "
            "wrap it in nothing"
        )
    if trainer._train_batch_size != arguments.train_batch_size:
        yield (
            f"TrainingArguments.per_device_train_batch_size has become {arguments.train_batch_size} since the trainer "
            f"was made, and train() would keep to {trainer._train_batch_size}: make the Trainer with it"
        )


class Refusals:
    """All that a job cannot follow of a trainer: told at once, since each try may take a script minutes."""

    def __init__(self) -> None:
        self._sentences: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._sentences)

    def add(self, sentences: Iterable[str]) -> None:
        self._sentences.extend(sentences)

    def attempt(self, function: Callable[..., Found], *arguments: Any) -> Found | None:
        """The result of a function; None if it fails, with its refusal among the others. Where something has been
        refused before, an error of other code may come from that, and counts for nothing."""
        try:
            return function(*arguments)
        except CaptureError as error:
            if not self or error.__cause__ is None:
                self._sentences.append(str(error))
        except Exception:
            if not self:
                raise
        return None

    def confirm_none(self) -> None:
        """Raises CaptureError, with all sentences on one line, if there are any."""
        if len(self._sentences) == 1:
            raise CaptureError(self._sentences[0])
        if self:
            listed = "; ".join(f"({number}) {one}" for number, one in enumerate(self._sentences, 1))
            raise CaptureError(f"there are {len(self._sentences)} things that a job does not follow: {listed}")


class TrainerLoss:
    """The loss of a `Trainer` as a function of a model and a part of a batch."""

    def __init__(self, trainer: Any) -> None:
        # A copy, without what a loss has no business with: capture looks at everything that a loss can reach.
        self._trainer = copy.copy(trainer)
        for name in ("train_dataset", "eval_dataset", "data_collator", "optimizer", "lr_scheduler", "callback_handler"):
            setattr(self._trainer, name, None)
        without_metrics(self._trainer)
        self._parts: int = trainer.args.gradient_accumulation_steps

    def __call__(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """f32[]: `Trainer.compute_loss` of one micro-batch."""
        inputs = {name: field for name, field in batch.items() if name != _COUNT}
        with _in_bf16(model) if self._trainer.args.bf16 else nullcontext():
            loss: torch.Tensor = self._trainer.compute_loss(model, inputs, num_items_in_batch=batch.get(_COUNT))
        return loss

    def of_batch(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The number of tokens that count in all micro-batches together, where the loss is divided by it."""
        samples = micro_batches(batch, self._parts)
        _, count = self._trainer.get_batch_samples(iter(samples), len(samples), self._trainer.args.device)
        return {} if count is None else {_COUNT: count}

    def is_scaled(self, dataset: Mapping[str, torch.Tensor | Field]) -> bool:
        """Whether the losses of micro-batches are added up as they are, as in `Trainer.training_step`."""
        trainer = self._trainer
        if trainer.loss_is_scaled_for_ga is not None:
            return bool(trainer.loss_is_scaled_for_ga)
        row = {name: field[: self._parts] for name, field in dataset.items()}
        counted = trainer.model_accepts_loss_kwargs and bool(self.of_batch(row))
        return counted or trainer.compute_loss_func is not None


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


def _check_kind(trainer: object) -> None:
    """Raises CaptureError unless this is a `transformers.Trainer`."""
    try:
        from transformers import Trainer
    except ImportError as error:
        raise CaptureError(
            f"transformers cannot be used ({reason(error)}): install it by pip install 'tiebreak[transformers]'"
        ) from error
    if not isinstance(trainer, Trainer):
        raise CaptureError(f"the trainer is {a_kind(trainer)}: give a transformers.Trainer")


def _loader(trainer: Any) -> Any:
    """The trainer's own data loader: it knows which columns are left out."""
    if trainer.train_dataset is None:
        raise CaptureError("the trainer has no train_dataset: give it one")
    if isinstance(trainer.train_dataset, torch.utils.data.IterableDataset):
        raise CaptureError(
            f"the train_dataset, {a_kind(trainer.train_dataset)}, is a stream, and a job has rows by number: "
            "give a dataset with len() and []"
        )
    before = torch.get_rng_state()
    try:
        return trainer.get_train_dataloader()
    except Exception as error:
        raise CaptureError(f"the trainer's data cannot be loaded ({reason(error)}): correct it") from error
    finally:
        torch.set_rng_state(before)


def _rows(loader: Any, size: int, few: bool) -> dict[str, torch.Tensor | Field]:
    """Rows of a loader's data. few: those of the first batch alone, since a trainer that is refused for something else
    should not keep anybody waiting for all of them."""
    rows = loader.dataset
    if few and len(rows) > size:
        rows = torch.utils.data.Subset(rows, range(size))
    return rows_of(rows, loader.collate_fn, size)


def _steps(trainer: Any, loader: Any) -> tuple[int, int]:
    """(steps of the optimizer in all, in one epoch). Raises CaptureError for a step with fewer rows than others."""
    arguments = trainer.args
    parts, size, rows = arguments.gradient_accumulation_steps, arguments.train_batch_size, len(loader.dataset)
    if rows < size:
        raise CaptureError(
            f"the train_dataset has {rows} rows, fewer than the {size} of a batch: choose a smaller "
            "per_device_train_batch_size"
        )
    try:
        _, steps_an_epoch, _, _, _, batches, steps = trainer.set_initial_training_values(arguments, loader)
    except Exception as error:
        raise CaptureError(
            f"the trainer cannot tell its number of steps ({reason(error)}): set TrainingArguments.max_steps"
        ) from error
    if steps < 1:
        raise CaptureError(
            f"the trainer would take no step in {arguments.num_train_epochs:g} epochs: set "
            "TrainingArguments.num_train_epochs or max_steps"
        )
    whole = rows // size // parts  # steps of an epoch before the first that is smaller
    if steps <= whole:
        return int(steps), int(steps_an_epoch)
    if rows % size and not arguments.dataloader_drop_last:
        raise CaptureError(
            f"the last batch of an epoch has {rows % size} rows instead of {size}, and a job's batches have one size: "
            "set TrainingArguments.dataloader_drop_last=True, or a batch size that divides the number of rows"
        )
    if batches % parts:
        raise CaptureError(
            f"the last step of an epoch has {batches % parts} batches instead of {parts}, and a job's steps have one "
            "size: choose a gradient_accumulation_steps that divides the number of batches, or fewer max_steps"
        )
    return int(steps), int(steps_an_epoch)


def _interval(arguments: Any, steps: int, steps_an_epoch: int) -> int:
    """The steps between checkpoints by `save_strategy` and `save_steps`, a share of all steps if it is below 1."""
    strategy = str(getattr(arguments.save_strategy, "value", arguments.save_strategy))
    wanted = {"steps": arguments.save_steps, "epoch": steps_an_epoch}.get(strategy, steps)
    every = min(steps, max(1, math.ceil(wanted * steps if wanted < 1 else wanted)))
    if steps % every:
        raise CaptureError(
            f"{steps} steps cannot be cut into checkpoints every {every}, as TrainingArguments.save_{strategy} has it: "
            "set save_steps, or Task.from_trainer(trainer, interval=...), to a number that divides them"
        )
    return int(every)


def _align_special_tokens(trainer: Any, model: Any) -> None:
    """Give the model's configuration the tokens of the tokenizer, as `train()` does: some losses leave out padding by
    it."""
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from transformers.trainer_utils import align_special_tokens

    if isinstance(trainer.processing_class, (PreTrainedTokenizerBase, ProcessorMixin)) and hasattr(model, "config"):
        align_special_tokens(model, trainer.processing_class)


def _updates(trainer: Any, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer and the scheduler that `train()` would make, or that the script has given. The trainer keeps none
    that was made here, so that its own `train()` starts afresh."""
    with _kept(trainer, "optimizer", "lr_scheduler", "_created_lr_scheduler"):
        if trainer._created_lr_scheduler:
            trainer.lr_scheduler = None  # so does `train()`, which knows the number of steps
        try:
            trainer.create_optimizer()
            trainer.create_scheduler(num_training_steps=steps)
        except Exception as error:
            raise CaptureError(
                f"the trainer cannot make its optimizer or scheduler ({reason(error)}): correct its arguments"
            ) from error
        return trainer.optimizer, trainer.lr_scheduler


@contextmanager
def _kept(thing: Any, *names: str) -> Iterator[None]:
    """Attributes stand as before at the end."""
    before = {name: getattr(thing, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)
