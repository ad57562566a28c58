"""What `Task.from_trainer` takes over from a `transformers.Trainer`, and what it refuses, by name and with a remedy."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.huggingface import arguments as table
from roundlog.capture.huggingface import overrides
from roundlog.training.job import Job
from roundlog.training.sameness import confirm_same

from tests.engine.capture.random_trainers import MODELS, WORDS, Case, Plain, transformers
from tests.engine.tasks import conv_task

EarlyStoppingCallback, TrainerCallback = transformers.EarlyStoppingCallback, transformers.TrainerCallback
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
    known = {
        field.name
        for kind in (TrainingArguments, transformers.Seq2SeqTrainingArguments)
        for field in dataclasses.fields(kind)
    }
    tables = [table.FOLLOWED, table.WITHOUT_EFFECT, frozenset(table.REFUSED)]
    assert sum(map(len, tables)) == len(frozenset().union(*tables)), "one table each"
    assert frozenset().union(*tables) == known


def test_a_field_that_nobody_has_sorted_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    later = dataclasses.make_dataclass("Later", [("twisted", bool, False)], bases=(TrainingArguments,))
    later.__module__ = "transformers.training_args"
    made.args = copy.copy(made.args)
    made.args.__class__ = later
    refused(made, "TrainingArguments.twisted", "constraints.txt")
    later.__module__ = "script"  # a field of the script's own, which nothing of transformers reads
    assert Task.from_trainer(made).steps == 3


def test_what_is_off_by_default_passes(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    for name, (accepted, _) in table.REFUSED.items():
        assert getattr(made.args, name, accepted[0]) in accepted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp16", True),
        ("tf32", True),
        ("use_liger_kernel", True),
        ("neftune_noise_alpha", 5.0),
        ("auto_find_batch_size", True),
        ("load_best_model_at_end", True),
        ("data_seed", 0),
        ("train_sampling_strategy", "sequential"),
        ("resume_from_checkpoint", "last"),
        ("parallelism_config", object()),
        ("fsdp", "full_shard"),
        ("deepspeed", {}),
    ],
)
def test_arguments_that_a_job_cannot_follow_are_refused_by_name(name: str, value: object, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    setattr(made.args, name, value)
    refused(made, f"TrainingArguments.{name} is ", "leave it")


def test_every_refusal_is_tried() -> None:
    tried = {
        mark.args[1][i][0]
        for mark in test_arguments_that_a_job_cannot_follow_are_refused_by_name.pytestmark
        for i in range(len(mark.args[1]))
    }
    assert tried | {"sortish_sampler"} == table.REFUSED.keys()


def test_optimizers_and_schedules_of_others_are_refused_by_name(tmp_path: Path) -> None:
    refused(trainer(tmp_path, optim="adafactor"), "TrainingArguments.optim is 'adafactor'", "choose one of adamw_torch")
    loss_bound = trainer(tmp_path)
    loss_bound.args.lr_scheduler_type = "greedy"
    refused(loss_bound, "TrainingArguments.lr_scheduler_type is 'greedy'")
    # They say nothing where the script brings its own.
    model = Plain(0.0)
    own = torch.optim.Adam(model.parameters())
    given = {"model": model, "optimizers": (own, torch.optim.lr_scheduler.ConstantLR(own))}
    made = trainer(tmp_path, given=given, optim="adafactor")
    made.args.lr_scheduler_type = "greedy"
    task = Task.from_trainer(made)
    assert task.optimizer is own


def test_a_machine_that_no_step_is_captured_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingArguments, "device", torch.device("cuda:0"))
        refused(made, "on cuda:0", "use_cpu=True")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingArguments, "world_size", 2)
        refused(made, "one of 2 processes", "without a launcher")
    made.args.mixed_precision = "bf16"
    refused(made, "ACCELERATE_MIXED_PRECISION")
    made.args.mixed_precision = "no"
    made.args.accelerator_config.split_batches = True
    refused(made, "split_batches")


# Methods and callbacks.


class Twice(Trainer):
    """A trainer that trains otherwise."""

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        return super().training_step(*arguments, **options) * 2


class Talkative(Trainer):
    """A trainer that only says more."""

    def log(self, logs: Any, *rest: Any) -> None:
        super().log({**logs, "more": 1.0}, *rest)

    def of_mine(self) -> None: ...


def test_methods_that_change_the_training_are_refused(tmp_path: Path) -> None:
    refused(trainer(tmp_path, Twice), "Twice replaces Trainer.training_step", "compute_loss")
    patched = trainer(tmp_path)
    patched.get_batch_samples = functools.partial(patched.get_batch_samples)
    refused(patched, "the trainer's method get_batch_samples has been replaced")
    assert Task.from_trainer(trainer(tmp_path, Talkative)).steps == 3


class Timed(Trainer):
    """A trainer that says how long its steps take."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        start = time.perf_counter()
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step % 2 == 0:
            logging.info("%.3f after %.3f s", loss.item(), time.perf_counter() - start)
        return loss


