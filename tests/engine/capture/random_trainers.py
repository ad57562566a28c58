"""Random `transformers.Trainer`s, and two ways to train them: by their own `train()`, and by the captured program.

Neither way knows of the other, but for what a job keys by itself: `train()` gets the rows in the job's order, and its
dropout the numbers that the program has drawn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Captured, Task
from roundlog.capture.draws import Replay
from roundlog.capture.real_steps.patched_torch import eager_torch
from roundlog.data import widened
from roundlog.execution import Executor
from roundlog.operators import StepInputs
from roundlog.rounding import Recorder
from torch import nn
from torch.nn import functional as F

from tests.engine.trainings import batch_of

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

WORDS, TOKENS = 24, 5

Rows = list[dict[str, torch.Tensor]]


class Plain(nn.Module):
    """A model of no library: it takes no keywords for its loss, so that `Trainer` averages over micro-batches."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(TOKENS, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(dropout))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.norm(self.layers(x)))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def _tied(dropout: float) -> nn.Module:
    """Embeddings that also are the last layer."""
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=TOKENS,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)


def _rotary(dropout: float) -> nn.Module:
    """Buffers that no `state_dict` holds, and a last layer of its own."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
        attention_dropout=dropout,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def _classifier(dropout: float) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def _words(rows: int) -> Rows:
    """Rows with different numbers of tokens that count."""
    words = torch.randint(1, WORDS, (rows, TOKENS))
    labels = torch.where(torch.rand(rows, TOKENS) < 0.4, -100, words)
    labels[:, 1] = words[:, 1]
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


def _masked(rows: int) -> Rows:
    """Rows that end in padding."""
    words, lengths = torch.randint(1, WORDS, (rows, TOKENS)), torch.randint(2, TOKENS + 1, (rows, 1))
    mask = (torch.arange(TOKENS) < lengths).long()
    labels = torch.randint(3, (rows,))
    return [{"input_ids": w * m, "attention_mask": m, "labels": y} for w, m, y in zip(words, mask, labels, strict=True)]


def _numbers(rows: int) -> Rows:
    x, labels = torch.randn(rows, TOKENS), torch.randint(3, (rows,))
    return [{"x": one, "labels": label, "unused": one * 2} for one, label in zip(x, labels, strict=True)]


def tokenizer(other: str, **special: str) -> Any:
    """One of words, with a token besides that pads and another one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, other: 1, **{f"w{number}": number for number in range(2, WORDS)}}
    made = Tokenizer(models.WordLevel(words, unk_token="[PAD]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", **special)


MODELS: dict[str, tuple[Callable[[float], nn.Module], Callable[[int], Rows]]] = {
    "tied": (_tied, _words),
    "rotary": (_rotary, _words),
    "classifier": (_classifier, _masked),
    "plain": (Plain, _numbers),
}


def _adapted(**options: Any) -> Callable[[float], nn.Module]:
    """A frozen base with adapters of `peft`, whose last layer is tied to a frozen embedding."""

    def make(dropout: float) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        given = {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True, **options}
        # B begins with zeros, which have no sign that a gradient of A could have.
        return get_peft_model(_tied(0.0), LoraConfig(lora_dropout=dropout, init_lora_weights=False, **given))

    return make


ADAPTED: dict[str, tuple[Callable[[float], nn.Module], Callable[[int], Rows]]] = {
    "LoRA": (_adapted(), _words),
    "DoRA": (_adapted(use_dora=True), _words),
    "all layers": (_adapted(target_modules="all-linear", bias="all", use_rslora=True), _words),
    "a module besides": (_adapted(modules_to_save=["ln_f"]), _words),
    "tokens besides": (_adapted(trainable_token_indices=[1, 2]), _words),
}
"""Models of which adapters alone are trained."""

_SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cosine", {"num_cycles": 0.7}),
    ("cosine_with_restarts", {"num_cycles": 2}),
    ("polynomial", {"power": 2.0}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {"timescale": 3}),
    ("cosine_with_min_lr", {"min_lr": 1e-3}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    ("warmup_stable_decay", {"num_decay_steps": 2}),
]

_OPTIMIZERS = ["adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop"]


def squares(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A loss of the script's own, divided by what counts in the whole batch."""
    return F.log_softmax(outputs["logits"], -1).square().sum() / (
        1 if num_items_in_batch is None else num_items_in_batch
    )


class Weighted(transformers.Trainer):
    """A trainer with a loss and with optimizer groups of its own."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + 1e-2 * outputs["logits"].square().mean()
        return (loss, outputs) if return_outputs else loss

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return [name for name, _ in model.named_parameters() if "head" not in name]


@dataclass(slots=True)
class Case:
    """One random trainer, which can be made again."""

    model: str
    dropout: float
    seed: int
    steps: int
    arguments: dict[str, Any]
    loss: str = "own"
    """Whose loss: the model's own, a function's ("function"), or that of a subclass ("subclass")."""
    optimizer: bool = False
    """Whether the script brings an optimizer and a scheduler of its own."""

    @property
    def rows(self) -> int:
        return self.arguments["per_device_train_batch_size"] * self.arguments["gradient_accumulation_steps"] * 3

    def trainer(
        self, directory: Path, *, rows: Rows | None = None, dtype: torch.dtype = torch.float32, **options: Any
    ) -> transformers.Trainer:
        """The trainer, freshly made. rows: in place of its own data, to be taken in order."""
        torch.manual_seed(self.seed)
        make, data = (MODELS | ADAPTED)[self.model]
        model = make(self.dropout).to(dtype)
        own = data(self.rows)
        arguments = transformers.TrainingArguments(
            output_dir=str(directory),
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            seed=self.seed,
            train_sampling_strategy="random" if rows is None else "sequential",
            # They stand in the arguments of the first, which has its steps from the number of epochs otherwise.
            **{**self.arguments, **({} if rows is None else {"max_steps": self.steps})},
        )
        given: dict[str, Any] = {"optimizers": (None, None)}
        if self.optimizer:
            mine = torch.optim.NAdam(model.parameters(), lr=1e-2, eps=1e-3)
            given["optimizers"] = (mine, torch.optim.lr_scheduler.StepLR(mine, 2, 0.5))
        if self.loss == "function":
            given["compute_loss_func"] = squares
        kinds = [*options.pop("kinds", []), Weighted if self.loss == "subclass" else transformers.Trainer]
        return type("Own", tuple(kinds), {})(
            model=model, args=arguments, train_dataset=own if rows is None else rows, **given, **options
        )


def random_case(number: int) -> Case:
    """The case of a number."""
    rng = random.Random(number)
    schedule, options = rng.choice(_SCHEDULES)
    steps = rng.choice((3, 6))
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": rng.choice((2, 3)),
        "gradient_accumulation_steps": rng.choice((1, 1, 2, 3)),
        "optim": rng.choice(_OPTIMIZERS),
        "learning_rate": rng.choice((1e-2, 3e-3)),
        # Where gradients nearly vanish, a smaller one makes noise as large as a step.
        "adam_epsilon": 1e-3,
        "adam_beta2": rng.choice((0.9, 0.999)),
        "weight_decay": rng.choice((0.0, 0.1)),
        "max_grad_norm": rng.choice((0.0, 0.2, 1.0)),
        "label_smoothing_factor": rng.choice((0.0, 0.0, 0.2)),
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": options,
        "warmup_steps": rng.choice((0, 1, 2, 0.4)),
        "activation_checkpointing": False,
    }
    model = rng.choice(list(MODELS))
    if model == "plain":
        arguments["label_smoothing_factor"] = 0.0  # for which Trainer asks the model for a configuration
    arguments |= {"max_steps": steps} if rng.random() < 0.5 else {"num_train_epochs": steps / 3}
    return Case(
        model=model,
        dropout=rng.choice((0.0, 0.0, 0.2)),
        seed=rng.randrange(1000),
        steps=steps,
        arguments=arguments,
        loss=rng.choice(("own", "own", "function", "subclass")),
        optimizer=rng.random() < 0.2,
    )


@dataclass(slots=True)
class Trained:
    """What a training leaves."""

    losses: list[float] = field(default_factory=list)
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameters and buffers at the end, by name."""
    draws: list[list[torch.Tensor | None]] = field(default_factory=list)
    """What every step has drawn at random."""


def by_program(task: Task, captured: Captured) -> Trained:
    """All steps of a captured program."""
    executor, found = Executor(captured.program), Trained()
    wanted = captured.origin.observed()
    states = list(captured.states.values())
    for step in range(task.steps):
        kept: dict[int, torch.Tensor] = {}

        def keep(index: int, value: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> None:
            if index in wanted:
                kept[index] = value.detach().clone()

        inputs = StepInputs(
            states=states,
            data=[widened(one) for one in batch_of(task, step).values()],
            schedule=captured.schedule[step],
            seed=task.seed,
            step=step,
            device=torch.device("cpu"),
        )
        result = executor.run(inputs, Recorder(4), observe=keep)
        states = result.states
        found.losses.append(float(result.loss))
        found.draws.append(captured.origin.drawn(kept))
    found.states = {
        name.partition("/")[2]: value
        for name, value in zip(captured.states, states, strict=True)
        if not name.startswith("slot/")
    }
    return found


def by_trainer(
    case: Case, task: Task, draws: list[list[torch.Tensor | None]], where: Path, dtype: torch.dtype
) -> Trained:
    """`train()` itself on the rows in the job's order, one sequential epoch."""
    rows: Rows = []
    for step in range(task.steps):
        batch = batch_of(task, step)
        rows += [{name: one[row] for name, one in batch.items()} for row in range(task.batch_size)]
    found, parts = Trained(), task.micro_batches

    class Watched(transformers.Trainer):
        """A trainer that notes its losses, and whose dropout draws what it is told to."""

        calls = 0
        replay: Any = None

        def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
            step, part = divmod(self.calls, parts)
            self.calls += 1
            if not part:
                found.losses.append(0.0)
                self.replay = Replay(draws[step]) if draws[step] else contextlib.nullcontext()
            with eager_torch(), self.replay:
                loss = super().training_step(*arguments, **options)
            found.losses[-1] += float(loss)
            return loss

    rows = [{name: one.to(dtype) if one.is_floating_point() else one for name, one in row.items()} for row in rows]
    trainer = case.trainer(where, rows=rows, dtype=dtype, kinds=[Watched])
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)  # only now: a model is made of other random numbers in FP64
        trainer.train()
    finally:
        torch.set_default_dtype(default)
    assert trainer.state.global_step == task.steps and trainer.calls == task.steps * parts
    model = trainer.model
    found.states = {name: one.detach().clone() for name, one in [*model.named_parameters(), *model.named_buffers()]}
    return found


def distance(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Largest difference of every tensor."""
    return {name: float((one[name].double() - two[name].double()).abs().max()) for name in two}
