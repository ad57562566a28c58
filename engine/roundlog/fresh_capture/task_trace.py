"""One training step, traced to ATen operators by make_fx with fake tensors: nothing is computed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.utils.checkpoint as checkpoint
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from roundlog.arithmetic import is_short
from roundlog.capture.captured import TracedCalls
from roundlog.capture.constants import written
from roundlog.capture.decompositions import decompositions
from roundlog.capture.draws import GENERATOR, Draws, generator_key
from roundlog.capture.errors import (
    CaptureError,
    DefectError,
    SourceLines,
    UnknownValueError,
    asks_for_values,
    control_flow,
    is_own_error,
    place_of_call,
    place_of_error,
    places_of,
    reason,
)
from roundlog.capture.optimizers import is_own
from roundlog.capture.portable import OutVariants
from roundlog.capture.task import OptimizerPhase
from roundlog.capture.tracing.decisions import Decisions, PassedChecks
from roundlog.capture.tracing.eager import (
    noting_threads,
    plain_model,
    plainly,
    quietly,
    without_collection,
    without_onednn,
)
from roundlog.capture.tracing.rewritten import rewritten
from roundlog.capture.tracing.trace import (
    THREAD,
    checked_loss,
    differentiate,
    drop_what_nothing_uses,
    require_followed,
)
from roundlog.capture.tracing.traced_optimizers import TracedOptimizers
from roundlog.capture.tracing.traced_step import JobSteps, TracedPath, TracedStep, merged
from roundlog.fresh_capture.reachable_values import ReachableValues
from roundlog.fresh_capture.stand_ins import HeldState, StandIns, left_in, put_back_after, rename_keys, stand_in_for
from roundlog.fresh_capture.warmed_task import WarmedTask

Named = dict[str, Tensor]


class WrittenStateError(CaptureError):
    """A step writes into a tensor that is state, though no watched step has changed its numbers."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the step writes into {name}, which is no part of the state: make it a buffer of the model")
        self.name = name


