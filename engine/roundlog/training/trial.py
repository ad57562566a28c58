"""Steps of a task from one state, by the engine and by PyTorch, with the same draws and the same gradients for the
optimizer. What they give is seen step by step, tensor by tensor, and what has to wait for another run waits in a file:
a model that trains in memory can be captured in little more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from roundlog.capture import Captured, CaptureError, Task
from roundlog.capture.captured import OwnStates
from roundlog.capture.draws import GENERATOR, Replay
from roundlog.capture.errors import reason
from roundlog.capture.real_steps.eager_steps import EagerTraining
from roundlog.capture.real_steps.patched_torch import eager_torch, without_checkpoints
from roundlog.capture.real_steps.reachable_values import tensor_digest
from roundlog.data import materialized, widened
from roundlog.data.spill_file import SpilledTensor, SpilledTensors, SpillFile
from roundlog.execution import Executor, StoppedError
from roundlog.kernels.scratch import give_back
from roundlog.operators import StepInputs
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder
from roundlog.spec import MIN_LOG_GUARD

CHANGE = "the change of "
"""Beginning of the name of a result that is the change of a state."""

GRADIENT = "the gradient of "

LOSS = "the loss"

_ENGINE, _DOUBLE, _KERNELS = 8.0, 4.0, 10.0
"""Times of a step of the engine, of one in FP64, and of one whose kernels are compared, in steps in FP32."""

_PIECE = 1 << 20
"""Elements that are subtracted at once."""

_LARGE = 1 << 26
"""Bytes of trained parameters from which on memory is given back before they are stepped."""

Tensors = Mapping[str, torch.Tensor]

Results = Mapping[str, Callable[[], torch.Tensor]]
"""Results of one step, by name: the loss, the gradients, and the change of every state. Each is computed, or read, when
it is called, in FP64. The change of a state in which nothing has moved, as of frozen parameters, is f64[], one zero for
all of its elements."""

Look = Callable[[int, Results], None]
"""Is called after every step, with its number and its results, which stand until it returns."""

Drawing = Callable[[int, Tensors], Mapping[int, torch.Tensor]]
"""Gives the random numbers of a step, by operator, of the states before it."""

Watching = Callable[[int, Tensors, Tensors, OwnStates], AbstractContextManager[object]]


@dataclass(slots=True)
class TrialRun:
    """Some steps."""

    steps: int = 0
    """Number of those that had a result."""
    stopped: str = ""
    """The reason why they ended early; empty if they did not."""
    kept: list[Results] = field(default_factory=list)
    """The results that were put aside, step by step."""


class TrialProgress:
    """Progress of a trial from each of two states, by what its parts usually take."""

    def __init__(self, tell: Callable[[float, str], None], steps: Sequence[int], *, kernels: int) -> None:
        """tell: called with the share that is done, and what is done now. steps: number of them from each state.
        kernels: number of kernels that are compared in a step, or 0."""
        self._tell, self._each, self._kernels = tell, kernels, 0
        self._all_kernels = kernels * sum(steps)
        self._done, self._all = 0.0, steps[0] + sum(steps) * (1 + (_KERNELS if kernels else _ENGINE + _DOUBLE))

    def add(self, steps: float, what: str) -> None:
        """Tells that as much has been done as so many steps in FP32 take."""
        self._done += steps
        self._tell(min(self._done / self._all, 0.99), what)

    def add_kernel(self) -> None:
        """Tells that a kernel has been compared."""
        self._kernels += 1
        self.add(_KERNELS / self._each, f"kernel {self._kernels:,} of {self._all_kernels:,}")


class Trial:
    """Some steps of a task from one state."""

    def __init__(self, captured: Captured, start: Tensors, steps: int, progress: TrialProgress) -> None:
        self.start = start
        self.steps = steps
        self.progress = progress
        self._task, self._captured = captured.task, captured
        self._origin = captured.origin
        self._batches = [_batch(self._task, step) for step in range(steps)]
        self._aside = SpillFile("what the steps of the comparison give")
        self._drawn: list[dict[int, SpilledTensor]] = []
        self._gradients: list[dict[str, SpilledTensor]] = []

    def put_aside(self, results: Results) -> Results:
        """Results as they are now, to be read later. Raises DataError if there is no room."""
        return {name: _later(self._aside.put(result())) for name, result in results.items()}

    def inputs(self, step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        """The inputs of a step of the program. states: before it, in program order."""
        return StepInputs(
            states=states,
            data=[widened(field) for field in self._batches[step].values()],
            schedule=self._captured.schedule[step],
            seed=self._task.seed,
            step=step,
            device=torch.device("cpu"),
        )

    def by_engine(self) -> TrialRun:
        """The steps of the program. Its results, random numbers and gradients are put aside."""
        origin, executor, run = self._origin, Executor(self._captured.program), TrialRun()
        states = list(self.start.values())
        drawn = origin.observed()
        wanted = {*origin.gradients.values(), *drawn}
        share = _ENGINE / len(self._captured.program.nodes)
        for step in range(self.steps):
            kept: dict[int, SpilledTensor] = {}

            def keep(index: int, value: torch.Tensor, kept: dict[int, SpilledTensor] = kept) -> None:
                self.progress.add(share, "the captured step")
                if index in wanted:
                    kept[index] = self._aside.put(value)

            try:
                result = executor.run(self.inputs(step, states), Recorder(MIN_LOG_GUARD), observe=keep)
            except StoppedError as error:
                run.stopped = str(error)
                break
            before, after = (
                dict(zip(self._captured.states, tensors, strict=True)) for tensors in (states, result.states)
            )
            gradients = {name: kept[index] for name, index in origin.gradients.items()}
            changes = {name: functools.partial(change, before[name], after[name]) for name in self._captured.own_names}
            changes_aside = self.put_aside(_named(result.loss, {}, changes))
            run.kept.append({**changes_aside, **_gradients({name: _later(one) for name, one in gradients.items()})})
            run.steps += 1
            self._drawn.append({index: kept[index] for index in drawn})
            self._gradients.append(gradients)
            states = list(result.states)
        return run

    def kept_by_pytorch(self) -> TrialRun:
        """`by_pytorch` in FP32. Its results are put aside."""
        kept: list[Results] = []
        run = self.by_pytorch(torch.float32, lambda step, results: kept.append(self.put_aside(results)))
        run.kept = kept
        return run

    def by_pytorch(
        self,
        dtype: torch.dtype,
        look: Look,
        start: Tensors | None = None,
        *,
        watching: Watching | None = None,
        drawing: Drawing | None = None,
    ) -> TrialRun:
        """The user's own steps, with the program's random numbers. After the user's own gradients are recorded, the
        optimizer gets the program's, because it may amplify small differences, as Adam does for gradients near zero.
        The run ends at a step that raises. start: another state to begin with. watching: is given the number of a step,
        its rows, the states before it, and the user's own task; it is made around every loss and its gradients.
        drawing: gives the program's random numbers, if `by_engine` has drawn none. Raises CaptureError."""
        own, run = self._captured.begin(), TrialRun()
        with own.widened() if dtype == torch.float64 else nullcontext():
            first = self.start if start is None else start
            shared = own.digests.keys() & own.tensors.keys() if dtype == torch.float32 else set()
            with torch.no_grad():
                for name, tensor in own.tensors.items():
                    if name in shared and tensor.stride() == first[name].stride():
                        tensor.data = first[name]
                    else:
                        tensor.copy_(first[name])
            digests = own.digests if all(first[name] is self._captured.states[name] for name in shared) else {}
            del first, start
            training = EagerTraining(own.task)
            cost, what = (_DOUBLE, "your step in FP64") if dtype == torch.float64 else (1.0, "your step")
            self.progress.add(0.0, what)
            for step, batch in enumerate(self._batches):
                gradients: dict[str, SpilledTensor] = {}
                file = SpillFile("a state of the comparison")
                try:
                    before = SpilledTensors(
                        {
                            name: tensor.detach() if name in shared else file.kept(tensor)
                            for name, tensor in own.now().items()
                        }
                    )

                    if drawing is not None:
                        drawn = drawing(step, before)
                        self._drawn.append({index: self._aside.put(x) for index, x in drawn.items()})

                    def around(
                        step: int = step, batch: Tensors = batch, before: Tensors = before
                    ) -> AbstractContextManager[object]:
                        return nullcontext() if watching is None else watching(step, batch, before, own)

                    loss = self._step(own, training, step, batch, dtype, gradients, file, around)
                    for parameter in own.trained.values():
                        parameter.grad = None
                    after = _detached(own.now())
                except CaptureError:
                    raise
                except Exception as error:
                    run.stopped = reason(error)
                    break
                changes = {name: functools.partial(_change_of, name, before, after) for name in before}
                look(step, _named(loss, {name: _later(one) for name, one in gradients.items()}, changes))
                run.steps += 1
                self.progress.add(cost, what)
                # Not beside those of the next step.
                del before, after, changes, gradients
            for name in sorted(shared & digests.keys()):
                if tensor_digest(own.tensors[name]) != digests[name]:
                    raise CaptureError(
                        f"the captured step is not yours: yours writes into {name}, and the program never does: write "
                        "into it by PyTorch's functions (.copy_()), or not at all"
                    )
        return run

    def _step(
        self,
        own: OwnStates,
        training: EagerTraining,
        step: int,
        batch: Tensors,
        dtype: torch.dtype,
        gradients: dict[str, SpilledTensor],
        file: SpillFile,
        watching: Callable[[], AbstractContextManager[object]],
    ) -> float:
        """One step of the user's own. gradients: gets its gradients, by name, in a file. Returns the loss."""
        default = torch.get_default_dtype()

        def exchange() -> None:
            ours = self._gradients[step] if step < len(self._gradients) else {}
            for name, parameter in own.trained.items():
                if parameter.grad is not None:
                    gradients[name] = file.put(parameter.grad)
                    if name in ours:
                        parameter.grad = materialized(parameter.grad)
                        parameter.grad.copy_(ours[name].tensor())
            if sum(parameter.nbytes for parameter in own.trained.values()) > _LARGE:
                give_back()  # malloc keeps what the loss and its gradients took, and optimizers take as much again

        replay = (
            Replay(self._origin.drawn({index: one.tensor() for index, one in self._drawn[step].items()}))
            if step < len(self._drawn)
            else nullcontext()
        )
        try:
            torch.set_default_dtype(dtype)
            with eager_torch(), without_checkpoints(), _same_draws(step), replay, _Promoted(dtype):
                return training.step(step, _cast(batch, dtype), exchange, watching)
        finally:
            torch.set_default_dtype(default)


