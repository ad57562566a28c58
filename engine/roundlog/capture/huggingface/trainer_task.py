"""A task from a `transformers.Trainer`: the step that its `train()` would take, as a model, a loss and an optimizer,
and the rows that its collator makes of its dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from roundlog.capture.errors import CaptureError, a_kind, reason
from roundlog.capture.huggingface.arguments import argument_refusals
from roundlog.capture.huggingface.collated_rows import rows_of
from roundlog.capture.huggingface.known_trainers import callback_refusals, class_refusals
from roundlog.capture.huggingface.trainer_loss import COUNT, TokenCount, TrainerLoss

if TYPE_CHECKING:
    from transformers import Trainer


def trainer_arguments(given: Trainer | Callable[[], Trainer], interval: int | None) -> dict[str, Any]:
    """Return the arguments of the task of `Task.from_trainer`. Raises CaptureError for what a job cannot follow: for
    all that classes, methods, arguments and callbacks show at once."""
    trainer = _trainer_of(given)
    arguments: Any = trainer.args
    if sentences := list(_refusals(trainer)):
        listed = "; ".join(f"({number}) {one}" for number, one in enumerate(sentences, 1))
        several = f"there are {len(sentences)} things that a job does not follow: {listed}"
        raise CaptureError(several if len(sentences) > 1 else sentences[0])
    loader = _loader(trainer)
    steps, steps_an_epoch = _steps(trainer, loader)
    every = _interval(arguments, steps, steps_an_epoch) if interval is None else interval
    dataset = rows_of(loader.dataset, loader.collate_fn, arguments.train_batch_size)
    if COUNT in dataset:
        raise CaptureError(f"the collator gives a field {COUNT}, which Trainer computes itself: give it another name")
    _align_special_tokens(trainer)
    trainer.model.train()
    optimizer, schedule = _updates(trainer, steps)
    count, parts = TokenCount(trainer), arguments.gradient_accumulation_steps
    return dict(
        model=trainer.model,
        loss=TrainerLoss(trainer),
        optimizer=optimizer,
        dataset=dataset,
        batch_size=arguments.train_batch_size * parts,
        steps=steps,
        interval=every,
        seed=arguments.seed,
        schedule=schedule,
        micro_batches=parts,
        max_grad_norm=arguments.max_grad_norm if arguments.max_grad_norm > 0 else None,  # so does `train()`
        accumulate="sum" if count.is_in_loss({name: field[:parts] for name, field in dataset.items()}) else "mean",
        of_batch=count,
    )


def _trainer_of(given: Any) -> Any:
    """The trainer that is given, or that a function makes. Raises CaptureError for anything else."""
    try:
        from transformers import Trainer
    except ImportError as error:
        raise CaptureError(
            f"transformers cannot be used ({reason(error)}): install it by pip install 'tiebreak[transformers]'"
        ) from error
    made = given() if callable(given) and not isinstance(given, (type, nn.Module)) else given
    if not isinstance(made, Trainer):
        raise CaptureError(f"the trainer is {a_kind(made)}: give a transformers.Trainer, or a function that makes one")
    return made


def _refusals(trainer: Any) -> Iterator[str]:
    """Refusals of what a job cannot follow of a trainer, but for its data and its steps."""
    from transformers import Trainer

    arguments = trainer.args
    made_by = type(trainer).create_optimizer.__module__
    yield from class_refusals(trainer, Trainer)
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
    if steps > whole and rows % size and not arguments.dataloader_drop_last:
        raise CaptureError(
            f"the last batch of an epoch has {rows % size} rows instead of {size}, and a job's batches have one size: "
            "set TrainingArguments.dataloader_drop_last=True, or a batch size that divides the number of rows"
        )
    if steps > whole and batches % parts:
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


def _align_special_tokens(trainer: Any) -> None:
    """Give the model's configuration the tokens of the tokenizer, as `train()` does: some losses leave out padding by
    it."""
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from transformers.trainer_utils import align_special_tokens

    if isinstance(trainer.processing_class, (PreTrainedTokenizerBase, ProcessorMixin)) and hasattr(
        trainer.model, "config"
    ):
        align_special_tokens(trainer.model, trainer.processing_class)


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
        vars(thing).update(before)
