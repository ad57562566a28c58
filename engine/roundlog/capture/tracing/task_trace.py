"""One training step, traced to ATen operators by make_fx with fake tensors: nothing is computed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from roundlog.capture.constants import node_of, written, written_by
from roundlog.capture.decompositions import decompositions
from roundlog.capture.draws import GENERATOR, Draws, draws, generator_key
from roundlog.capture.errors import (
    CaptureError,
    DefectError,
    SourceLines,
    UnknownValueError,
    asks_for_values,
    control_flow,
    is_own_error,
    place_of_error,
    places_of,
    reason,
    source_of,
)
from roundlog.capture.kernel_calls import TracedCalls
from roundlog.capture.lowering import TracedStep
from roundlog.capture.optimizers import is_own
from roundlog.capture.real_steps.eager_steps import checked_loss, noting_backward, refusing_backward, share
from roundlog.capture.real_steps.patched_torch import (
    OutVariants,
    eager_torch,
    noting_threads,
    plain_model,
    silent_fake_tensors,
    traced_torch,
    without_collection,
    without_onednn,
)
from roundlog.capture.real_steps.reachable_values import ReachableValues
from roundlog.capture.task import OptimizerPhase
from roundlog.capture.tracing.traced_optimizers import TracedOptimizers
from roundlog.capture.tracing.warmed_task import (
    HeldState,
    StandIns,
    WarmedTask,
    left_in,
    put_back_after,
    rename_keys,
    stand_in_for,
)
from roundlog.data import STORED

Named = dict[str, Tensor]


class WrittenStateError(CaptureError):
    """A step writes into tensors that are state, or puts others there, though no watched step has changed a number."""

    def __init__(self, *names: str) -> None:
        super().__init__(
            f"the step writes into {names[0]}, which is no part of the state: make it a buffer of the model"
        )
        self.names = names


class WrittenConstantError(CaptureError):
    """A step writes into a tensor that is a constant of the trace, or puts another in its place."""

    def __init__(self, name: str) -> None:
        told = name.partition("/")[2] or name
        super().__init__(f"the step writes into {told}, which is no part of the state: make it a buffer of the model")
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
        """found: what the task reaches. known: names of states of the model that come in as constants, since no step
        changes them.

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
        self._first = first
        self._values: Named = {
            name: state.tensor.detach()
            for name, state in states.items()
            if name not in known or state.tensor.dtype in STORED
        }
        self._values |= self._optimizers.slots
        rates = self._optimizers.rates
        self._numbers = {name: functools.partial(task.number, name) for name in task.numbers} | rates
        """Name -> the number at a step."""
        self._held = [*task.held_numbers(), *rates]
        for name in self._held:
            if name not in found.numbers:
                raise CaptureError(f"numbers states {name}, and the model and the loss reach no number of that name")
        self._calls = TracedCalls()
        self._gradients: tuple[str, ...] = ()

    def traced(self) -> TracedStep:
        """The traced step. Raises CaptureError where PyTorch cannot trace it, naming the user's line."""
        row = {name: torch.zeros(()) for name in (*self._optimizers.columns, *(f"number/{n}" for n in self._numbers))}
        batch = self._task.batch(torch.arange(self._task.batch_size))
        graph = self._graph(row, batch)
        table = [[float(value(step)) for value in self._numbers.values()] for step in range(self._task.steps)]
        return TracedStep(
            graph=graph,
            states=self._values,
            columns=self._optimizers.columns,
            schedule=self._optimizers.schedule,
            numbers=np.array(table, dtype=np.float64).reshape(self._task.steps, -1),
            trained=tuple(self._optimizers.trained),
            gradients=tuple(name for name in self._optimizers.trained if name in self._gradients),
            known=frozenset(self._known),
            calls=tuple(self._calls.calls),
        )

    def _graph(self, row: Named, batch: Named) -> fx.GraphModule:
        threads: list[threading.Thread] = []

        def step(states: Named, row: Named, batch: Named) -> tuple[Any, ...]:  # make_fx cannot count a method's
            return self._step(states, row, batch)

        try:
            with (
                put_back_after(self._found, self._held),
                preserve_node_meta(),
                eager_torch(),
                without_onednn(),
                traced_torch(),
                silent_fake_tensors(),
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
        """Raises CaptureError where the step reads what the first step has left, and no step may read."""
        for node in graph.graph.nodes:
            why = self._left.get(id(getattr(graph, str(node.target)))) if node.op == "get_attr" else None
            if why is not None:
                raise CaptureError(why)

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
                raise WrittenConstantError(name)

    def _step(self, values: Named, row: Named, batch: Named) -> tuple[Any, ...]:
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
        own: Named = {name: state.tensor for name, state in self._states.items()}
        parameters: Named = {n: stand_ins.get(id(x), x) for n, x in own.items() if n.startswith("parameter/")}
        self._optimizers.parameters = parameters
        drawn = Draws(self._generators())
        replacing = StandIns(stand_ins, own, self._fields)
        following: Named = {}
        with OutVariants(), drawn, replacing:
            with self._lines, self._lines.all_from("micro_batches"):
                parts = self._task.parts(batch, numbers)
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
        for refused in (*drawn.refused, *replacing.refused):  # the user's code has caught these
            raise refused
        drawn.refuse_put_back()
        for name, tensor in self._known.items():
            for place in self._found.places.values():
                if place.tensor is tensor and place.put is not None and place.now() is not tensor:
                    raise WrittenConstantError(name)
        if assigned := self._assigned():
            raise WrittenStateError(*assigned)
        self._gradients = tuple(kept)
        ordered = [kept[name] for name in self._optimizers.trained if name in kept]
        return loss, [following[name].detach() for name in values], ordered, drawn.drawn

    def _assigned(self) -> list[str]:
        """Names of places, none of a state's, where the step has put what it computes from its inputs."""
        held = {id(place.tensor) for state in self._states.values() for place in state.places}
        held |= {*self._left, *map(id, self._known.values())}
        found = {name: p.now() for name, p in self._found.places.items() if p.put and id(p.tensor) not in held}
        nodes = {name: node_of(x) for name, x in found.items() if isinstance(x, FakeTensor)}
        if not nodes:
            return []
        graph = next(node for node in nodes.values() if node is not None).graph
        changing = written(graph)
        for node in graph.nodes:
            if node.op == "placeholder" or draws(node.target) or any(x in changing for x in node.all_input_nodes):
                changing.add(node)
        return [name for name, node in nodes.items() if node in changing]

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
            with noting_backward() as called, lines, self._calls:
                found = phase.loss(plain_model(self._task.model), dict(part))
            with refusing_backward(found, called), lines, self._calls:
                loss = checked_loss(phase.called("loss"), found)
                with lines.all_from("micro_batches"):
                    loss = share(self._task, loss)
                with lines.backward_of(loss):
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


THREAD = (
    "the step computes in another thread, where it cannot be followed: compute everything in the thread that calls it"
)


def differentiate(loss: torch.Tensor) -> None:
    """`loss.backward()`, but that modes for functions go on in hooks and in what checkpoints compute again."""
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def drop_what_nothing_uses(graph: fx.Graph) -> None:
    """Leave out what changes nothing: numbers that are printed or logged, and what only checks look at. A step that
    prints in some turns only is then the same in all."""
    for node in reversed(graph.nodes):
        # Random draws count, used or not.
        kept = bool(written_by(node)) or draws(node.target)
        if node.op in ("call_function", "get_attr") and not node.users and not kept:
            graph.erase_node(node)


def require_followed(graph: fx.GraphModule) -> None:
    """Raises CaptureError if the step goes on with a tensor that it has computed where no mode of the trace was active,
    as in another thread: such a tensor comes in as a constant, without values."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(graph, str(node.target)), FakeTensor):
            place = next((source_of(user) for user in node.users if source_of(user)), "")
            raise CaptureError(f"{THREAD}{f' (at {place})' if place else ''}")
