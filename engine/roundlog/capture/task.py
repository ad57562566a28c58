"""Task of a user: an ordinary model, loss, optimizer and data. Several optimizers are taken in turn within a step, each
with its loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from roundlog.capture.errors import CaptureError, a_kind, place_of_error, reason
from roundlog.capture.optimizers import Factor
from roundlog.data import NARROW, STORED, DataError, Field, absence, fields_of, is_lazy_view, micro_batches
from roundlog.storage import StorageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer


Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]

Part = TypeVar("Part")

Several: TypeAlias = Sequence[Part] | Mapping[str, Part] | Part
"""One thing, or one for each of several optimizers: in their order, or by their names."""


@dataclass(frozen=True, slots=True)
class OptimizerPhase:
    """One optimizer's part of a step: its loss, the gradients of its own parameters, and its update."""

    key: str
    """Its place among several, as in `optimizer[0]`; empty if there is one optimizer."""
    loss: Loss
    optimizer: torch.optim.Optimizer
    schedule: Factor | LRScheduler
    max_grad_norm: float | None

    def called(self, part: str) -> str:
        """A part of it in the words of the task: `loss`, or `loss[0]`."""
        return f"{part}{self.key}"


def phases_of(
    loss: Several[Loss],
    optimizer: Several[torch.optim.Optimizer],
    schedule: Several[Factor | LRScheduler],
    max_grad_norm: Several[float | None],
) -> list[OptimizerPhase]:
    """The phases of a step, in order. A schedule that is a function, and a number to clip by, may be given once for
    all.

    Raises CaptureError, in one sentence, for parts that do not belong together or are of another kind."""
    keys = _keys(optimizer)
    parts = {
        "loss": _each("loss", loss, keys, "the loss of each, in their order"),
        "optimizer": _each("optimizer", optimizer, keys, "at least one"),
        "schedule": _each("schedule", schedule, keys, "one of each, or one function of the step for all"),
        "max_grad_norm": _each("max_grad_norm", max_grad_norm, keys, "one of each, or one for all"),
    }
    phases = [
        OptimizerPhase("" if key is None else f"[{key!r}]", *(part[number] for part in parts.values()))
        for number, key in enumerate(keys)
    ]
    first: dict[int, str] = {}
    for phase in phases:
        _check(phase)
        name = phase.called("optimizer")
        if (other := first.setdefault(id(phase.optimizer), name)) != name:
            raise CaptureError(f"{other} and {name} are one optimizer, and each takes one turn in a step: give it once")
    return phases


def _keys(optimizer: object) -> list[Any]:
    """Places of the optimizers; None for a single one. Raises CaptureError if there is none."""
    if isinstance(optimizer, Mapping):
        keys = list(optimizer)
    elif isinstance(optimizer, (list, tuple)):
        keys = list(range(len(optimizer)))
    else:
        return [None]
    if not keys:
        raise CaptureError("there is no optimizer: give at least one, with its loss")
    if isinstance(optimizer, Mapping) and (odd := [key for key in keys if not isinstance(key, str)]):
        raise CaptureError(f"the optimizer {odd[0]!r} has a name that is no text: give it a str")
    return keys


def _each(name: str, part: Any, keys: list[Any], wanted: str) -> list[Any]:
    """The items that are given, one for each optimizer. Raises CaptureError unless it fits them."""
    several = isinstance(part, (Mapping, list, tuple))
    if keys == [None]:
        if several:
            raise CaptureError(f"the {name} is {a_kind(part)}, and there is one optimizer: give one {name}")
        return [part]
    if not several and name in ("schedule", "max_grad_norm") and not isinstance(part, LRScheduler):
        return [part] * len(keys)
    if not several:
        raise CaptureError(f"there are {len(keys)} optimizers, and one {name}: give {wanted}")
    if isinstance(part, Mapping) != isinstance(keys[0], str):
        raise CaptureError(f"the optimizers and the {name} are given in two ways: give lists, or names for both")
    have = list(part) if isinstance(part, Mapping) else list(range(len(part)))
    if len(have) != len(keys):
        raise CaptureError(f"there are {len(keys)} optimizers, and {len(have)} of {name}: give {wanted}")
    if missing := [key for key in keys if key not in have]:
        raise CaptureError(f"the optimizer {missing[0]!r} has no {name} of that name: give {wanted}")
    return [part[key] for key in keys]