@contextmanager
def _same_draws(step: int) -> Iterator[None]:
    """Has PyTorch draw the same numbers every time, at a step that the program does not come to, too."""
    before = torch.get_rng_state()
    for generator in (torch.default_generator, GENERATOR):
        generator.manual_seed(step)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _detached(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


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


def _named(loss: float, gradients: Results, changes: Results) -> Results:
    return {
        LOSS: lambda: torch.tensor(loss, dtype=torch.float64),
        **_gradients(gradients),
        **{f"{CHANGE}{name}": change for name, change in changes.items()},
    }


def _gradients(gradients: Results) -> Results:
    return {f"{GRADIENT}{name}": gradient for name, gradient in gradients.items()}


def _change_of(name: str, before: Tensors, after: Tensors) -> torch.Tensor:
    return change(before[name], after[name])


def change(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The change of a state, as `Results` have it."""
    if before.dtype == after.dtype and torch.equal(before, after):
        return torch.zeros((), dtype=torch.float64)
    apart = after.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    # In pieces: the largest parameter in FP64 three times is more than a step takes elsewhere.
    for one, other in zip(*(x.reshape(-1).split(_PIECE) for x in (apart, before)), strict=True):
        one -= other.double()
    # An element that stays infinite, as in a mask, has not moved.
    return apart if bool(apart.sum().isfinite()) else torch.where(after == before, 0.0, apart)


def _later(one: SpilledTensor) -> Callable[[], torch.Tensor]:
    return lambda: one.tensor().double()


def _cast(batch: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A copy of a batch, its FP32 numbers in `dtype`: a step may write into it, or ask for the gradient of a field."""
    return {
        name: field.detach().to(dtype if field.dtype == torch.float32 else field.dtype, copy=True)
        for name, field in batch.items()
    }


def _batch(task: Task, step: int) -> dict[str, torch.Tensor]:
    return task.batch(torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows)))
