"""A task from a `transformers.Trainer`: the step that its `train()` would take, as a model, a loss and an optimizer,
and the rows that its collator makes of its dataset. What a job cannot follow of its class, methods, arguments and
callbacks is refused."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from roundlog.capture.errors import CaptureError, a_kind, reason
from roundlog.data import STORED, Field, FileField, micro_batches
from roundlog.data.spill_file import SpillFile
from roundlog.program import DType, FieldType, Stored, TensorType

if TYPE_CHECKING:
    from transformers import Trainer

COUNT = "num_items_in_batch"
"""Name of the number of tokens that count in a batch, as `Trainer` calls it."""


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
    joins_rows = getattr(trainer, "padding_free", False)
    collate = partial(_packed, loader.collate_fn) if joins_rows else loader.collate_fn
    if _is_of_trl(trainer, "DPOTrainer"):
        collate = partial(_paired, loader.collate_fn)
    dataset = rows_of(loader.dataset, collate, arguments.train_batch_size)
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
        why = f"transformers cannot be used ({reason(error)})"
        raise CaptureError(f"{why}: install it by pip install 'tiebreak[transformers]'") from error
    made = given() if callable(given) and not isinstance(given, (type, nn.Module)) else given
    if not isinstance(made, Trainer):
        raise CaptureError(f"the trainer is {a_kind(made)}: give a transformers.Trainer, or a function that makes one")
    return made


def _loader(trainer: Any) -> Any:
    """The trainer's own data loader: it knows which columns are left out."""
    if trainer.train_dataset is None:
        raise CaptureError("the trainer has no train_dataset: give it one")
    if isinstance(trainer.train_dataset, torch.utils.data.IterableDataset):
        raise CaptureError("the train_dataset is a stream, and a job has rows by number: give one with len() and []")
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
            f"the train_dataset has {rows} rows: choose a per_device_train_batch_size of as many at most"
        )
    try:
        _, steps_an_epoch, _, _, _, batches, steps = trainer.set_initial_training_values(arguments, loader)
    except Exception as error:
        why = f"the trainer cannot tell its number of steps ({reason(error)})"
        raise CaptureError(f"{why}: set TrainingArguments.max_steps") from error
    if steps < 1:
        raise CaptureError("the trainer would take no step: set TrainingArguments.num_train_epochs or max_steps")
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
    strategy = _word(arguments.save_strategy)
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

    is_known = isinstance(trainer.processing_class, (PreTrainedTokenizerBase, ProcessorMixin))
    if is_known and hasattr(trainer.model, "config"):
        align_special_tokens(trainer.model, trainer.processing_class)