def _check(phase: OptimizerPhase) -> None:
    name, optimizer = phase.called("optimizer"), phase.optimizer
    if isinstance(optimizer, type):
        raise CaptureError(f"the {name} is the class {optimizer.__name__} itself: give {_OPTIMIZER}, made of it")
    name, loss = phase.called("loss"), phase.loss
    if not callable(loss):
        raise CaptureError(f"the {name} is {a_kind(loss)}: {_LOSS}")
    if _is_of_torch(loss):
        called = getattr(loss, "__name__", type(loss).__name__)
        raise CaptureError(f"the {name} {called} of torch.nn takes tensors, not a model and a batch: {_LOSS}")
    if isinstance(loss, type) or not _takes_two(loss):
        raise CaptureError(f"the {name} cannot be called with a model and a batch: {_LOSS}")
    name, schedule = phase.called("schedule"), phase.schedule
    if not callable(schedule) and not isinstance(schedule, LRScheduler):
        raise CaptureError(
            f"the {name} is {a_kind(schedule)}: give a function of the step, or a scheduler of torch.optim.lr_scheduler"
        )
    name, norm = phase.called("max_grad_norm"), phase.max_grad_norm
    if norm is not None and (type(norm) not in (int, float) or not 0 < norm < math.inf):
        raise CaptureError(f"{name} is {norm!r}: give a finite number above 0, or None")


_OPTIMIZER = "an optimizer of torch.optim"

_LOSS = 'give a function of both, as lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"])'
"""Advice about a loss, for refusals."""


def _is_of_torch(loss: object) -> bool:
    """Whether it is a loss of `torch.nn`: a function, a class, or a module."""
    home = getattr(type(loss) if isinstance(loss, nn.Module) else loss, "__module__", None)
    return str(home).startswith("torch.nn.")


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something that is not written in Python
        return True
    try:
        signature.bind(None, None)
    except TypeError:
        return False
    return True


StepNumbers = Callable[[int], float] | Sequence[float] | NDArray[Any]
"""A number at each step: a function of the step (0, 1, ...), or one number a step."""

OfBatch = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]