def test_a_trainer_that_only_wraps_is_the_trainer_itself(tmp_path: Path) -> None:
    one, two = (capture(Task.from_trainer(trainer(tmp_path, kind))) for kind in (Timed, Trainer))
    assert one.program.nodes == two.program.nodes


class Several(Trainer):
    """A trainer of which much is refused."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().training_step(*args, **kwargs) * 2

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        return super().get_batch_samples(*args, **kwargs)[::-1]


def test_all_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    made = trainer(tmp_path, Several, given={"callbacks": [EarlyStoppingCallback(1)]}, max_steps=10)
    made.args.fp16 = True
    made.args.load_best_model_at_end = True
    made.args.save_strategy, made.args.save_steps = "steps", 4
    made.args.optim = "adafactor"
    made.accelerator.backward = lambda loss, **options: None
    with pytest.raises(CaptureError) as caught:
        Task.from_trainer(made)
    sentence = str(caught.value)
    assert "\n" not in sentence
    for number, words in enumerate(
        [
            "Several replaces Trainer.training_step",
            "Several replaces Trainer.get_batch_samples",
            "the method backward of the trainer's accelerator",
            "TrainingArguments.fp16 is True",
            "TrainingArguments.load_best_model_at_end is True",
            "TrainingArguments.optim is 'adafactor'",
            "the callback EarlyStoppingCallback",
            "10 steps cannot be cut into checkpoints every 4",
        ],
        1,
    ):
        assert f"({number}) {words}" in sentence or words in sentence, words
    assert sentence.startswith("there are 8 things that a job does not follow: (1) ") and "(9)" not in sentence


def test_data_are_looked_at_though_something_else_is_refused(tmp_path: Path) -> None:
    rows = [{"x": torch.zeros(5 + row % 2), "labels": torch.tensor(0)} for row in range(12)]
    made = trainer(tmp_path, Several, rows=rows)
    with pytest.raises(CaptureError, match=r"there are 3 things .*\(3\) the collator gives x of size \[6\]"):
        Task.from_trainer(made)


def test_a_library_or_an_accelerator_whose_methods_are_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages that make training faster replace methods of `Trainer` itself."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", Twice.training_step)
        refused(trainer(tmp_path), "Trainer.training_step has been replaced by a function of", "undo it")
    made = trainer(tmp_path)
    made.accelerator.backward = lambda loss, **options: (loss * 2).backward()
    refused(made, "the method backward of the trainer's accelerator has been replaced", "undo it")


def test_a_model_that_train_would_not_take_is_refused(tmp_path: Path) -> None:
    for name in ("model", "model_wrapped"):
        made = trainer(tmp_path)
        setattr(made, name, Plain(0.0))
        refused(made, "is not the one that train() takes, model_wrapped")


def test_a_size_that_train_would_not_take_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.args.per_device_train_batch_size = 2
    refused(made, "per_device_train_batch_size has become 2", "would keep to 4", "make the Trainer with it")
    for norm in (None, float("inf")):
        refused(trainer(tmp_path, max_grad_norm=norm), f"max_grad_norm is {norm}", "0 leaves gradients alone")


def test_noise_that_the_trainer_alone_knows_of_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.neftune_noise_alpha = 5.0
    refused(made, "neftune_noise_alpha is 5.0", "leave it away")


def test_names_in_the_tables_of_methods_exist() -> None:
    assert all(hasattr(Trainer, name) for name in overrides.FOLLOWED | overrides.WITHOUT_EFFECT)
    assert not overrides.FOLLOWED & overrides.WITHOUT_EFFECT


class Meddling(TrainerCallback):
    def on_step_end(self, arguments: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        model.head.weight.data.clamp_(-1, 1)


@pytest.mark.parametrize("callback", [Meddling(), EarlyStoppingCallback(1)])
def test_callbacks_that_may_change_the_training_are_refused(callback: TrainerCallback, tmp_path: Path) -> None:
    made = trainer(tmp_path, given={"callbacks": [callback]})
    name = type(callback).__name__
    refused(made, f"the callback {name} may change", f"trainer.remove_callback({name})")
    made.remove_callback(type(callback))
    assert Task.from_trainer(made).steps == 3


def test_other_things_are_no_trainers(tmp_path: Path) -> None:
    refused(conv_task(), "the trainer is a Task", "give a transformers.Trainer")
    trained = trainer(tmp_path)
    trained.train()
    refused(trained, "has trained already", "fresh one")


# Data.


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


class Broken(list):
    def __getitem__(self, row: Any) -> Any:
        raise OSError("the disk is gone")


def stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def random_rows(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    made = stacked(rows)
    return made | {"x": made["x"] + torch.randn(1)}


def mixed_rows(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    made = stacked(rows)
    return made | {"x": (made["x"] + made["x"].roll(1, 0)) / 2}


def ragged() -> list[dict[str, torch.Tensor]]:
    return [*data(ROWS - 1), {"x": torch.zeros(6), "labels": torch.tensor(0)}]


def uneven_dtypes() -> list[dict[str, torch.Tensor]]:
    return [*data(ROWS - 1), {"x": torch.zeros(5), "labels": torch.tensor(0.5)}]


@pytest.mark.parametrize(
    ("rows", "collate", "words"),
    [
        (Stream(), None, ["is a stream", "give a dataset with len()"]),
        (Broken(data()), None, ["the data fails at row 0 with OSError (the disk is gone)"]),
        (ragged(), stacked, ["gives x of size [6] for row 11 and [5] for row 0", "max_length"]),
        (uneven_dtypes(), stacked, ["labels as torch.float32 for row 11 and torch.int64"]),
        (None, random_rows, ["other values of x for rows 0 to 3 together", "before the Trainer is made"]),
        (None, mixed_rows, ["other values of x for rows 0 to 3 together", "looks at neighbours"]),
        (None, lambda rows: rows, ["the collator gives a list for row 0"]),
        (None, lambda rows: {}, ["the collator gives a dict for row 0"]),
        (None, lambda rows: stacked(rows) | {"name": "x"}, ["gives a str for name of row 0"]),
        (None, lambda rows: {"x": torch.cat([row["x"] for row in rows])}, ["x of shape [5] for row 0"]),
        (None, lambda rows: {"x": torch.tensor(1.0)}, ["x of shape [] for row 0"]),
        (None, lambda rows: stacked(rows) | ({"y": torch.zeros(1)} if rows[0]["labels"] == 1 else {}), ["y for some"]),
        (None, lambda rows: stacked(rows) | {"num_items_in_batch": torch.ones(len(rows))}, ["another name"]),
    ],
)
def test_rows_without_a_fixed_size_are_refused(rows: Any, collate: Any, words: list[str], tmp_path: Path) -> None:
    given = {} if collate is None else {"data_collator": collate}
    refused(trainer(tmp_path, rows=rows, given=given, remove_unused_columns=False), *words)


def test_a_trainer_without_data_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.train_dataset = None
    refused(made, "has no train_dataset")
    made.train_dataset = []
    refused(made, "the trainer's data cannot be loaded")


def test_padding_to_the_longest_is_refused_and_masking_at_random_too(tmp_path: Path) -> None:
    """The two collators of transformers that most scripts for language models have."""
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), pad_token="[PAD]", mask_token="[MASK]")
    ragged = [{"input_ids": [3] * (2 + row % 3)} for row in range(ROWS)]
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    collate = transformers.DataCollatorForLanguageModeling(tokens, mlm=False)
    refused(trainer(tmp_path, rows=ragged, given={"model": model, "data_collator": collate}), "input_ids of size [3]")
    even = [{"input_ids": [3, 4, 5, 6]} for _ in range(ROWS)]
    Task.from_trainer(trainer(tmp_path, rows=even, given={"model": model, "data_collator": collate})).check()
    masking = transformers.DataCollatorForLanguageModeling(tokens, mlm=True)
    refused(trainer(tmp_path, rows=even, given={"model": model, "data_collator": masking}), "draws at random")


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    words = {"[PAD]": 0, "[MASK]": 1, **{f"w{number}": number for number in range(2, WORDS)}}
    return Tokenizer(models.WordLevel(words, unk_token="[PAD]"))


def test_columns_that_the_model_does_not_take_are_left_out(tmp_path: Path) -> None:
    rows = [row | {"text": torch.zeros(2), "label": row.pop("labels")} for row in data()]
    assert Task.from_trainer(trainer(tmp_path, rows=rows)).dataset.keys() == {"x", "labels"}


# Steps, batches and checkpoints.


def test_steps_of_another_size_are_refused(tmp_path: Path) -> None:
    refused(trainer(tmp_path, rows=data(10)), "last batch of an epoch has 2 rows instead of 4", "dataloader_drop_last")
    task = Task.from_trainer(trainer(tmp_path, rows=data(10), dataloader_drop_last=True))
    assert (task.batch_size, task.steps) == (4, 3)
    few = trainer(tmp_path, gradient_accumulation_steps=2)
    refused(few, "last step of an epoch has 1 batches instead of 2", "gradient_accumulation_steps")
    # Two steps end before that.
    assert Task.from_trainer(trainer(tmp_path, rows=data(10), max_steps=2)).steps == 2
    assert Task.from_trainer(trainer(tmp_path, gradient_accumulation_steps=2, max_steps=1)).batch_size == 8
    refused(trainer(tmp_path, gradient_accumulation_steps=0), "number of steps")
    refused(trainer(tmp_path, max_steps=-1, num_train_epochs=0), "would take no step in 0 epochs", "num_train_epochs")
    for drops in (True, False):
        small = trainer(tmp_path, rows=data(3), max_steps=-1, dataloader_drop_last=drops)
        refused(small, "has 3 rows, fewer than the 4 of a batch", "per_device_train_batch_size")


@pytest.mark.parametrize(
    ("arguments", "interval"),
    [
        ({"save_strategy": "no"}, 12),
        ({"save_strategy": "steps"}, 12),
        ({"save_strategy": "steps", "save_steps": 4}, 4),
        ({"save_strategy": "steps", "save_steps": 0.5}, 6),
        ({"save_strategy": "epoch"}, 3),
    ],
)
def test_checkpoints_are_where_the_trainer_saves(arguments: dict[str, Any], interval: int, tmp_path: Path) -> None:
    task = Task.from_trainer(trainer(tmp_path, max_steps=-1, num_train_epochs=4, **arguments))
    assert (task.steps, task.interval) == (12, interval)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_steps=10, save_strategy="steps", save_steps=4)
    refused(made, "10 steps cannot be cut into checkpoints every 4", "interval=")
    assert Task.from_trainer(made, interval=5).interval == 5


# The trainer and the task beside each other.


@pytest.mark.slow
def test_the_trainer_is_left_as_it_was(tmp_path: Path) -> None:
    """It trains afterwards as if no job had been made of it."""
    made, fresh = trainer(tmp_path, warmup_steps=1), trainer(tmp_path, warmup_steps=1)
    state = torch.get_rng_state()
    Job.from_task(Task.from_trainer(made))
    assert torch.equal(torch.get_rng_state(), state)
    assert made.optimizer is None and made.lr_scheduler is None
    for one in (made, fresh):
        torch.manual_seed(3)
        one.train()
    for name, value in fresh.model.state_dict().items():
        assert torch.equal(made.model.state_dict()[name], value), name


def test_a_scheduler_that_train_would_make_again_is_made_for_all_steps(tmp_path: Path) -> None:
    """One that the trainer has made before, for another number of steps, is thrown away by `train()`."""
    made, fresh = (trainer(tmp_path, warmup_steps=1, lr_scheduler_type="cosine") for _ in range(2))
    made.create_optimizer_and_scheduler(num_training_steps=50)
    before = made.lr_scheduler
    rates = [capture(Task.from_trainer(one)).schedule for one in (made, fresh)]
    assert torch.equal(*rates) and made.lr_scheduler is before


def test_a_model_that_train_would_make_again_is_the_one_of_the_task(tmp_path: Path) -> None:
    made = trainer(tmp_path, given={"model": None, "model_init": lambda: Plain(0.0)}, seed=7)
    captured = capture(Task.from_trainer(made))
    torch.manual_seed(7)
    for name, value in Plain(0.0).named_parameters():
        assert torch.equal(captured.states[f"parameter/{name}"], value), name


def test_padding_is_the_tokenizers_as_in_train(tmp_path: Path) -> None:
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), pad_token="[PAD]")
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=8, n_embd=4, n_layer=1, n_head=1, num_labels=3)
    model = transformers.GPT2ForSequenceClassification(config)
    rows = [{"input_ids": torch.tensor([3, 4, 0]), "labels": torch.tensor(row % 3)} for row in range(ROWS)]
    Task.from_trainer(trainer(tmp_path, rows=rows, given={"model": model, "processing_class": tokens}))
    assert model.config.pad_token_id == 0


def test_a_case_is_made_the_same_twice(tmp_path: Path) -> None:
    case = Case(
        "plain", 0.0, 1, 3, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_steps": 3}
    )
    one, two = (Task.from_trainer(case.trainer(tmp_path)) for _ in range(2))
    assert all(torch.equal(one.dataset[name][:], two.dataset[name][:]) for name in one.dataset)


# Precision.


@pytest.mark.slow_but("rotary")
@pytest.mark.parametrize("name", ["rotary", "tied", "classifier"])
def test_bf16_is_computed_as_accelerate_does(name: str, tmp_path: Path) -> None:
    make, rows = MODELS[name]
    options: dict[str, Any] = {"bf16_full_eval": True, "gradient_accumulation_steps": 2}
    options["per_device_train_batch_size"] = 2
    made = trainer(tmp_path, rows=rows(ROWS), given={"model": make(0.0)}, bf16=True, **options)
    task = Task.from_trainer(made)
    assert confirm_same(task, capture(task)).kernels > 100
    part = task.parts(task.batch(torch.arange(task.batch_size)))[0]
    loss = task.phases()[0].loss(made.model, part)
    assert "forward" not in vars(made.model)
    # As `train()` has it: the model that accelerate has prepared.
    count = part.pop("num_items_in_batch", None)
    prepared = made.accelerator.prepare_model(made.model)
    assert made.accelerator.native_amp
    assert torch.equal(loss, made.compute_loss(prepared, dict(part), num_items_in_batch=count))
