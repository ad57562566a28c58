"""A task from a `transformers.Trainer`: the step that its `train()` would take, as a model, a loss and an optimizer,
and the rows that its collator makes of its dataset."""

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
from roundlog.capture.task import Task, micro_batches
from roundlog.data import Field

if TYPE_CHECKING:
    from transformers import Trainer
from collections.abc import Sequence

from roundlog.capture.checkpoint import SpillFile
from roundlog.capture.task import STORED
from roundlog.data import FileField
from roundlog.program import DType, FieldType, Stored, TensorType

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


_FIXED = (
    'give all rows one size, as by tokenizer(..., padding="max_length", truncation=True), or by '
    "SFTConfig(max_length=size, pad_to_multiple_of=size)"
)


def rows_of(dataset: Any, collate: Callable[[list[Any]], Any], batch_size: int) -> dict[str, torch.Tensor | Field]:
    """Field name -> all rows, [rows, ...], each collated by itself. They are kept in a file, so that they may be larger
    than memory; small integers, whose dtype no field keeps, in memory.

    All rows are collated again in batches of `batch_size`, in order: a collator whose rows depend on their neighbours
    (padding to the longest) or on chance (masking) has no rows that a job could hold. Raises CaptureError."""
    count = _length(dataset)
    columns: dict[str, _Column] = {}
    for row in range(count):
        made = _collated(dataset, collate, [row])
        if not columns:
            columns = {name: _Column(field) for name, field in made.items()}
        _require_alike(columns, made, f"row {row}", "row 0")
        for name, field in made.items():
            columns[name].append(field)
    for first in range(0, count, batch_size):
        several = range(first, min(first + batch_size, count))
        made = _collated(dataset, collate, several)
        _require_alike(columns, made, f"rows {several[0]} to {several[-1]} together", "each alone")
        for name, field in made.items():
            if not _same_bits(field, columns[name].rows(several)):
                raise CaptureError(
                    f"the collator gives other values of {name} for rows {several[0]} to {several[-1]} together than "
                    "for each alone, so that it draws at random or looks at neighbours: do that once, before the "
                    "Trainer is made, and keep the result in the dataset"
                )
    return {name: column.source(count) for name, column in columns.items()}


class _Column:
    """The rows of one field, one behind the other."""

    def __init__(self, like: torch.Tensor) -> None:
        self.shape, self.dtype = like.shape[1:], like.dtype
        self._file = SpillFile("the collated rows")

    def append(self, rows: torch.Tensor) -> None:
        """rows: [n, ...], of the shape and dtype of the first."""
        self._file.append(rows)

    def rows(self, which: range) -> torch.Tensor:
        """[n, ...]: consecutive rows, of those that were appended."""
        size = self.shape.numel() * self.dtype.itemsize
        return self._file.read(which.start * size, torch.Size((len(which), *self.shape)), self.dtype)

    def source(self, count: int) -> torch.Tensor | Field:
        """All `count` rows, as a task takes them."""
        if self.dtype not in STORED:
            return self.rows(range(count))
        kind = TensorType(tuple(self.shape), DType.of(self.dtype))
        field = FieldType(kind, Stored.AS_READ, kind.numel)
        return FileField(field, count, self._file.place, 0, self._file.reader)


def _length(dataset: Any) -> int:
    try:
        count = len(dataset)
    except TypeError:
        raise CaptureError(
            f"the train_dataset, {a_kind(dataset)}, has no length: give one with len() and rows by number"
        ) from None
    if not count:
        raise CaptureError("the train_dataset is empty: give at least one row")
    return count


def _collated(dataset: Any, collate: Callable[[list[Any]], Any], rows: Sequence[int]) -> dict[str, torch.Tensor]:
    name = f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"
    try:
        made = collate([dataset[row] for row in rows])
    except Exception as error:
        raise CaptureError(
            f"the data fails at {name} with {type(error).__name__} ({error}): correct the dataset or the collator"
        ) from error
    if not isinstance(made, Mapping) or not made:
        raise CaptureError(
            f"the collator gives {a_kind(made)} for {name}: let it give a mapping of field names to tensors"
        )
    for field, tensor in made.items():
        if not isinstance(tensor, torch.Tensor):
            raise CaptureError(
                f"the collator gives {a_kind(tensor)} for {field} of {name}: let it give a torch.Tensor, or "
                "leave that field out"
            )
        if tensor.ndim == 0 or len(tensor) != len(rows):
            raise CaptureError(
                f"the collator gives {field} of shape {list(tensor.shape)} for {name}, which is not one entry a row: "
                "use a collator that stacks rows"
            )
    return {str(field): tensor.detach().cpu() for field, tensor in made.items()}


def _require_alike(columns: Mapping[str, _Column], made: Mapping[str, torch.Tensor], which: str, other: str) -> None:
    if columns.keys() != made.keys():
        odd = sorted(columns.keys() ^ made.keys())[0]
        raise CaptureError(f"the collator gives {odd} for some rows and not for others ({which}): give it for all")
    for name, field in made.items():
        sizes, wanted = list(field.shape[1:]), list(columns[name].shape)
        if sizes != wanted:
            raise CaptureError(
                f"the collator gives {name} of size {sizes} for {which} and {wanted} for {other}: {_FIXED}"
            )
        if field.dtype != columns[name].dtype:
            raise CaptureError(
                f"the collator gives {name} as {field.dtype} for {which} and {columns[name].dtype} for {other}: give "
                "all rows one dtype"
            )


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same; a NaN is equal to itself."""
    both = ((one == two) | ((one != one) & (two != two))) if one.is_floating_point() else one == two
    return bool(both.all())
