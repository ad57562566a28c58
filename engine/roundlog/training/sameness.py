"""Sameness check: the captured step and the user's own are both run, and have to give the same results.

Python code may do anything, so a captured program is not trusted but tried. The engine and PyTorch, on the task's own
objects, each run three steps from the initial state and three from a state moved away from it; PyTorch in FP32 and,
where the model allows it, in FP64. Losses, gradients and the change of every state have to agree about as closely as
PyTorch's FP32 does with its FP64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from roundlog.capture import Captured, CaptureError, Task
from roundlog.capture.draws import Replay
from roundlog.capture.lowering import Origin
from roundlog.capture.task import widened
from roundlog.capture.tracing.eager import EagerTraining, plainly
from roundlog.capture.tracing.rehearsal import surroundings
from roundlog.capture.tracing.surroundings import Surroundings
from roundlog.capture.untraceable import reason
from roundlog.execution import Executor, StoppedError
from roundlog.operators import StepInputs
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder

_REWRITE = "write this part with ordinary operators on parameters and buffers"

STEPS = 3
"""Steps that are compared from each of the two states."""

_ROOM = 24.0
"""Allowed distance of the captured step from PyTorch's FP64, as a multiple of the distance of PyTorch's FP32."""

_FLOOR = 4e-6
"""Distance that is always allowed, in units of the largest element; FP32 has 6e-8."""

_BLURRED = 1e-3
"""Error of PyTorch's FP32, in units of the largest element, from which on a tensor's difference is not reported."""

_NUDGES = (1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4)
"""Ulps by which the initial state is nudged, try by try, while a tensor seems too far off. The engine may be on the
other side of a relu's zero than every one of PyTorch's runs if few are tried; four ulps leave little on its side."""

_MOVED = 0.05
"""Relative distance of the second state from the first."""

_GUARD = 4
"""Guard of a rounding log that is never read."""

_CHANGE = "the change of "

_Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sameness:
    """The result of the comparison."""

    steps: int
    """Steps that were compared from each state; 0 if PyTorch's first step is not finite."""
    largest: float
    """Largest difference, in units of the largest element of its tensor."""
    name: str
    """Name of the tensor with the largest difference."""
    in_fp64: bool
    """Whether PyTorch could run the step in FP64."""

    def __str__(self) -> str:
        if not self.steps:
            return "captured step could not be compared: yours gives numbers that are not finite at the first step"
        with_what = "in FP64" if self.in_fp64 else "in FP32, since the model does not run in FP64"
        return (
            f"captured step equals yours: {self.steps} steps from two states, largest difference {self.largest:.0e} of "
            f"{self.name} (PyTorch {with_what})"
        )


@dataclass(slots=True)
class _Run:
    """Results of some steps."""

    steps: list[_Values] = field(default_factory=list)
    """For each step, by name and in FP64: the loss, the gradients, and the change of every state."""
    stopped: str = ""
    """The reason why the steps ended early; empty if they did not."""


def confirm_same(task: Task, captured: Captured) -> Sameness:
    """Runs the captured step and the user's own, and compares them. The task is left as it was.

    Raises CaptureError, naming the first tensor that differs."""
    steps, found, in_fp64 = min(STEPS, task.steps), (0.0, "the loss"), True
    with surroundings(task) as around:
        for start in (captured.states, _moved(captured.states)):
            comparison = _Comparison(task, captured, around, start, steps)
            differences = list(comparison.differences())
            if not differences and start is captured.states:
                if comparison.failure:
                    raise CaptureError(f"your own step fails on the first batch: {comparison.failure}: correct it")
                return Sameness(steps=0, largest=0.0, name="", in_fp64=comparison.in_fp64)
            found = max([found, *differences])
            in_fp64 &= comparison.in_fp64
    return Sameness(steps=steps, largest=found[0], name=found[1], in_fp64=in_fp64)