class TaskTrace:
    """Trace of a step of one task, which stands where the step begins."""

    def __init__(
        self,
        warmed: WarmedTask,
        found: ReachableValues,
        states: Mapping[str, HeldState],
        known: frozenset[str] = frozenset(),
    ) -> None:
        """found: what the task reaches. known: names of states of the model that come in
        as constants, since no step changes them.

        Raises CaptureError for an optimizer, an option or a schedule that is not supported, and for a stated number
        that the task does not reach."""
        task = warmed.task
        self._task, self._found, self._left, self._fields = task, found, warmed.left, warmed.fields
        self._states = {name: state for name, state in states.items() if name not in known}
        self._known = {name: state.tensor for name, state in states.items() if name in known}
        model = plain_model(task.model)
        first = {f"parameter/{name}": f"parameter/{name}" for name, _ in model.named_parameters()}
        ids = {id(state.tensor): name for name, state in self._states.items()}
        for name, tensor in model.named_parameters():
            first[f"parameter/{name}"] = ids.get(id(tensor), f"parameter/{name}")
        self._lines = SourceLines()
        self._optimizers = TracedOptimizers(task.phases(), task.steps, model, first, self._lines)
        self._first, self._trained = first, self._optimizers.trained
        self._values: Named = {name: state.tensor.detach() for name, state in self._states.items()}
        self._values |= self._optimizers.slots
        self._numbers = {name: functools.partial(task.number, name) for name in task.numbers} | self._own_rates()
        """Name -> the number at a step."""
        self._held = [*task.held_numbers(), *self._own_rates()]
        for name in self._held:
            if name not in found.numbers:
                raise CaptureError(f"numbers states {name}, and the model and the loss reach no number of that name")
        self._calls = TracedCalls()
        self._gradients: tuple[str, ...] = ()

    def _own_rates(self) -> dict[str, Callable[[int], float]]:
        """Learning rates that optimizers of the user's own read, where a schedule changes them."""
        return {f"{name.removesuffix('.lr')}['lr']": rate for name, rate in self._optimizers.rates.items()}

    def traced(self) -> tuple[TracedStep, JobSteps]:
        """The traced step, and the steps of the job in terms of it. Raises CaptureError where PyTorch cannot trace it,
        naming the user's line."""
        row = {
            name: torch.zeros(())
            for name in (*self._optimizers.columns, *(f"number/{n}" for n in self._numbers), "zero")
        }
        batch = self._task.batch(torch.arange(self._task.batch_size))
        graph = self._graph(row, batch)
        path = TracedPath(graph, self._gradients, Decisions(), tuple(self._calls.calls))
        steps = self._task.steps
        step = TracedStep(
            graph=merged([path], len(self._values)),
            states=self._values,
            columns=self._optimizers.columns,
            schedule=self._optimizers.schedule,
            trained=self._trained,
            gradients=tuple(name for name in self._trained if name in self._gradients),
            known=frozenset(self._known),
        )
        # A column of zeros makes zero the first operator, as it has been in all programs.
        table = [[*(float(value(step)) for value in self._numbers.values()), 0.0] for step in range(steps)]
        numbers = np.array(table, dtype=np.float64)
        return step, JobSteps((step.graph,), np.zeros(steps, dtype=np.int64), numbers)

    def _graph(self, row: Named, batch: Named) -> fx.GraphModule:
        threads: list[threading.Thread] = []

        def step(states: Named, row: Named, batch: Named) -> tuple[Any, ...]:  # make_fx cannot count a method's
            return self._step(states, row, batch)

        is_narrow = any(is_short(x.dtype) for x in self._values.values())
        try:
            with (
                put_back_after(self._found, self._held),
                preserve_node_meta(),
                plainly(),
                without_onednn(),
                traced_torch(is_short=is_narrow),
                quietly(),
                without_collection(),
                noting_threads(threads),
                self._optimizers.noting_steps(),
            ):
                graph = make_fx(step, decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(
                    self._values, row, batch
                )
        except CaptureError:
            raise
        except (Exception, SystemExit) as error:
            if is_own_error(error):
                raise DefectError(error, place=place_of_error(error)) from error
            if asks_for_values(error):
                raise UnknownValueError(control_flow(error)) from error
            if threads or any("concurrent/futures/thread" in place.path for place in places_of(error)):
                raise CaptureError(f"{THREAD}{place_of_error(error)}") from error
            raise UnknownValueError(
                f"PyTorch cannot trace this step: {reason(error)}{place_of_error(error)}"
            ) from error
        drop_what_nothing_uses(graph.graph)
        require_followed(graph)
        self._refuse_writes(graph)
        self._refuse_reads(graph)
        return graph

    def _refuse_reads(self, graph: fx.GraphModule) -> None:
        """Raises CaptureError where the step reads what the first step has left in a place that was empty."""
        for node in graph.graph.nodes:
            name = self._left.get(id(getattr(graph, str(node.target)))) if node.op == "get_attr" else None
            if name is not None:
                raise CaptureError(
                    f"a step reads {name}, where there is no tensor before the first step: begin with one of its final "
                    f"shape, {name} = torch.zeros(...)"
                )

    def _refuse_writes(self, graph: fx.GraphModule) -> None:
        """Raises CaptureError where the step writes into a tensor that is no state."""
        names = {id(place.tensor): name for name, place in self._found.places.items()}
        known = {id(tensor): name for name, tensor in self._known.items()}
        for node in written(graph.graph):
            held = getattr(graph, str(node.target)) if node.op == "get_attr" else None
            if isinstance(held, Tensor):
                name = known.get(id(held)) or names.get(id(held), "a tensor that no name leads to")
                if name in self._found.places:
                    raise WrittenStateError(name)
                raise CaptureError(
                    f"the step writes into {name.partition('/')[2] or name}, which is no part of the state: make it a "
                    "buffer of the model"
                )

    def _step(self, values: Named, row: Named, batch: Named) -> tuple[Any, ...]:
        model = plain_model(self._task.model)
        stand_ins: dict[int, Tensor] = {}
        traced: Named = {}
        for name, state in self._states.items():
            traced[name] = stand_in_for(state.tensor, values[name])
            for place in state.places:
                stand_ins[id(place.tensor)] = traced[name]
                if place.put is not None:
                    place.put(traced[name])
            stand_ins[id(state.tensor)] = traced[name]
        rename_keys(self._found, stand_ins)
        numbers = {name: row[f"number/{name}"] for name in self._numbers}
        whole = {name: x.to(torch.int64) for name, x in numbers.items() if type(self._numbers[name](0)) is int}
        numbers |= whole
        for name in self._held:
            self._found.numbers[name](numbers.pop(name))
        parameters: dict[str, Any] = {
            f"parameter/{name}": stand_ins.get(id(x), x) for name, x in _own_parameters(model, self._states)
        }
        self._optimizers._parameters = parameters
        drawn = Draws(self._generators())
        own = {name: state.tensor for name, state in self._states.items()}
        replacing, checks = StandIns(stand_ins, own, self._fields), PassedChecks()
        following: Named = {}
        with OutVariants(), drawn, replacing, checks:
            with self._lines, self._lines.all_from("micro_batches"):
                parts = self._task.parts_with(numbers, batch)
            losses, kept = list[Tensor](), Named()
            for number, phase in enumerate(self._optimizers.phases):
                losses.append(self._accumulate(phase, parts, traced))
                gradients = self._optimizers.gradients_of(number)
                kept.update({name: gradient.clone() for name, gradient in gradients.items()})
                slots = {name: x for name, x in following.items() if name.startswith("slot/")}
                if is_own(phase.optimizer):
                    self._optimizers.step_of_own(phase, gradients)
                following = values | {n: left_in(n, s, traced[n]) for n, s in self._states.items()} | slots
                if not is_own(phase.optimizer):
                    self._optimizers.update(phase, following, gradients, row)
                    if phase is not self._optimizers.phases[-1]:
                        self._write(gradients, following, traced)
            loss = self._sum(losses)
        for refused in (*drawn.refused, *replacing.refused, *checks.refused):  # the user's code has caught these
            raise refused
        drawn.refuse_put_back()
        self._gradients = tuple(kept)
        return loss, [following[name].detach() for name in values], list(kept.values()), drawn.drawn, []

    def _generators(self) -> dict[int, Tensor]:
        """Key of a generator that a step may draw from -> its state."""
        reached = (x for _, x in self._found.seen.values() if isinstance(x, torch.Generator))
        found = {generator_key(x): x.get_state() for x in (*reached, GENERATOR)}
        return {**found, 0: torch.get_rng_state()}

    def _accumulate(self, phase: OptimizerPhase, parts: Sequence[Named], traced: Named) -> Tensor:
        """Gradients of a batch, into `.grad`; gives the loss."""
        lines, losses = self._lines, []
        for x in traced.values():
            if x.is_leaf and x.requires_grad:
                x.grad = None
        for part in parts:
            with lines, self._calls:
                loss = checked_loss(phase.called("loss"), phase.loss(plain_model(self._task.model), dict(part)))
            with lines, lines.all_from("micro_batches"), self._calls:
                loss = self._task.share(loss)
            with lines, lines.backward_of(loss), self._calls:
                differentiate(loss)
            losses.append(loss.detach())
        return self._sum(losses)

    def _sum(self, losses: Sequence[Tensor]) -> Tensor:
        with self._lines, self._lines.all_from("the sum of losses"):
            return sum(losses[1:], losses[0])

    def _write(self, gradients: Iterable[str], following: Named, traced: Named) -> None:
        """Put the parameters that one optimizer has stepped where the losses after it read them, as it does itself."""
        with torch.no_grad(), self._lines, self._lines.all_from("optimizer"):
            for name in gradients:
                parameter = self._first[f"parameter/{name}"]
                traced[parameter].copy_(following[parameter])


def _own_parameters(model: torch.nn.Module, states: Mapping[str, HeldState]) -> Iterable[tuple[str, Tensor]]:
    """(name, the task's own tensor) of parameters, while traced ones stand in their places."""
    for name, state in states.items():
        kind, _, own = name.partition("/")
        if kind == "parameter":
            yield own, state.tensor


@contextmanager
def traced_torch(*, is_short: bool) -> Iterator[None]:
    """Replace parts of PyTorch that no trace can follow. The comparison with the user's own step runs PyTorch's.
    is_short: whether the model has numbers of
    fewer than 32 bits."""
    with rewritten(is_short=is_short), without_checkpoints(), mock.patch.object(nn.Module, "_apply", _convert):
        yield
    torch.clear_autocast_cache()


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Keep what checkpoints compute, in place of computing it again."""
    with (
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _kept),
        mock.patch.object(checkpoint, "CheckpointFunction", _Kept),
    ):
        yield


def _kept(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    yield


class _Kept:
    """In place of a checkpoint that computes again: what it computes is kept."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _convert(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    if any(function(x) is not x for x in (*module.parameters(), *module.buffers())):
        raise CaptureError(f"the step converts a module, {type(module).__name__}{place_of_call()}: convert it before")
    return module
