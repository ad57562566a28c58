"""What `Task.from_trainer` takes over from a `transformers.Trainer`, and what it refuses, by name and with a remedy."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.huggingface import trainer_task as table
from roundlog.training.sameness import confirm_same

from tests.engine.capture.random_trainers import MODELS, WORDS, Plain, tokenizer, transformers

Trainer, TrainingArguments = transformers.Trainer, transformers.TrainingArguments

ROWS = 12


def data(rows: int = ROWS) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(5, generator=generator), "labels": torch.tensor(row % 3)} for row in range(rows)]


def trainer(where: Path, kind: type = Trainer, rows: Any = None, given: Any = None, **arguments: Any) -> Any:
    torch.manual_seed(2)
    own = {"max_steps": 3, "per_device_train_batch_size": 4, "save_strategy": "no", **arguments}
    return kind(
        args=TrainingArguments(output_dir=str(where), use_cpu=True, disable_tqdm=True, **own),
        train_dataset=data() if rows is None else rows,
        **({"model": Plain(0.0)} | (given or {})),
    )


def refused(made: Any, *words: str, interval: int | None = None) -> None:
    with pytest.raises(CaptureError) as caught:
        Task.from_trainer(made, interval=interval)
    sentence = str(caught.value)
    assert "\n" not in sentence and ":" in sentence
    for word in words:
        assert word in sentence


# Arguments.


def test_every_field_of_the_arguments_is_sorted_once() -> None:
    """A field of a later version is sorted by what it does in that version's trainer.py, or it stays refused."""
    kinds = (TrainingArguments, transformers.Seq2SeqTrainingArguments)
    known = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    tables = [table.FOLLOWED, table.WITHOUT_EFFECT, frozenset(table.REFUSED)]
    assert sum(map(len, tables)) == len(frozenset().union(*tables)), "one table each"
    assert frozenset().union(*tables) == known
    assert all(hasattr(Trainer, name) for name in table.MAY_BE_REPLACED)


def test_a_field_that_nobody_has_sorted_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    later = dataclasses.make_dataclass("Later", [("twisted", bool, False)], bases=(TrainingArguments,))
    later.__module__ = "transformers.training_args"
    made.args = copy.copy(made.args)
    made.args.__class__ = later
    refused(made, "TrainingArguments.twisted", "constraints.txt")
    later.__module__ = "script"  # a field of the script's own, which nothing of transformers reads
    assert Task.from_trainer(made).steps == 3


OFF = {name: True for name in table.REFUSED} | {
    **{"neftune_noise_alpha": 5.0, "data_seed": 0, "train_sampling_strategy": "sequential", "deepspeed": {}},
    **{"resume_from_checkpoint": "last", "parallelism_config": object(), "fsdp": "full_shard"},
}