Source = torch.Tensor | NDArray[Any] | Field
"""Field of a data set, as a user gives it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A training job before capture.

    model: any `nn.Module` in FP32 or BF16, or with parts in either, in the mode (`train`/`eval`) it is to be trained
        in. Its parameters and buffers at capture time are the initial state.
    loss: `loss(model, batch)` -> FP32 scalar; `batch` maps field names to tensors [batch_size, ...].
    optimizer: `Adadelta`, `Adagrad`, `Adam`, `AdamW`, `NAdam`, `RMSprop` or `SGD` of `torch.optim`, or one whose
        `step()` is your own and takes no closure, over the model's parameters, freshly made, with any number of
        groups. Parameters that are in no group or have `requires_grad=False` stay as they are. Several, as a list or by
        name, each with parameters and a loss of its own, are taken in turn within a step, as for a generator and its
        discriminator: the loss of one is computed after those before it have been stepped, on the same batch, and its
        optimizer alone is stepped by it. `loss`, and `schedule` and `max_grad_norm` where they are not the same for
        all, are lists or names then, too. The loss that is recorded is the sum of all.
    dataset: field name -> tensor [rows, ...], float32, bfloat16, bool or integers of any size, which the job holds as
        int64; all fields have the same number of rows. Or a NumPy array or memory map, or what `roundlog.windows`
        gives: of these, nothing is copied but the rows of a batch, in which integers are int64.
    schedule: factor on every learning rate at a step (0, 1, ...), like `LambdaLR`'s; or a scheduler of
        `torch.optim.lr_scheduler` over the optimizer, freshly made, which takes a step after each of the optimizer's.
    micro_batches: gradient accumulation. A batch is cut into so many equal parts, in order; the loss of each is
        differentiated by itself, and the gradients are added up before the update. Of several optimizers, one takes
        all parts before the next begins.
    accumulate: "mean" divides the loss of each part by their number first. "sum" takes it as it is, for a loss that is
        divided already by something of the whole batch, such as its number of tokens.
    of_batch: `of_batch(batch)` -> tensors by name, computed of a whole batch, that the loss of each part finds beside
        its rows.
    max_grad_norm: gradients are clipped before the update as by
        `torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)`; of several optimizers, each by the norm of
        its own parameters.
    numbers: name -> what changes from step to step, rounded to FP32: a function of the step (0, 1, ...), or one number
        a step. The loss reads a name from its batch, as a tensor of no axes (float32, or int64 where the number at step
        0 is an int). A name with a dot or a bracket is the place of a number of Python's as the script has it,
        `model.step`, or `loss.step` for a variable of the loss's closure, with the value with which a step begins.
    """

    model: nn.Module
    loss: Several[Loss]
    optimizer: Several[torch.optim.Optimizer]
    dataset: Mapping[str, Source]
    batch_size: int
    steps: int
    interval: int
    seed: int
    schedule: Several[Factor | LRScheduler] = lambda step: 1.0
    micro_batches: int = 1
    max_grad_norm: Several[float | None] = None
    accumulate: Literal["mean", "sum"] = "mean"
    of_batch: OfBatch | None = None
    numbers: Mapping[str, StepNumbers] = field(default_factory=dict)

    @staticmethod
    def from_trainer(trainer: Trainer | Callable[[], Trainer], *, interval: int | None = None) -> Task:
        """The task that a `transformers.Trainer`, freshly made, would train by `train()`: one, or a function that makes
        one.

        Its model, loss, optimizer, scheduler, data and arguments are followed; the order of the data and the draws of
        dropout are the job's own. interval: steps between checkpoints; None takes `save_steps`, or all steps where
        nothing is saved meanwhile. The model is put into training mode, and the trainer is left as it was otherwise.

        Raises CaptureError, on one line, for what a job cannot follow of it."""
        from roundlog.capture.huggingface import trainer_arguments

        return Task(**trainer_arguments(trainer, interval))

    @staticmethod
    def from_causal_lm(
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        stop: Sequence[int] = (),
        seed: int = 0,
        interval: int | None = None,
    ) -> Task:
        """The task that generates text by a causal language model of `transformers`: a step reads one token of every
        sequence and chooses the next one. `roundlog.capture.generated_tokens` reads its last checkpoint.

        model: in FP32 or BF16, put into `eval` mode. prompts: token numbers of each sequence, of any lengths.
        new_tokens: of the longest prompt; shorter ones get as many more. temperature: 0 takes the likeliest token, the
        first of several; above 0, one is drawn from softmax(logits / temperature), by the job's seed. top_k: from the
        k likeliest ones; 0: from all. top_p: from the fewest that have that share together. repetition_penalty: divides
        the logits of tokens that were there before, and multiplies negative ones (Keskar et al. 2019). min_p: from
        those whose probability is at least so much of the likeliest one's. presence_penalty, frequency_penalty:
        subtracted from logits of tokens that were generated before, once, and once for each time. logit_bias: added to
        the logits of these tokens, before all else. stop: tokens at which a sequence ends; it is filled with the first
        of them. interval: tokens between checkpoints; None: one at the end.

        Raises CaptureError, in one sentence, for what cannot be generated."""
        from roundlog.capture.huggingface import Sampling, generation_arguments

        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=tuple(sorted((logit_bias or {}).items())),
        )
        return Task(
            **generation_arguments(
                model, prompts, new_tokens=new_tokens, sampling=sampling, stop=stop, seed=seed, interval=interval
            )
        )

    def parts(
        self, batch: Mapping[str, torch.Tensor], numbers: Mapping[str, torch.Tensor]
    ) -> list[dict[str, torch.Tensor]]:
        """Micro-batches of a batch, in order, as the loss gets them: each with what `of_batch` says of the whole, and
        these numbers."""
        found = micro_batches(batch, self.micro_batches)
        whole = {} if self.of_batch is None else dict(self.of_batch(batch))
        if taken := sorted(whole.keys() & batch.keys()):
            raise CaptureError(f"of_batch gives {taken[0]}, which is a field of the dataset: choose another name")
        return [{**part, **whole, **numbers} for part in found]

    def parts_at(self, step: int, batch: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """The parts of the batch of a step, with the numbers that the loss reads from it."""
        names = self.numbers.keys() - self.held_numbers()
        return self.parts(batch, {name: torch.tensor(self.number(name, step)) for name in sorted(names)})

    def number(self, name: str, step: int) -> float:
        """A stated number at a step. Raises CaptureError for what is none."""
        source = self.numbers[name]
        value = source(step) if callable(source) else source[step]
        value = value.item() if isinstance(value, np.generic | torch.Tensor) and value.ndim == 0 else value
        if type(value) not in (int, float) or not math.isfinite(value):
            raise CaptureError(f"numbers[{name!r}] is {value!r} at step {step}: give a finite int or float")
        return value

    def held_numbers(self) -> list[str]:
        """Names of the numbers that stand in places of the script's."""
        return [name for name in self.numbers if not name.isidentifier()]

    def phases(self) -> list[OptimizerPhase]:
        """The optimizers with their losses, in the order of a step. Raises CaptureError where they do not fit."""
        return phases_of(self.loss, self.optimizer, self.schedule, self.max_grad_norm)

    @property
    def rows(self) -> int:
        return int(next(iter(self.dataset.values())).shape[0])

    def fields(self) -> dict[str, Field]:
        """The dataset as a job has it, in its order: a tensor of small integers as int64, nothing else copied. Raises
        CaptureError for what cannot be a field."""
        try:
            return fields_of(self.dataset)
        except (DataError, StorageError) as error:
            raise CaptureError(str(error)) from error

    def batch(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Some rows of the dataset, as `loss` gets them: copies, tensors on the CPU. rows: int64[n]."""
        fields = self.fields()
        return {
            name: x.detach().cpu()[rows] if isinstance(x, torch.Tensor) else fields[name].take(rows)
            for name, x in self.dataset.items()
        }

    def check(self) -> None:
        """Raises CaptureError, in one sentence, for a task that cannot be trained."""
        self._check_parts()
        self._check_numbers()
        self._check_dataset()
        for name, source in self.numbers.items():
            if name in self.dataset:
                raise CaptureError(f"numbers has {name}, which is a field of the dataset: choose another name")
            if not callable(source) and len(source) < self.steps:
                raise CaptureError(
                    f"numbers[{name!r}] has {len(source)} numbers: give one for each of {self.steps} steps"
                )
        if not 1 <= self.batch_size <= self.rows:
            raise CaptureError(
                f"a batch of {self.batch_size} does not fit a dataset of {self.rows} rows: choose a smaller batch_size"
            )
        try:
            self.parts_at(0, self.batch(torch.arange(self.batch_size)))
        except CaptureError:
            raise
        except Exception as error:  # whatever a function of the user's raises
            raise CaptureError(f"of_batch or numbers fails: {reason(error)}{place_of_error(error)}") from error
        parameters = dict(self.model.named_parameters())
        for name, tensor in [*parameters.items(), *self.model.named_buffers()]:
            if is_lazy(tensor):
                raise CaptureError(f"{name} of a lazy module has no shape yet: run the model on a batch first")
            if tensor.layout != torch.strided or tensor.is_nested:
                raise CaptureError(f"{name} is no plain tensor ({tensor.layout}): convert it, as with .to_dense()")
            if tensor.dtype not in STORED and (name in parameters or tensor.dtype == torch.float16):
                raise CaptureError(f"{name} is {tensor.dtype}: {_AS_COMPLEX if tensor.is_complex() else _AS_FLOAT}")
            if is_lazy_view(tensor):
                raise CaptureError(
                    f"{name} is a lazy zero, negative or conjugate of PyTorch's: make it a copy (.clone())"
                )
            if why := absence(tensor):
                raise CaptureError(f"{name} {why}: load its values first")
            if torch._debug_has_internal_overlap(tensor) == 1:
                raise CaptureError(f"{name} has one number in several places (.expand): make it a copy (.contiguous())")

    def _check_parts(self) -> None:
        if isinstance(self.model, type):
            raise CaptureError(
                f"the model is the class {self.model.__name__} itself: give a torch.nn.Module, made of it"
            )
        if not isinstance(self.model, nn.Module):
            raise CaptureError(f"the model is {a_kind(self.model)}: give a torch.nn.Module")
        if self.of_batch is not None and not callable(self.of_batch):
            raise CaptureError(f"of_batch is {a_kind(self.of_batch)}: give a function of a batch, or None")
        self.phases()

    def _check_numbers(self) -> None:
        for name in ("batch_size", "steps", "interval", "seed", "micro_batches"):
            if type(getattr(self, name)) is not int:
                raise CaptureError(f"{name} is {getattr(self, name)!r}: give a whole number")
        if self.interval < 1 or self.steps < 1 or self.steps % self.interval:
            raise CaptureError(
                f"{self.steps} steps cannot be cut into checkpoints every {self.interval}: "
                "choose a number of steps that the interval divides"
            )
        if not 0 <= self.seed < 2**64:
            raise CaptureError(f"the seed {self.seed} does not fit 64 bits: choose one in 0..2^64 - 1")
        if self.micro_batches < 1 or self.batch_size % self.micro_batches:
            raise CaptureError(
                f"a batch of {self.batch_size} cannot be cut into {self.micro_batches} equal parts: "
                "choose a number of micro_batches that divides it"
            )
        if self.accumulate not in ("mean", "sum"):
            raise CaptureError(f'accumulate is {self.accumulate!r}: choose "mean" or "sum"')

    def _check_dataset(self) -> None:
        if not isinstance(self.dataset, Mapping):
            raise CaptureError(
                f"the dataset is {a_kind(self.dataset)}: give field names with tensors of all rows, as in "
                '{"x": images, "y": labels}, or dataset.with_format("numpy")[:] of a datasets.Dataset'
            )
        if not self.dataset:
            raise CaptureError("the dataset has no fields: give at least one tensor of rows")
        for name, source in self.dataset.items():
            if not isinstance(name, str):
                raise CaptureError(f"the dataset field {name!r} has a name that is no text: give it a str")
            if not isinstance(source, torch.Tensor | np.ndarray | Field):
                raise CaptureError(
                    f"dataset field {name} is {a_kind(source)}: make it a torch.Tensor, a NumPy array or "
                    "memory map, or what roundlog.windows gives"
                )
            if len(source.shape) == 0 or source.shape[0] == 0:
                raise CaptureError(f"dataset field {name} is empty: give at least one row")
            if source.shape[0] != self.rows:
                raise CaptureError(
                    f"dataset field {name} has {source.shape[0]} rows, the first field {self.rows}: "
                    "give all fields the same number of rows"
                )
            if not isinstance(source, torch.Tensor):
                continue
            if source.dtype not in STORED + NARROW:
                raise CaptureError(f"dataset field {name} is {source.dtype}: convert it to float32, int64 or bool")
            if source.layout != torch.strided:
                raise CaptureError(f"dataset field {name} is sparse: convert it with .to_dense()")
        self.fields()


_AS_FLOAT = "convert the model with .float()"
_AS_COMPLEX = (
    "keep its real and imaginary parts in a float32 tensor of one more axis (torch.view_as_real), and take "
    "torch.view_as_complex of it in the step"
)
"""Advice about dtypes of states, for refusals."""