def _updates(trainer: Any, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer and the scheduler that `train()` would make, or that the script has given. The trainer keeps none
    that was made here, so that its own `train()` starts afresh."""
    before = {name: getattr(trainer, name) for name in ("optimizer", "lr_scheduler", "_created_lr_scheduler")}
    if trainer._created_lr_scheduler:
        trainer.lr_scheduler = None  # so does `train()`, which knows the number of steps
    try:
        trainer.create_optimizer()
        trainer.create_scheduler(num_training_steps=steps)
        return trainer.optimizer, trainer.lr_scheduler
    except Exception as error:
        why = f"the trainer cannot make its optimizer or scheduler ({reason(error)})"
        raise CaptureError(f"{why}: correct its arguments") from error
    finally:
        vars(trainer).update(before)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Every field of `TrainingArguments` stands in one of three tables. A field of a later version of `transformers` stands
# in none of them, and is refused until somebody sorts it.

FOLLOWED = _words("""
    per_device_train_batch_size num_train_epochs max_steps gradient_accumulation_steps dataloader_drop_last
    accelerator_config learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay
    adam_beta1 adam_beta2 adam_epsilon max_grad_norm bf16 label_smoothing_factor label_names remove_unused_columns
    average_tokens_across_devices use_cache seed save_strategy save_steps
""")
"""Fields that decide about numbers (or checkpoints), and that a task has from the `Trainer`."""

# How the same numbers are computed; reports; evaluation, which leaves the model as it is; files; how rows are loaded;
# what several processes do; and options that scripts or `Seq2SeqTrainingArguments` read.
WITHOUT_EFFECT = _words("""
    output_dir activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
    gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    full_determinism use_cpu liger_kernel_config optim_target_modules logging_strategy logging_steps
    logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
    log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
    trackio_static_space_id skip_memory_metrics debug eval_strategy eval_steps eval_delay per_device_eval_batch_size
    prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
    include_for_metrics batch_eval_metrics bf16_full_eval fp16_full_eval metric_for_best_model greater_is_better
    save_only_model save_on_each_node save_total_limit enable_jit_checkpoint restore_callback_states_from_checkpoint
    ignore_data_skip push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order length_column_name ddp_find_unused_parameters
    ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp_config local_rank do_train
    do_eval do_predict predict_with_generate generation_max_length generation_num_beams generation_config
""")
"""Fields that change no number of a training run."""

_ONE_PROCESS = "a job's step is captured in one process, so leave it away"
_NOISE = "noise on embeddings is added by hooks of train(), so leave it away"

REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "fp16": ((False,), "a job has no GradScaler, which FP16 needs, so leave it off and use bf16=True"),
    "tf32": ((None, False), "a job multiplies in FP32 or BF16, so leave it off"),
    "use_liger_kernel": ((False,), "it puts kernels in the model's place that capture cannot read, so leave it off"),
    "neftune_noise_alpha": ((None,), _NOISE),
    "auto_find_batch_size": ((False,), "a job's batches have one size, so leave it off and choose one"),
    "load_best_model_at_end": ((False,), "a job ends with its last state, so leave it off"),
    "data_seed": ((None,), "one seed keys the order of a job's data and its dropout, so leave it away and set seed"),
    "train_sampling_strategy": (("random",), 'a job draws its rows in an order of its own, so leave it at "random"'),
    "resume_from_checkpoint": ((None,), "a job starts with step 0, so leave it away and load the model before"),
    "parallelism_config": ((None,), _ONE_PROCESS),
    "fsdp": ((None, "", False, []), _ONE_PROCESS),
    "deepspeed": ((None,), _ONE_PROCESS),
    "sortish_sampler": ((False,), "a job draws its rows in an order of its own, so leave it off"),
}
"""Field -> its values that say "off", and the rest of the sentence for any other value."""

_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Values of `optim` for which `Trainer` makes an optimizer of torch.optim that capture knows."""

_BY_THE_LOSS = ("reduce_lr_on_plateau", "greedy")
"""Values of `lr_scheduler_type` whose rates depend on the loss."""


def _refusals(trainer: Any) -> Iterator[str]:
    """Refusals of what a job cannot follow of a trainer, but for its data and its steps."""
    from transformers import Trainer

    arguments = trainer.args
    yield from _class_refusals(trainer, Trainer)
    yield from _field_refusals(arguments)
    yield from _update_refusals(trainer)
    yield from _machine_refusals(arguments)
    for kind in map(type, trainer.callback_handler.callbacks):
        name, home = kind.__name__, kind.__module__
        if not home.startswith(_CALLBACK_MODULES) and f"{home}.{name}" not in _CALLBACKS:
            yield f"the callback {name} may change the training: take it out by trainer.remove_callback({name}) before"
    noise = trainer.neftune_noise_alpha
    if noise is not None and noise != arguments.neftune_noise_alpha:
        yield f"the trainer's neftune_noise_alpha is {noise}, which a job does not follow: {_NOISE}"
    if trainer.state.global_step or trainer.is_in_train:
        yield "the trainer has trained already: make a job of a fresh one"
    if trainer.model_wrapped is not trainer.model:
        yield "the trainer's model is not the one that train() takes, model_wrapped: give Trainer the model, unwrapped"
    if trainer._train_batch_size != arguments.train_batch_size:
        yield (
            f"TrainingArguments.per_device_train_batch_size has become {arguments.train_batch_size} since the trainer "
            f"was made, and train() would keep to {trainer._train_batch_size}: make the Trainer with it"
        )


def _field_refusals(arguments: Any) -> Iterator[str]:
    """A sentence for every field of the arguments with a value that a job does not follow, or that is in no table."""
    for field in fields(arguments):
        name, value = field.name, getattr(arguments, field.name)
        if name in REFUSED:
            accepted, why = REFUSED[name]
            if not any(value is one or (type(value) is type(one) and value == one) for one in accepted):
                yield _not_followed(name, value, why)
        elif name not in FOLLOWED | WITHOUT_EFFECT and _is_of_transformers(type(arguments), name):
            yield f"TrainingArguments.{name} is of an untried version of transformers: take that of constraints.txt"


def _is_of_transformers(kind: type, field: str) -> bool:
    """Whether a field is one of transformers'. Those that another package or a script adds are read by its code alone,
    which is traced where it computes a loss, and refused where it does more."""
    found = next(parent for parent in reversed(kind.__mro__) if field in vars(parent).get("__annotations__", {}))
    return found.__module__.partition(".")[0] == "transformers"


def _update_refusals(trainer: Any) -> Iterator[str]:
    """A sentence for every argument of the optimizer, the schedule and the clipping that a job does not follow. Those
    of an optimizer, or a scheduler, that the script has brought itself say nothing."""
    arguments = trainer.args
    optimizer, schedule, norm = _word(arguments.optim), _word(arguments.lr_scheduler_type), arguments.max_grad_norm
    is_given = trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None
    is_made = type(trainer).create_optimizer.__module__.partition(".")[0] != "transformers"
    if not is_given and not is_made and optimizer not in _OPTIMIZERS:
        which = f"choose one of {', '.join(_OPTIMIZERS)}"
        yield _not_followed("optim", optimizer, f"{which}, or give one of torch.optim by Trainer(optimizers=(...))")
    if (trainer.lr_scheduler is None or trainer._created_lr_scheduler) and schedule in _BY_THE_LOSS:
        yield _not_followed("lr_scheduler_type", schedule, 'choose one that depends on the step alone, as "linear"')
    if norm is None or not math.isfinite(norm):
        # With infinity, `train()` makes NaN of all gradients where the norm of one is infinite.
        yield _not_followed("max_grad_norm", norm, "0 leaves gradients alone")


def _machine_refusals(arguments: Any) -> Iterator[str]:
    """Arguments that ask for more than one process that trains on one CPU, in FP32 or BF16."""
    if arguments.device.type != "cpu":
        yield f"the trainer's model is on {arguments.device}: set TrainingArguments.use_cpu=True; a job runs anywhere"
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        yield f"the trainer is one of {arguments.world_size} processes: start the script in one, without a launcher"
    if arguments.mixed_precision != "no" and not (arguments.bf16 or arguments.fp16):
        yield "the environment sets ACCELERATE_MIXED_PRECISION: unset it, and set TrainingArguments.bf16=True for BF16"
    if arguments.accelerator_config.split_batches:
        why = "leave it off, and say by per_device_train_batch_size how large a batch is"
        yield _not_followed("accelerator_config.split_batches", True, why)


def _not_followed(name: str, value: object, why: str) -> str:
    return f"TrainingArguments.{name} is {value!r}, which a job does not follow: {why}"


def _word(value: object) -> str:
    """A value of one of transformers' enumerations as text."""
    return str(getattr(value, "value", value))


# Methods that are called while the task is made, or traced with every step; then evaluation and prediction; reports
# and files; searches, and what adds or removes callbacks.
MAY_BE_REPLACED = _words("""
    compute_loss loss_is_scaled_for_ga create_optimizer create_scheduler get_optimizer_cls_and_kwargs
    get_decay_parameter_names call_model_init _remove_unused_columns _set_signature_columns_if_needed
    _get_collator_with_removed_columns
    evaluate evaluation_loop predict prediction_step get_eval_dataloader get_test_dataloader
    _get_eval_sampler _evaluate _determine_best_metric num_examples
    log floating_point_ops store_flos save_model push_to_hub create_model_card init_hf_repo is_local_process_zero
    is_world_process_zero end _save _save_checkpoint _save_rng_state _save_optimizer_and_scheduler _save_scaler
    _get_output_dir _push_from_checkpoint _finish_current_push _track_num_input_tokens _get_learning_rate
    hyperparameter_search _report_to_hp_search _tune_save_checkpoint add_callback pop_callback remove_callback
""")
"""Methods that any subclass may replace."""

_TRL_VERSION = "1.16"
"""Version, without the last number, that is held against `train()`."""

OF_TRL: dict[str, frozenset[str]] = {
    "trl.trainer.base_trainer._BaseTrainer": frozenset(),
    # They take the step of `Trainer`, and say where activations are kept meanwhile.
    "trl.trainer.sft_trainer.SFTTrainer": frozenset(("training_step",)),
    "trl.trainer.dpo_trainer.DPOTrainer": frozenset(("training_step",)),
}
"""Class of trl that a job follows -> methods that it may replace besides."""

_HOMES = ("transformers", "contextlib", "torch")
"""Packages that the methods of transformers' own `Trainer` come from, decorators included."""

_CALLBACKS = [f"transformers.trainer_callback.{name}Callback" for name in ("DefaultFlow", "Progress", "Printer")]
_CALLBACK_MODULES = ("transformers.integrations.", "transformers.trainer_jit_checkpoint", "transformers.utils.notebook")
"""Callbacks that only report: what others do at a step is no part of a program."""


def _class_refusals(trainer: Any, base: type) -> Iterator[str]:
    """A sentence for every class of trl's that no job follows, and for every method of `base`, transformers' own class,
    that a subclass, the object itself or other code replaces though a task would not follow it; for those of its
    accelerator, too."""
    if _is_of_trl(trainer):
        version = str(getattr(sys.modules["trl"], "__version__", "of no version"))
        if not version.startswith(f"{_TRL_VERSION}."):
            yield f"trl is {version}, which nobody has held a job against: install trl {_TRL_VERSION}.*"
    for kind in type(trainer).__mro__[: type(trainer).__mro__.index(base)]:
        known = OF_TRL.get(f"{kind.__module__}.{kind.__qualname__}")
        if known is None and kind.__module__.startswith("trl."):
            yield (
                f"trl's {kind.__name__} is none of the trainers whose steps a job follows (SFTTrainer, DPOTrainer): "
                "train by a transformers.Trainer with its loss in compute_loss"
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


def _is_of_trl(trainer: object, name: str = "") -> bool:
    """Whether a trainer's class is trl's, or a subclass of one. name: of that one, if any."""
    return any(kind.__module__.startswith("trl.") and name in ("", kind.__name__) for kind in type(trainer).__mro__)


def _is_replaced(name: str, base: type) -> bool:
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special and hasattr(base, name) and name not in MAY_BE_REPLACED


class OtherSizeError(CaptureError):
    """A row whose fields have other sizes or dtypes than those of row 0."""


Collate = Callable[[list[Any]], Any]


def rows_of(dataset: Any, collate: Collate, batch_size: int) -> dict[str, torch.Tensor | Field]:
    """Field name -> all rows, [rows, ...]. They are kept in a file, so that they may be larger than memory; small
    integers, whose dtype no field keeps, in memory.

    Rows are collated in batches of `batch_size`, in order, and each by itself. Where a collator pads to the longest row
    of a batch, each batch is collated with the longest row of all beside it. A collator whose rows depend on their
    neighbours otherwise, or on chance (masking), has no rows that a job could hold: CaptureError."""
    try:
        return _rows(dataset, collate, batch_size, [])
    except OtherSizeError:
        return _rows(dataset, collate, batch_size, _longest(dataset, collate))


def _rows(dataset: Any, collate: Collate, batch_size: int, longest: Sequence[int]) -> dict[str, torch.Tensor | Field]:
    count, first = len(dataset), _collated(dataset, collate, [0], longest)
    files = {name: SpillFile("the collated rows") for name in first}
    for start in range(0, count, batch_size):
        numbers = range(start, min(start + batch_size, count))
        alone = [_collated(dataset, collate, [number], longest, first) for number in numbers]
        together = _collated(dataset, collate, numbers, longest, first)
        for name, field in together.items():
            if not _same_bits(field, torch.cat([made[name] for made in alone])):
                raise CaptureError(
                    f"the collator gives other values of {name} for {_told(numbers)} together than for each alone, so "
                    "that it draws at random or looks at neighbours: do that once, before the Trainer is made, and "
                    "keep the result in the dataset"
                )
            files[name].append(field)
    return {name: _field(files[name], like[0], count) for name, like in first.items()}


def _packed(collate: Collate, rows: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of several documents each, side by side, by trl's collator, which would join them to one sequence. A model's
    mask tells documents apart by their position ids; padding is documents of one token."""
    apart, fill = [collate([row]) for row in rows], {"input_ids": 0, "labels": -100, "position_ids": 0}
    return {name: pad_sequence([one[name][0] for one in apart], True, number) for name, number in fill.items()}


_OF_PAIRS = ("input_ids", "attention_mask", "completion_mask")
"""Fields of `DPOTrainer` with a sequence for each answer of a pair."""


def _paired(collate: Collate, rows: list[Any]) -> dict[str, torch.Tensor]:
    """Rows of a chosen and a rejected answer each, [rows, 2, ...], by trl's collator, which puts all rejected ones
    behind all chosen ones."""
    made = collate(rows)
    apart = {name: made[name].unflatten(0, (2, len(rows))).transpose(0, 1) for name in _OF_PAIRS}
    return {**made, **apart}


def _longest(dataset: Any, collate: Collate) -> list[int]:
    """The number of the row with the most elements; none if all rows have one size."""
    alone = (_collated(dataset, collate, [number], []) for number in range(len(dataset)))
    sizes = [sum(field.numel() for field in row.values()) for row in alone]
    return [sizes.index(max(sizes))] if min(sizes) < max(sizes) else []


def _field(file: SpillFile, like: torch.Tensor, count: int) -> torch.Tensor | Field:
    """All `count` rows of a file, as a task takes them. like: one row."""
    if like.dtype not in STORED:
        return file.read(0, torch.Size((count, *like.shape)), like.dtype)
    kind = TensorType(tuple(like.shape), DType.of(like.dtype))
    return FileField(FieldType(kind, Stored.AS_READ, kind.numel), count, file.place, 0, file.reader)


def _collated(
    dataset: Any,
    collate: Collate,
    rows: Sequence[int],
    beside: Sequence[int],
    like: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Field name -> tensor [rows, ...]. beside: rows that are collated with them, and left out. like: what row 0 gives,
    which has the same fields, sizes and dtypes. Raises CaptureError for anything else."""
    told = _told(rows)
    try:
        made = collate([dataset[row] for row in (*rows, *beside)])
    except Exception as error:
        raise CaptureError(
            f"the data fails at {told} with {type(error).__name__} ({error}): correct the dataset or the collator"
        ) from error
    if not isinstance(made, Mapping) or not made:
        raise CaptureError(f"the collator gives {a_kind(made)} for {told}: let it give tensors by names of fields")
    if odd := sorted(made.keys() ^ like.keys() if like else ()):
        raise CaptureError(f"the collator gives {odd[0]} for some rows and not for others ({told}): give it for all")
    for name, field in made.items():
        if not isinstance(field, torch.Tensor) or field.ndim == 0 or len(field) != len(rows) + len(beside):
            given = f"shape {list(field.shape)}" if isinstance(field, torch.Tensor) else a_kind(field)
            raise CaptureError(
                f"the collator gives {given} for {name} of {told}: let it give a torch.Tensor with one entry a row, or "
                "leave that field out"
            )
        ours, theirs = (f"{one.dtype} {list(one.shape[1:])}" for one in (field, like[name] if like else field))
        if ours != theirs:
            raise OtherSizeError(
                f"the collator gives {name} as {ours} for {told} and as {theirs} for row 0: give all rows one dtype "
                'and size, as by tokenizer(..., padding="max_length", truncation=True)'
            )
    return {str(name): field[: len(rows)].detach().cpu() for name, field in made.items()}


def _told(rows: Sequence[int]) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} to {rows[-1]}"


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are the same; a NaN is equal to itself."""
    return bool(((one == two) | ((one != one) & (two != two))).all())


_NO_PART_OF_A_LOSS = (
    *("train_dataset", "eval_dataset", "data_collator", "optimizer", "lr_scheduler", "callback_handler", "control"),
    "gather_function",
)


class TrainerLoss:
    """The loss of a trainer as a function of a model and a part of a batch. It can be copied with the model, and holds
    nothing that a step changes."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = _reduced(trainer, _NO_PART_OF_A_LOSS, state=_Counts(), is_in_train=True)
        if _is_of_trl(trainer):
            self._trainer.accelerator.gather = self._trainer.accelerator.gather_for_metrics = _LOGGED.gathered
            vars(self._trainer).update(_metrics=_LOGGED, _total_train_tokens=_LOGGED)

    def __call__(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """f32[]: `Trainer.compute_loss` of one micro-batch."""
        inputs = {name: field for name, field in batch.items() if name != COUNT}
        if _is_of_trl(self._trainer, "DPOTrainer"):
            inputs |= {name: inputs[name].transpose(0, 1).flatten(0, 1) for name in _OF_PAIRS}
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
    """The state of a trainer, which `train()` changes from step to step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copies
            raise AttributeError(name)
        raise CaptureError(
            f"the loss reads state.{name} of the trainer, which changes from step to step: give a roundlog.Task with "
            "your own loss, which may keep tensors in buffers"
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
