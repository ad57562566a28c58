"""Steps of a task as its user wrote it, by PyTorch: what a captured program has to equal. Watched, they show what they
compute, operator by operator, and which values they change.

A step that is not like the others, or that changes a number of Python's, cannot be one program for all steps. Numbers
that move are reason enough: they may act at step 1,000."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from roundlog.capture.draws import GENERATOR
from roundlog.capture.errors import CaptureError, a_kind, place_of_call, place_of_error, reason
from roundlog.capture.real_steps.patched_torch import eager_torch, plain_model, refuse_autocast
from roundlog.capture.real_steps.reachable_values import ReachableValues, StepCalls, memory_of, reachable
from roundlog.capture.task import Task
from roundlog.data import STORED
from roundlog.data.spill_file import SpilledTensor, SpillFile
from roundlog.randomness import batch_rows

WATCHED_STEPS = 4
"""Steps after each of which all values are compared."""
LOGGED_STEPS = 12
"""Steps whose operators are compared."""

_MANY = 1 << 26
"""Parameters of a model from which on large tensors wait for its gradients in a file."""
_LARGE = 1 << 22
"""Bytes of such a tensor."""


class EagerTraining:
    """Steps on the task's own model, optimizer and scheduler, which change."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._model = plain_model(task.model)
        self._turns = task.phases()
        self._rates = [[group["lr"] for group in phase.optimizer.param_groups] for phase in self._turns]

    def step(
        self,
        step: int,
        batch: Mapping[str, torch.Tensor],
        after_backward: Callable[[], None] | None = None,
        watching: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> float:
        """Step `step` (0, 1, ...) on a batch, field name -> [batch_size, ...]; gives the loss: the sum, of several
        optimizers. after_backward: called when the gradients of one stand in `.grad`, before they are clipped.
        watching: made for every loss and its gradients, around them."""
        # The first step looks for tensors that a trace has left behind; later ones go at full speed.
        looking = _OnlyReal if step == 0 else nullcontext
        with looking():
            parts = self.task.parts_at(step, batch)
        total = 0.0
        for phase, rates in zip(self._turns, self._rates, strict=True):
            if not isinstance(phase.schedule, LRScheduler):
                for group, rate in zip(phase.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * phase.schedule(step)
            for parameter in self._model.parameters():
                parameter.grad = None
            with looking():
                for part in parts:
                    with watching(), spilling(self._model):
                        with noting_backward() as called:
                            found = phase.loss(self._model, dict(part))
                        with refusing_backward(found, called):
                            # Steps are compared in FP64 too; of shorter ones, the trace says what makes them.
                            loss = share(self.task, checked_loss(phase.called("loss"), found, *_FLOATS))
                            loss.backward()
                    total += float(loss.detach())
            own = [parameter for group in phase.optimizer.param_groups for parameter in group["params"]]
            theirs = {id(parameter) for parameter in own}
            for parameter in self._model.parameters():
                if id(parameter) not in theirs:
                    parameter.grad = None
            if after_backward is not None:
                after_backward()
            if phase.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(own, phase.max_grad_norm)
            before = [group["lr"] for group in phase.optimizer.param_groups]
            phase.optimizer.step()
            if before != [group["lr"] for group in phase.optimizer.param_groups]:
                raise CaptureError(f"the {phase.called('optimizer')} changes its learning rate: give a schedule")
            if isinstance(phase.schedule, LRScheduler) and phase.schedule.last_epoch < self.task.steps:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # schedulers of PyTorch warn of what they do themselves
                    phase.schedule.step()
        return total


def spilling(model: nn.Module) -> AbstractContextManager[object]:
    """Have autograd keep large tensors, but for the model's own, in a file until their gradients are computed, if the
    model is large: fused attention never holds its scores, and in a watched step they take more memory than it."""
    if sum(parameter.numel() for parameter in model.parameters()) < _MANY:
        return nullcontext()
    file = SpillFile("what gradients are computed from")
    own = {memory_of(x) for x in (*model.parameters(), *model.buffers())}

    def pack(x: Tensor) -> Tensor | tuple[SpilledTensor, tuple[Any, ...]]:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            x = x.detach()
            if x.nbytes < _LARGE or x.untyped_storage().nbytes() != x.nbytes or memory_of(x) in own:
                return x
            layout = x.shape, x.stride(), x.storage_offset()
            return file.put(x.as_strided((x.numel(),), (1,), 0)), layout

    def unpack(packed: Tensor | tuple[SpilledTensor, tuple[Any, ...]]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            spilled, layout = packed
            return spilled.tensor().as_strided(*layout)  # strides choose a kernel's order of sums

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def share(task: Task, loss: torch.Tensor) -> torch.Tensor:
    """Share of one micro-batch in the loss of its batch."""
    return loss if task.micro_batches == 1 or task.accumulate == "sum" else loss / task.micro_batches


@contextmanager
def noting_backward() -> Iterator[list[tuple[Any, str]]]:
    """Gives (tensors, place in words) of every `backward()` that is called meanwhile."""
    called: list[tuple[Any, str]] = []
    of_torch = torch.autograd.backward

    def noted(tensors: Any, *args: Any, **options: Any) -> None:
        called.append((tensors, place_of_call()))
        of_torch(tensors, *args, **options)

    torch.autograd.backward = noted
    try:
        yield called
    finally:
        torch.autograd.backward = of_torch


@contextmanager
def refusing_backward(loss: object, called: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Raises CaptureError where a loss is of no use since `backward()` has been called on it already. called: as
    `noting_backward` gives it."""
    is_used = any(one is loss for tensors, _ in called for one in tree_leaves(tensors))
    if called and (is_used or not isinstance(loss, torch.Tensor) or not loss.requires_grad):
        raise CaptureError(_BACKWARD.format(called[-1][1]))
    try:
        yield
    except RuntimeError as error:
        if called and "backward through the graph a second time" in str(error):
            raise CaptureError(_BACKWARD.format(called[-1][1])) from error
        raise


_BACKWARD = (
    "the loss function calls backward(){}: return the loss, and leave out backward(), optimizer.step() and "
    "optimizer.zero_grad(); the job calls backward and takes the optimizer's step"
)


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def checked_loss(name: str, loss: object, *dtypes: torch.dtype) -> torch.Tensor:
    """A loss, of one of these dtypes, or FP32. Raises CaptureError for one that no step can be taken with."""
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(f"the {name} is {a_kind(loss)}: return a tensor, without .item()")
    if loss.ndim != 0:
        raise CaptureError(f"the {name} has the shape {list(loss.shape)}: reduce it to a scalar")
    if loss.dtype not in (dtypes or (torch.float32,)):
        raise CaptureError(f"the {name} is {loss.dtype}: compute it in float32")
    if not loss.requires_grad:
        raise CaptureError(f"the {name} depends on no parameter that is trained: check the model and the optimizer")
    return loss


class _OnlyReal(TorchDispatchMode):
    """While this is active, nothing is computed from tensors of a trace, which have no values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            raise CaptureError(f"{LEFT_BEHIND}{place_of_call()}")
        return func(*args, **(kwargs or {}))


LEFT_BEHIND = (
    "a tensor that a former step has left is used, and capture does not see where it is kept: keep it in an attribute "
    "of the model, or a buffer, that holds a tensor of its final shape from the start"
)
"""Refusal where tensors of one step appear in another."""


@dataclass(frozen=True, slots=True)
class WatchedSteps:
    """What real steps of a task have shown."""

    states: tuple[str, ...]
    """Names of tensors that steps change, beside parameters and buffers of the model."""
    calls: StepCalls
    moved: frozenset[str] = frozenset()
    """Names of tensors whose list, dictionary or object is another one after a step."""
    held: Mapping[str, Tensor] = field(default_factory=dict)
    """By name, the states of the task whose steps were watched, which no other task may have."""


def batch_of(task: Task, step: int) -> dict[str, Tensor]:
    """The batch of a step."""
    return task.batch(torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows)))


@contextmanager
def tensors_for_numbers(task: Task, step: int, values: ReachableValues) -> Iterator[None]:
    """Put tensors in the places of stated numbers, and numbers again at the end. values: when the step begins. Raises
    CaptureError for a number that is not what was stated."""
    names = task.held_numbers()
    for name in names:
        stated = task.number(name, min(step, task.steps - 1))
        if name not in values.numbers:
            raise CaptureError(f"numbers states {name}, and the model and the loss reach no number of that name")
        if values.leaves[name] != stated and step < task.steps:
            raise CaptureError(
                f"numbers states that {name} is {stated!r} at step {step}, and it is {values.leaves[name]!r}: state "
                "the value with which the step begins"
            )
        values.numbers[name](torch.tensor(stated))
    try:
        yield
    finally:
        for name in names:
            left = reachable(task, elements=False).places.get(name)
            if left is not None and left.put is not None:
                left.put(left.tensor.item())


def watched_steps(task: Task) -> WatchedSteps:
    """Take real steps of a task, which they change. Raises CaptureError, naming what changes or is called, for a step
    that no program can follow."""
    training, calls = EagerTraining(task), StepCalls()
    model = plain_model(task.model)
    own = {memory_of(x) for x in (*model.parameters(), *model.buffers()) if x.numel()}
    _take(training, task, 0, nullcontext(), None)  # which imports, and fills caches
    _take(training, task, 1, calls, None)
    for what, where in calls.refused.items():
        raise CaptureError(
            f"the step {what} (at {where}), which need not give the same again: call it before the first step, or "
            "remove it if it only logs (every loss stands in the run's history.jsonl)"
        )
    values = [reachable(task, calls)]
    for path, kind in values[0].unknown.items():
        told = f"{kind.__module__}.{kind.__qualname__}"
        raise CaptureError(f"{path} is a {told}, which cannot be compared from step to step: make it in the step")
    states, moved = dict[str, None](), set[str]()
    reference: OperatorLog | None = None
    for step in range(2, max(min(LOGGED_STEPS, task.steps), 4)):
        log, is_watched = OperatorLog(reference), step < 2 + WATCHED_STEPS
        try:
            _take(training, task, step, log, values[-1] if is_watched else None)
            log.refuse_other_lengths()
        except DifferentStepError:
            # A number that a step counts says more than what is computed with it.
            list(_changed(values[-1], reachable(task, calls), own, task))
            raise
        reference = reference or log
        if is_watched:
            values.append(reachable(task, calls))
            states |= dict.fromkeys(_changed(values[-2], values[-1], own, task))
            moved |= {
                name
                for name, place in values[-2].places.items()
                if place.put and name in values[-1].places and place.now() is not values[-1].places[name].tensor
            }
    now = {name: values[-1].places[name].now() for name in states if name in values[-1].places}
    held = {name: x for name, x in now.items() if isinstance(x, Tensor)}
    return WatchedSteps(tuple(states), calls, frozenset(moved), held)


def _take(
    training: EagerTraining,
    task: Task,
    step: int,
    watching: AbstractContextManager[object],
    values: ReachableValues | None,
) -> None:
    before, drawn = _random_states_of_python(), torch.get_rng_state()
    torch.manual_seed(step)
    GENERATOR.manual_seed(step)
    try:
        with eager_torch(), tensors_for_numbers(task, step, values or reachable(task, elements=False)):
            # The first steps are watched of a shorter task too, whose schedule may know no step after its last.
            training.step(min(step, task.steps - 1), batch_of(task, step), watching=lambda: watching)
            refuse_autocast("by the loss function", ("cpu",))
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        kind = CaptureError if step < task.steps else PastLastStepError
        raise kind(f"the step fails in PyTorch itself: {reason(error)}{place_of_error(error)}") from error
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_rng_state(drawn)
    for name, parameter in task.model.named_parameters():
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise CaptureError(f"{name} gets a sparse gradient: make its layer with sparse=False")
    if before != _random_states_of_python():
        raise CaptureError("the step draws from Python's or numpy's random numbers: draw random numbers by torch")


def _random_states_of_python() -> tuple[Any, ...]:
    _, keys, place, *_ = np.random.get_state()
    return random.getstate(), np.asarray(keys).tobytes(), place


def _changed(before: ReachableValues, after: ReachableValues, own: set[int], task: Task) -> Iterator[str]:
    """Names of tensors that a step has changed, none of the model's. own: memory of the model's tensors. Raises
    CaptureError for anything else."""
    stated = {*task.numbers, *_rates(task)}
    for name in dict.fromkeys((*before.leaves, *after.leaves)):
        old, new = (values.leaves.get(name, "absent") for values in (before, after))
        if old == new or name in stated or (old != old and new != new):
            continue
        one, two = (values.places.get(name) for values in (before, after))
        if one is not None and two is not None:
            if {memory_of(one.tensor), memory_of(two.tensor)} <= own:  # the model's, or a view of them
                continue
            if old[0] == new[0] and two.tensor.dtype in STORED:
                yield name
                continue
        raise CaptureError(_sentence(name, old, new, is_place=name in before.numbers and not name.isidentifier()))


def _rates(task: Task) -> Iterator[str]:
    """Names of learning rates, which schedules change."""
    for phase in task.phases():
        for number in range(len(phase.optimizer.param_groups)):
            yield f"{phase.called('optimizer')}.param_groups[{number}]['lr']"


def _sentence(name: str, old: object, new: object, *, is_place: bool) -> str:
    """Refusal of a change. is_place: whether the task may state the number that stands there."""
    change = f"a step changes {name}, from {_shown(old)} to {_shown(new)}, and a program's steps are all the same: "
    if is_place and isinstance(new, float) and "loss" in name.rpartition(".")[2].lower():
        return f"{change}remove it if it only logs (every loss stands in the run's history.jsonl)"
    if is_place:
        return f"{change}state it, numbers={{{name!r}: lambda step: ...}}, or compute with a tensor in a buffer"
    return f"{change}keep what changes in a tensor, or leave it as it is"


def _shown(x: object) -> str:
    return str(x[0]) if isinstance(x, tuple) and x and isinstance(x[0], str) else repr(x)[:60]


class PastLastStepError(CaptureError):
    """A step fails that the job does not take."""


class DifferentStepError(CaptureError):
    """A step computes something else than the one before."""


class OperatorLog(TorchDispatchMode):
    """Operators of a step, with shapes, dtypes and numbers of Python. While it is active it compares them with those of
    an earlier step; by their names alone from where the step takes a number out of a tensor, or chooses rows, on which
    numbers and shapes may depend."""

    def __init__(self, reference: OperatorLog | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[tuple[Any, ...]] = []
        self.by_name = False
        self._reference = reference
        self._reads = _ValueReads(self)

    def __enter__(self) -> OperatorLog:
        self._reads.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._reads.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _aten._pack_padded_sequence.default:
            raise CaptureError(
                "packed sequences have a shape that depends on values: pad the sequences and mask what is padding"
            )
        self.by_name |= _takes_values(func, args)
        entry = (str(func), *(() if self.by_name else map(_logged, tree_leaves((args, kwargs or {})))))
        number = len(self.entries)
        self.entries.append(entry)
        if self._reference is not None:
            other = self._reference.entries[number] if number < len(self._reference.entries) else ("nothing",)
            if other != entry and not _both_nan(entry, other):
                raise DifferentStepError(_difference(entry, other))
        return func(*args, **(kwargs or {}))

    def refuse_other_lengths(self) -> None:
        """Raises CaptureError for a step that has computed less than the other one."""
        if self._reference is not None and len(self.entries) < len(self._reference.entries):
            raise DifferentStepError(
                f"a step stops before {_told(self._reference.entries[len(self.entries)])}, which the one before "
                "computes: make all steps the same"
            )


class _ValueReads(TorchFunctionMode):
    """Notices reads of a tensor's numbers that no operator makes."""

    def __init__(self, log: OperatorLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._log.by_name |= func in (Tensor.tolist, Tensor.numpy, Tensor.__array__)
        return func(*args, **(kwargs or {}))


def _difference(entry: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    told = f"a step computes {_told(entry)}{place_of_call()} where the one before computes {_told(other)}"
    if entry[0] != other[0]:
        return f"{told}: decide by torch.where in place of an if, so that all steps compute the same"
    return f"{told}: what changes by step is stated in the task's numbers, or kept in a tensor"


_aten = torch.ops.aten
_TAKING_VALUES = frozenset(
    (_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten._ctc_loss.Tensor)
)


def _takes_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether what follows an operator may have other numbers or shapes at another step."""
    is_index = func in (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default)
    return func in _TAKING_VALUES or (is_index and any(x is not None and x.dtype == torch.bool for x in args[1]))


def _logged(x: Any) -> Any:
    if isinstance(x, Tensor):
        return tuple(x.shape), x.dtype
    return x if isinstance(x, (int, float, bool, str)) else type(x).__name__


def _both_nan(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    return len(one) == len(two) and all(a == b or (a != a and b != b) for a, b in zip(one, two, strict=True))


def _told(entry: tuple[Any, ...]) -> str:
    shown = [str(list(x[0])) if isinstance(x, tuple) else str(x) for x in entry[1:]]
    return f"{entry[0]}({', '.join(shown)[:80]})" if shown else entry[0]