@pytest.mark.parametrize("name", sorted(OFF.keys() - {"sortish_sampler"}))
def test_arguments_that_a_job_cannot_follow_are_refused_by_name(name: str, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    setattr(made.args, name, OFF[name])
    refused(made, f"TrainingArguments.{name} is ", "leave it")


# Trainers that are refused: what is done to them, and words of the sentence.


class Twice(Trainer):
    def training_step(self, *arguments: Any, **options: Any) -> Any:
        return super().training_step(*arguments, **options) * 2


class Anneals(Trainer):
    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        return super().compute_loss(*arguments, **options) * (1 if self.state.global_step < 100 else 2)


class Talkative(Trainer):
    """A trainer that only says more."""

    def log(self, logs: Any, *rest: Any) -> None:
        super().log({**logs, "more": 1.0}, *rest)

    def of_mine(self) -> None: ...


def setting(**values: Any) -> Callable[[Any], Any]:
    """Sets attributes, of the trainer or (with a dot, as `args__fp16`) of one of its attributes."""

    def change(made: Any) -> None:
        for path, value in values.items():
            *owners, name = path.split("__")
            setattr(functools.reduce(getattr, owners, made), name, value)

    return change


CHANGED: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "optimizer": (setting(args__optim="adafactor"), ("optim is 'adafactor'", "choose one of adamw_torch")),
    "schedule": (setting(args__lr_scheduler_type="greedy"), ("lr_scheduler_type is 'greedy'",)),
    "environment": (setting(args__mixed_precision="bf16"), ("ACCELERATE_MIXED_PRECISION",)),
    "split batches": (setting(args__accelerator_config__split_batches=True), ("split_batches",)),
    "no norm": (setting(args__max_grad_norm=None), ("max_grad_norm is None", "0 leaves gradients alone")),
    "infinite norm": (setting(args__max_grad_norm=float("inf")), ("max_grad_norm is inf",)),
    "method": (setting(get_batch_samples=print), ("the trainer's method get_batch_samples has been replaced",)),
    "backward": (setting(accelerator__backward=print), ("the method backward of the trainer's accelerator", "undo")),
    "model": (setting(model=Plain(0.0)), ("is not the one that train() takes, model_wrapped",)),
    "model wrapped": (setting(model_wrapped=Plain(0.0)), ("is not the one that train() takes, model_wrapped",)),
    "size": (setting(args__per_device_train_batch_size=2), ("has become 2", "would keep to 4", "make the Trainer")),
    "noise": (setting(neftune_noise_alpha=5.0), ("neftune_noise_alpha is 5.0", "leave it away")),
    "no data": (setting(train_dataset=None), ("has no train_dataset",)),
    "empty data": (setting(train_dataset=[]), ("the trainer's data cannot be loaded",)),
    "trained": (lambda made: made.train(), ("has trained already", "fresh one")),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_trainer_that_has_been_changed_is_refused(name: str, tmp_path: Path) -> None:
    change, words = CHANGED[name]
    made = trainer(tmp_path)
    change(made)
    refused(made, *words)


def test_a_machine_or_a_library_with_another_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value, words in (
        (TrainingArguments, "device", torch.device("cuda:0"), ("on cuda:0", "use_cpu=True")),
        (TrainingArguments, "world_size", 2, ("one of 2 processes", "without a launcher")),
        (Trainer, "training_step", Twice.training_step, ("Trainer.training_step has been replaced by a function of",)),
    ):
        made = trainer(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            refused(made, *words)


def test_methods_that_change_the_training_are_refused(tmp_path: Path) -> None:
    refused(trainer(tmp_path, Twice), "Twice replaces Trainer.training_step", "compute_loss", "roundlog.Task")
    assert Task.from_trainer(trainer(tmp_path, Talkative)).steps == 3
    with pytest.raises(CaptureError, match=r"reads state\.global_step of the trainer, which changes from step to step"):
        capture(lambda: Task.from_trainer(trainer(tmp_path, Anneals)))


def test_callbacks_that_may_change_the_training_are_refused(tmp_path: Path) -> None:
    callback = transformers.EarlyStoppingCallback
    made = trainer(tmp_path, given={"callbacks": [callback(1)]})
    refused(made, "the callback EarlyStoppingCallback may change", "trainer.remove_callback(EarlyStoppingCallback)")
    made.remove_callback(callback)
    assert Task.from_trainer(made).steps == 3


def test_all_that_classes_and_arguments_show_is_told_at_once(tmp_path: Path) -> None:
    made = trainer(tmp_path, Twice)
    made.args.fp16 = True
    refused(made, "there are 2 things that a job does not follow: (1) Twice replaces", "; (2) TrainingArguments.fp16")


# Data.


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


class Broken(list):
    def __getitem__(self, row: Any) -> Any:
        raise OSError("the disk is gone")


def stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def with_x(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    return lambda rows: stacked(rows) | {"x": change(stacked(rows)["x"])}


def with_last(**row: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [*data(ROWS - 1), {"x": torch.zeros(5), "labels": torch.tensor(0)} | row]


@pytest.mark.parametrize(
    ("rows", "collate", "words"),
    [
        (Stream(), None, ["is a stream", "give one with len()"]),
        (Broken(data()), None, ["the data fails at row 0 with OSError (the disk is gone)"]),
        (with_last(x=torch.zeros(6)), stacked, ["fails at row 0 with RuntimeError (stack expects", "correct the"]),
        (with_last(labels=torch.tensor(0.5)), stacked, ["labels as torch.float32 [] for row 11 and as torch.int64 []"]),
        (None, with_x(lambda x: x + torch.randn(1)), ["other values of x for rows 0 to 3 together", "before the Trai"]),
        (None, with_x(lambda x: x + x.roll(1, 0)), ["other values of x for rows 0 to 3 together", "at neighbours"]),
        (None, lambda rows: rows, ["the collator gives a list for row 0"]),
        (None, lambda rows: stacked(rows) | {"name": "x"}, ["gives a str for name of row 0"]),
        (None, with_x(lambda x: x.reshape(-1)), ["gives shape [5] for x of row 0"]),
        (None, lambda rows: stacked(rows) | ({"y": torch.zeros(1)} if rows[0]["labels"] == 1 else {}), ["y for some"]),
        (None, lambda rows: stacked(rows) | {"num_items_in_batch": torch.ones(len(rows))}, ["another name"]),
    ],
)
def test_rows_that_no_job_could_hold_are_refused(rows: Any, collate: Any, words: list[str], tmp_path: Path) -> None:
    given = {} if collate is None else {"data_collator": collate}
    refused(trainer(tmp_path, rows=rows, given=given, remove_unused_columns=False), *words)


def test_masking_at_random_is_refused(tmp_path: Path) -> None:
    rows = [{"input_ids": [3, 4, 5], "labels": [3, 4, 5]} for _ in range(ROWS)]
    masking = transformers.DataCollatorForLanguageModeling(tokenizer("[MASK]", mask_token="[MASK]"), mlm=True)
    refused(trainer(tmp_path, rows=rows, given={"model": MODELS["tied"][0](0.0), "data_collator": masking}), "random")


# Steps, batches and checkpoints.

EPOCHS = {"max_steps": -1, "num_train_epochs": 4}


@pytest.mark.parametrize(
    ("rows", "arguments", "found"),
    [
        (ROWS, EPOCHS | {"save_strategy": "no"}, (4, 12, 12)),
        (ROWS, EPOCHS | {"save_strategy": "steps"}, (4, 12, 12)),
        (ROWS, EPOCHS | {"save_strategy": "steps", "save_steps": 4}, (4, 12, 4)),
        (ROWS, EPOCHS | {"save_strategy": "steps", "save_steps": 0.5}, (4, 12, 6)),
        (ROWS, EPOCHS | {"save_strategy": "epoch"}, (4, 12, 3)),
        (10, {"dataloader_drop_last": True}, (4, 3, 3)),
        (10, {"max_steps": 2}, (4, 2, 2)),  # they end before the smaller batch
        (ROWS, {"gradient_accumulation_steps": 2, "max_steps": 1}, (8, 1, 1)),
        (10, {}, "last batch of an epoch has 2 rows instead of 4"),
        (ROWS, {"gradient_accumulation_steps": 2}, "last step of an epoch has 1 batches instead of 2"),
        (ROWS, {"gradient_accumulation_steps": 0}, "number of steps"),
        (ROWS, EPOCHS | {"num_train_epochs": 0}, "would take no step: set TrainingArguments.num_train_epochs"),
        (3, EPOCHS, "has 3 rows: choose a per_device_train_batch_size of as many at most"),
        (ROWS, {"max_steps": 10, "save_strategy": "steps", "save_steps": 4}, "10 steps cannot be cut into checkpoints"),
    ],
)
def test_steps_have_one_size(rows: int, arguments: dict[str, Any], found: Any, tmp_path: Path) -> None:
    """found: rows of a batch, steps, and the interval of checkpoints; or words of the refusal."""
    made = trainer(tmp_path, rows=data(rows), **arguments)
    if isinstance(found, str):
        refused(made, found)
    else:
        task = Task.from_trainer(made)
        assert (task.batch_size, task.steps, task.interval) == found


# The trainer and the task beside each other.


@pytest.mark.slow
def test_a_scheduler_that_train_would_make_again_is_made_for_all_steps(tmp_path: Path) -> None:
    """One that the trainer has made before, for another number of steps, is thrown away by `train()`."""
    made, fresh = (trainer(tmp_path, warmup_steps=1, lr_scheduler_type="cosine") for _ in range(2))
    made.create_optimizer_and_scheduler(num_training_steps=50)
    before = made.lr_scheduler
    rates = [capture(functools.partial(Task.from_trainer, one)).schedule for one in (made, fresh)]
    assert torch.equal(*rates) and made.lr_scheduler is before


def test_padding_is_the_tokenizers_as_in_train(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=8, n_embd=4, n_layer=1, n_head=1, num_labels=3)
    model = transformers.GPT2ForSequenceClassification(config)
    rows = [{"input_ids": torch.tensor([3, 4, 0]), "labels": torch.tensor(row % 3)} for row in range(ROWS)]
    given = {"model": model, "processing_class": tokenizer("[MASK]", mask_token="[MASK]")}
    Task.from_trainer(trainer(tmp_path, rows=rows, given=given))
    assert model.config.pad_token_id == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotary", "tied", "classifier"])
def test_bf16_is_computed_as_accelerate_does(name: str, tmp_path: Path) -> None:
    make, rows = MODELS[name]
    options = {"bf16_full_eval": True, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    made = trainer(tmp_path, rows=rows(ROWS), given={"model": make(0.0)}, bf16=True, **options)
    task = Task.from_trainer(made)
    assert confirm_same(capture(lambda: task)).kernels > 100
    part = task.parts_at(0, task.batch(torch.arange(task.batch_size)))[0]
    loss = task.phases()[0].loss(made.model, part)
    assert "forward" not in vars(made.model)
    # As `train()` has it: the model that accelerate has prepared.
    count = part.pop("num_items_in_batch", None)
    prepared = made.accelerator.prepare_model(made.model)
    assert made.accelerator.native_amp
    assert torch.equal(loss, made.compute_loss(prepared, dict(part), num_items_in_batch=count))