class _Comparison:
    """A comparison of steps from one state, by the engine and by PyTorch."""

    def __init__(self, task: Task, captured: Captured, around: Surroundings, start: _Values, steps: int) -> None:
        self._task = task
        self._origin = captured.origin
        self._around = around
        self._start = start
        self._batches = [_batch(task, step) for step in range(steps)]
        self._drawn: list[list[torch.Tensor | None]] = []
        self._gradients: list[_Values] = []
        self._ours = self._by_engine(captured)
        self._single = self._by_pytorch(torch.float32)
        self._require_repeatable(self._by_pytorch(torch.float32))
        double = self._by_pytorch(torch.float64)
        self.in_fp64 = bool(double.steps)
        self._truth = double if self.in_fp64 else self._single
        self._nudged: list[_Run] = []

    def _require_repeatable(self, again: _Run) -> None:
        """Raises CaptureError if PyTorch gives other numbers the second time."""
        for one, two in zip(self._single.steps, again.steps, strict=False):
            for name in one.keys() & two.keys():
                if not torch.equal(one[name].nan_to_num(), two[name].nan_to_num()):
                    raise CaptureError(
                        f"your own step gives another result every time: {name} changes though it starts from the same "
                        "state and draws the same numbers: keep whatever changes it in parameters and buffers"
                    )

    def differences(self) -> Iterator[tuple[float, str]]:
        """(difference in units of the largest element, name) of every compared tensor. Raises CaptureError."""
        for step in range(len(self._batches)):
            if self._breaks_down(step):
                return
            if step == len(self._ours.steps):
                raise CaptureError(f"the captured step stops where yours goes on: {self._ours.stopped}: {_REWRITE}")
            ours, truth = self._ours.steps[step], self._truth.steps[step]
            if only := sorted(ours.keys() ^ truth.keys()):
                whose = "the captured step" if only[0] in ours else "yours"
                raise CaptureError(f"the captured step is not yours: only {whose} has {only[0]}: {_REWRITE}")
            for name in truth:
                yield self._compare(step, name), name

    @property
    def failure(self) -> str:
        """Message of the error that the user's own step raises; empty if it raises none."""
        return self._single.stopped

    def _breaks_down(self, step: int) -> bool:
        """Whether PyTorch has no finite numbers at a step either."""
        return any(
            step >= len(run.steps) or not all(bool(value.isfinite().all()) for value in run.steps[step].values())
            for run in (self._truth, self._single)
        )

    def _compare(self, step: int, name: str) -> float:
        ours, truth = self._ours.steps[step][name], self._truth.steps[step][name]
        apart, size = _apart(ours, truth), _largest(truth)
        # States are rounded to FP32 once a step, however little they move.
        state = self._start.get(name.removeprefix(_CHANGE))
        rounding = 0.0 if state is None else 2.0**-24 * _largest(state.double())
        allowed = _FLOOR * size + 4 * rounding
        own = _apart(self._single.steps[step][name], truth)
        allowed += _ROOM * own
        if not apart <= allowed and not any(apart <= allowed + _ROOM * noise for noise in self._noises(step, name)):
            raise CaptureError(
                f"the captured step is not yours: at step {step} {name} differs by {apart:.2g}, where its largest "
                f"element is {size:.2g}: the model, the loss or a hook does something that capture does not follow, so "
                f"{_REWRITE}"
            )
        # If FP32 is too inaccurate for a tensor, the difference means nothing.
        return max(0.0, apart - rounding) / size if own < _BLURRED * size else 0.0

    def _noises(self, step: int, name: str) -> Iterator[float]:
        """Distances of PyTorch's FP32 from the truth after the initial state is nudged in random directions. They are
        large where terms cancel, or a choice depends on the last bit."""
        for number, ulps in enumerate(_NUDGES):
            if number == len(self._nudged):
                self._nudged.append(self._by_pytorch(torch.float32, nudge=(number, ulps)))
            run = self._nudged[number]
            if step < len(run.steps):
                yield _apart(run.steps[step][name], self._truth.steps[step][name])

    def _by_engine(self, captured: Captured) -> _Run:
        """Results of the program. Its random numbers and gradients are kept, step by step."""
        origin, executor, run = self._origin, Executor(captured.program), _Run()
        states = list(self._start.values())
        wanted = {*origin.gradients.values(), *(index for index in origin.draws if index is not None)}
        for step, batch in enumerate(self._batches):
            kept: dict[int, torch.Tensor] = {}

            def keep(index: int, value: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> None:
                if index in wanted:
                    kept[index] = value.detach().clone()

            inputs = StepInputs(
                states=states,
                data=[widened(field) for field in batch.values()],
                schedule=captured.schedule[step],
                seed=self._task.seed,
                step=step,
                device=torch.device("cpu"),
            )
            try:
                result = executor.run(inputs, Recorder(_GUARD), observe=keep)
            except StoppedError as error:
                run.stopped = str(error)
                break
            before, after = (dict(zip(captured.states, tensors, strict=True)) for tensors in (states, result.states))
            gradients = {name: kept[index].double() for name, index in origin.gradients.items()}
            run.steps.append(_found(result.loss, gradients, *(_own(origin, named) for named in (before, after))))
            self._drawn.append([None if index is None else kept[index] for index in origin.draws])
            self._gradients.append(gradients)
            states = list(result.states)
        return run

    def _by_pytorch(self, dtype: torch.dtype, nudge: tuple[int, int] | None = None) -> _Run:
        """Results of the user's own step, with the program's random numbers. After the user's own gradients are
        recorded, the optimizer gets the program's, because it may amplify small differences, as Adam does for gradients
        near zero. The run ends at a step that raises. nudge: number and ulps of a change to the initial state."""
        origin, around, run = self._origin, self._around, _Run()
        start = {name: _nudged(name, value, *nudge) for name, value in self._start.items()} if nudge else self._start
        around.restore()
        around.move(dtype, {id(tensor): start[name] for name, tensor in origin.tensors.items()})
        training, gradients = EagerTraining(self._task), _Values()
        default = torch.get_default_dtype()

        def exchange(step: int) -> None:
            gradients.clear()
            for name, parameter in origin.trained.items():
                if parameter.grad is not None:
                    gradients[name] = parameter.grad.detach().double().clone()
                    if step < len(self._gradients) and name in self._gradients[step]:
                        parameter.grad.copy_(self._gradients[step][name])

        try:
            torch.set_default_dtype(dtype)
            for step, batch in enumerate(self._batches):
                before = self._standing()
                replay = Replay(self._drawn[step]) if step < len(self._drawn) else nullcontext()
                with plainly(), replay, _Promoted(dtype):
                    loss = training.step(step, _cast(batch, dtype), functools.partial(exchange, step))
                run.steps.append(_found(loss, dict(gradients), before, self._standing()))
        except CaptureError:
            raise
        except Exception as error:
            run.stopped = reason(error)
        finally:
            torch.set_default_dtype(default)
            around.restore()
        return run

    def _standing(self) -> _Values:
        """Current states of the user's code."""
        now = self._around.now(self._origin.tensors.values())
        return {name: now[id(tensor)].detach().double().clone() for name, tensor in self._origin.tensors.items()}


class _Promoted(TorchDispatchMode):
    """A dispatch mode under which operators asked for FP32 give FP64, if `dtype` is FP64."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._active = dtype == torch.float64

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._active:
            args, kwargs = tree_map(_promoted, (args, kwargs))
        return func(*args, **kwargs)


def _promoted(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor) and thing.dtype == torch.float32:
        return thing.double()
    return torch.float64 if thing is torch.float32 else thing


def _found(loss: float, gradients: _Values, before: _Values, after: _Values) -> _Values:
    return {
        "the loss": torch.tensor(loss, dtype=torch.float64),
        **{f"the gradient of {name}": gradient for name, gradient in gradients.items()},
        # An element that stays infinite, as in a mask, has not moved.
        **{
            f"{_CHANGE}{name}": torch.where(after[name] == before[name], 0.0, after[name] - before[name])
            for name in before
        },
    }


def _own(origin: Origin, states: Mapping[str, torch.Tensor]) -> _Values:
    return {name: states[name].double() for name in origin.tensors}


def _cast(batch: Mapping[str, torch.Tensor], dtype: torch.dtype) -> _Values:
    """A copy of a batch in `dtype`. A step may write into its batch, or ask for the gradient of a field."""
    return {
        name: field.detach().to(dtype if field.is_floating_point() else field.dtype, copy=True)
        for name, field in batch.items()
    }


def _batch(task: Task, step: int) -> _Values:
    return task.batch(torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows)))


def _moved(states: Mapping[str, torch.Tensor]) -> _Values:
    """A state moved away from the initial one. Zeros stay zero in buffers, where they may be by design, but not in
    parameters."""
    generator = torch.Generator().manual_seed(1)
    moved = {}
    for name, state in states.items():
        kind = name.partition("/")[0]
        moved[name] = state
        if state.dtype == torch.float32 and kind == "parameter":
            spread = _MOVED * float(state.square().mean().sqrt()) + _MOVED / 10 if state.numel() else 0.0
            moved[name] = state + spread * torch.randn(state.shape, generator=generator)
        elif state.dtype == torch.float32 and kind in ("buffer", "transient", "attribute"):
            moved[name] = state * (1 - _MOVED * torch.rand(state.shape, generator=generator))
    return moved


def _nudged(name: str, state: torch.Tensor, number: int, ulps: int) -> torch.Tensor:
    """A state changed by so many ulps, in directions that follow from the number. Zeros of a parameter are changed a
    little, too: with a router of zeros, choices between equal scores would depend on nothing at all."""
    if not state.is_floating_point():
        return state
    signs = torch.randint(0, 2, state.shape, generator=torch.Generator().manual_seed(number)) * 2 - 1
    zeros = (state == 0) & name.startswith("parameter/")
    return torch.where(zeros, signs * 2.0**-20, state * (1 + signs * ulps * 2.0**-23))


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return _largest(a - b)


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
