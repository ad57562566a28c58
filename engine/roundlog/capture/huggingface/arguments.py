"""Every field of `TrainingArguments`, sorted by what it does to the numbers of a training run.

Each stands in one of three tables: followed, without effect on the numbers, or refused unless it has a value that says
"off". A field of a later version of `transformers` stands in none of them, and is refused until somebody sorts it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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

REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "fp16": ((False,), "a job has no GradScaler, which FP16 needs, so leave it off and use bf16=True"),
    "tf32": ((None, False), "a job multiplies in FP32 or BF16, so leave it off"),
    "use_liger_kernel": ((False,), "it puts kernels in the model's place that capture cannot read, so leave it off"),
    "neftune_noise_alpha": ((None,), "noise on embeddings is added by hooks of train(), so leave it away"),
    "auto_find_batch_size": ((False,), "a job's batches have one size, so leave it off and choose one"),
    "load_best_model_at_end": ((False,), "a job ends with its last state, so leave it off"),
    "data_seed": ((None,), "one seed keys the order of a job's data and its dropout, so leave it away and set seed"),
    "train_sampling_strategy": (("random",), 'a job draws its rows in an order of its own, so leave it at "random"'),
    "resume_from_checkpoint": ((None,), "a job starts with step 0, so leave it away and load the model before"),
    "parallelism_config": ((None,), "a job's step is captured in one process, so leave it away"),
    "fsdp": ((None, "", False, []), "a job's step is captured in one process, so leave it away"),
    "deepspeed": ((None,), "a job's step is captured in one process, so leave it away"),
    "sortish_sampler": ((False,), "a job draws its rows in an order of its own, so leave it off"),
}
"""Field -> its values that say "off", and the rest of the sentence for any other value."""

_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Values of `optim` for which `Trainer` makes an optimizer of torch.optim that capture knows."""

_BY_THE_LOSS = ("reduce_lr_on_plateau", "greedy")
"""Values of `lr_scheduler_type` whose rates depend on the loss."""


def argument_refusals(arguments: Any, *, own_optimizer: bool, own_scheduler: bool) -> Iterator[str]:
    """A sentence for every field with a value that a job cannot follow. own_optimizer, own_scheduler: whether the
    script has brought them itself, so that the fields about them say nothing."""
    for field in fields(arguments):
        name, value = field.name, getattr(arguments, field.name)
        if name in REFUSED:
            accepted, why = REFUSED[name]
            if not any(value is one or (type(value) is type(one) and value == one) for one in accepted):
                yield f"TrainingArguments.{name} is {value!r}, which a job does not follow: {why}"
        elif name not in FOLLOWED | WITHOUT_EFFECT and _of_library(type(arguments), name):
            yield (
                f"TrainingArguments.{name} is of a version of transformers that nobody has held a job against: take "
                "the version that constraints.txt names"
            )
    if not own_optimizer and _word(arguments.optim) not in _OPTIMIZERS:
        yield (
            f"TrainingArguments.optim is {_word(arguments.optim)!r}, which a job does not follow: choose one of "
            f"{', '.join(_OPTIMIZERS)}, or give an optimizer of torch.optim by Trainer(optimizers=(optimizer, None))"
        )
    if not own_scheduler and _word(arguments.lr_scheduler_type) in _BY_THE_LOSS:
        yield (
            f"TrainingArguments.lr_scheduler_type is {_word(arguments.lr_scheduler_type)!r}, whose rates depend on the "
            'loss: choose one that depends on the step alone, as "linear" or "cosine"'
        )
    if arguments.max_grad_norm is None or not math.isfinite(arguments.max_grad_norm):
        # With infinity, `train()` makes NaN of all gradients where the norm of one is infinite.
        yield (
            f"TrainingArguments.max_grad_norm is {arguments.max_grad_norm}, which a job does not follow: 0 leaves "
            "gradients alone"
        )
    yield from _machine_refusals(arguments)


def _machine_refusals(arguments: Any) -> Iterator[str]:
    """Arguments that ask for more than one process that trains on one CPU, in FP32 or BF16."""
    if arguments.device.type != "cpu":
        yield (
            f"the trainer's model is on {arguments.device}, where no step is captured: set "
            "TrainingArguments.use_cpu=True; a job runs on any device afterwards"
        )
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        yield (
            f"the trainer is one of {arguments.world_size} processes, and a job's step is captured in one: start the "
            "script without a launcher, and multiply per_device_train_batch_size"
        )
    if arguments.mixed_precision != "no" and not (arguments.bf16 or arguments.fp16):
        yield (
            f"the environment asks for {arguments.mixed_precision}, which a job follows by arguments alone: unset "
            "ACCELERATE_MIXED_PRECISION, and set TrainingArguments.bf16=True for BF16"
        )
    if arguments.accelerator_config.split_batches:
        yield (
            "TrainingArguments.accelerator_config has split_batches, which a job does not follow: leave it off, and "
            "say by per_device_train_batch_size how large a batch is"
        )


def _of_library(kind: type, name: str) -> bool:
    """Whether a field is one of transformers'. Those that another package or a script adds are read by its code alone,
    which is traced where it computes a loss, and refused where it does more."""
    found = next(parent for parent in reversed(kind.__mro__) if name in vars(parent).get("__annotations__", {}))
    return found.__module__.partition(".")[0] == "transformers"


def _word(value: object) -> str:
    """A value of one of transformers' enumerations as text."""
    return str(getattr(value, "value", value))
