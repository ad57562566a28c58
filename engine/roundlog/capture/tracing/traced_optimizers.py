"""The optimizers of a task while its step is traced: their parameter groups, which of them trains which parameter, what
depends on the step, and their updates as operators.

Models have many parameters of a few shapes, and an optimizer does the same with all of a shape. The first update is
traced; for the others its nodes are copied, which takes less time and gives the same graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode, track_tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from roundlog.capture.constants import node_of
from roundlog.capture.errors import CaptureError, SourceLines, place_of_call
from roundlog.capture.optimizers import Column, Own, Update, clip_factor, updates
from roundlog.capture.real_steps.reachable_values import memory_of
from roundlog.capture.task import OptimizerPhase

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Traced:
    """An update that was traced."""

    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    """Nodes of its operators, in order."""
    outputs: tuple[fx.Node, ...]
    results: tuple[torch.Tensor, ...]


class RepeatedUpdates:
    """Updates within one trace."""

    def __init__(self) -> None:
        self._traced: dict[object, _Traced] = {}

    def apply(self, update: object, function: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """function(*inputs), while make_fx traces it: by the nodes of an earlier call, if that was given the same
        `update` (hashable) and inputs of the same kinds. The function writes into nothing, draws nothing, and depends
        on nothing that is another one for an equal `update`."""
        mode = get_proxy_mode()
        tracer = mode.tracer if mode is not None and isinstance(mode.tracer, PythonKeyTracer) else None
        places = [node_of(x) for x in inputs]
        if tracer is None or None in places or len(set(places)) < len(places):
            return function(*inputs)
        nodes = tuple(node for node in places if node is not None)
        key = (update, *map(_kind, inputs))
        if (traced := self._traced.get(key)) is not None:
            return _copied(traced, nodes, tracer)
        graph = tracer.graph
        before = next(iter(reversed(graph.nodes)))
        results = tuple(function(*inputs))
        made: list[fx.Node] = []
        node = before.next
        while node.op != "root":
            made.append(node)
            node = node.next
        outputs = tuple(map(node_of, results))
        if all(output in made for output in outputs):
            self._traced[key] = _Traced(nodes, tuple(made), outputs, results)  # type: ignore[arg-type]
        return results


def _copied(traced: _Traced, inputs: Sequence[fx.Node], tracer: PythonKeyTracer) -> Tensors:
    new = dict(zip(traced.inputs, inputs, strict=True))
    for node in traced.nodes:
        new[node] = tracer.graph.node_copy(node, lambda one: new.get(one, one))
    return [
        _tracked(result, new[output], tracer) for result, output in zip(traced.results, traced.outputs, strict=True)
    ]


def _tracked(like: torch.Tensor, node: fx.Node, tracer: PythonKeyTracer) -> torch.Tensor:
    """A fake tensor of this kind that stands for a node."""
    assert isinstance(like, FakeTensor)
    with _disable_current_modes(), like.fake_mode:
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    track_tensor(made, fx.Proxy(node, tracer), constant=None, tracer=tracer)
    return made


def _kind(x: torch.Tensor) -> tuple[object, ...]:
    """Everything about a tensor that operators may depend on, but its numbers."""
    lazy = (x.is_neg(), x.is_conj(), x._is_zerotensor())
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.device, lazy


Named = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """One parameter group."""

    name: str
    """As in `optimizer.param_groups[0]`."""
    phase: int
    """Number of the optimizer among the task's."""
    update: Update


def groups_of(phases: Sequence[OptimizerPhase], steps: int) -> list[ParameterGroup]:
    """All groups, optimizer by optimizer. Raises CaptureError for an optimizer, an option or a schedule that is not
    supported."""
    return [
        ParameterGroup(f"{phase.called('optimizer')}.param_groups[{place}]", number, update)
        for number, phase in enumerate(phases)
        for place, update in enumerate(updates(phase.optimizer, phase.schedule, steps))
    ]


def trained(
    phases: Sequence[OptimizerPhase], model: nn.Module, groups: Sequence[ParameterGroup], first: Mapping[str, str]
) -> dict[str, int]:
    """Name of every parameter that is trained -> number of its group, in the model's order. first: state name -> the
    first one with the same memory. Raises CaptureError for parameters that no step could be taken with."""
    named = dict(model.named_parameters())
    known = {id(parameter) for parameter in named.values()}
    held = {number: {id(p) for p in group.update.group["params"]} for number, group in enumerate(groups)}
    for phase, ids in _by_phase(groups, held).items():
        if strangers := ids - known:
            raise CaptureError(
                f"the {phases[phase].called('optimizer')} holds {len(strangers)} parameters that are not the model's: "
                + (
                    "make it of model.parameters()"
                    if len(phases) == 1
                    else "give a model with all, as an nn.ModuleDict"
                )
            )
    number_of: dict[int, int] = {}
    owner: dict[str, int] = {}
    for name, parameter in named.items():
        for number in (number for number, ids in held.items() if id(parameter) in ids and parameter.requires_grad):
            one, two = owner.setdefault(first[f"parameter/{name}"], groups[number].phase), groups[number].phase
            if one != two:
                raise CaptureError(
                    f"{name} is trained by {phases[one].called('optimizer')} and {phases[two].called('optimizer')}, "
                    "which would both step it: leave it in one of them"
                )
            number_of[id(parameter)] = number
    found = {name: number_of[id(p)] for name, p in named.items() if id(p) in number_of}
    by_memory: dict[int, str] = {}
    for name, parameter in named.items():
        memory = memory_of(parameter) if parameter.numel() else 0
        other = by_memory.setdefault(memory, name) if memory else name
        if other != name and {name, other} & found.keys():
            raise CaptureError(
                f"{name} and {other} are two parameters with the same memory: make them one, {name} = {other}, or make "
                f"{name} a copy"
            )
    for phase in range(len(phases)):
        if not any(groups[group].phase == phase for group in found.values()):
            name = phases[phase].called("optimizer")
            raise CaptureError(f"nothing is trained: no parameter of the {name} requires a gradient")
    outside = [name for name, p in named.items() if p.requires_grad and name not in found]
    if outside and len(phases) == 1 and phases[0].max_grad_norm is not None:
        # clip_grad_norm_ would count its gradient, which optimizer.zero_grad() never clears.
        raise CaptureError(
            f"{outside[0]} requires a gradient but is in no group of the optimizer, so that the norm to clip is not "
            "clear: freeze it with .requires_grad_(False)"
        )
    return found


def _by_phase(groups: Sequence[ParameterGroup], held: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """Identities of the parameters of all groups of an optimizer, by its number."""
    found: dict[int, set[int]] = {}
    for number, ids in held.items():
        found.setdefault(groups[number].phase, set()).update(ids)
    return found


def schedule_of(groups: Sequence[ParameterGroup], steps: int) -> tuple[tuple[str, ...], torch.Tensor]:
    """Names of the schedule's columns, and f32[steps, columns]."""
    columns: dict[str, Column] = {}
    for number, group in enumerate(groups):
        # The rate stands in every table, though some updates read only what follows from it: people look at it.
        every: dict[str, Column] = {"lr": group.update.rate, **group.update.columns()}
        columns.update({f"{number}/{name}": column for name, column in every.items()})
    rows = [[float(column(step)) for column in columns.values()] for step in range(steps)]
    table = torch.tensor(rows, dtype=torch.float64).to(torch.float32).reshape(steps, -1)
    if not bool(table.isfinite().all()):
        raise CaptureError(
            "the learning rate schedule gives a value that is not finite: let it give a finite number at every step"
        )
    return tuple(columns), table


def refuse_unsupported(phases: Sequence[OptimizerPhase], model: nn.Module, steps: int) -> None:
    """Raises CaptureError for an optimizer, an option or a schedule that is not supported."""
    groups = groups_of(phases, steps)
    trained(phases, model, groups, {f"parameter/{name}": f"parameter/{name}" for name, _ in model.named_parameters()})
    schedule_of(groups, steps)


class TracedOptimizers:
    """The optimizers of a task while its step is traced: their updates as operators, and what depends on the step."""

    def __init__(
        self,
        phases: Sequence[OptimizerPhase],
        steps: int,
        model: nn.Module,
        first: Mapping[str, str],
        lines: SourceLines,
    ) -> None:
        """steps: of the job. first: state name -> the first one with the same memory. lines: gives operators their
        places.

        Raises CaptureError for an optimizer, an option or a schedule that is not supported."""
        self._first = first
        self._lines = lines
        self.parameters: Named = {f"parameter/{k}": v for k, v in model.named_parameters()}
        """Parameters by state name: while a step is traced, those that stand in for them."""
        self.phases, self._groups = phases, groups_of(phases, steps)
        self._trainable = trained(phases, model, self._groups, first)
        self.columns, self.schedule = schedule_of(self._groups, steps)
        self.slots: dict[str, torch.Tensor] = {}
        """States of the optimizers before the first step, by name."""
        for name, number in self._trainable.items():
            parameter = self.parameters[f"parameter/{name}"].detach()
            for slot, tensor in self._groups[number].update.slots(parameter).items():
                self.slots[f"slot/{name}/{slot}"] = tensor
        self.rates = {
            f"{group.name}['lr']": group.update.rate
            for group in self._groups
            if isinstance(group.update, Own) and "lr" in group.update.rate.changing(steps)
        }
        """The learning rates that optimizers of the user's read, by name, where they change."""
        self.stepped: str | None = None
        """Place in the loss, in words, where an optimizer has taken a step."""
        self._stepping: object = None
        """Optimizer of the user's that is taking the step of its phase."""

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters that are trained, by name."""
        return {name: self.parameters[f"parameter/{name}"] for name in self._trainable}

    @contextmanager
    def noting_steps(self) -> Iterator[None]:
        """Notes where the user's code takes a step of an optimizer meanwhile."""

        def note(optimizer: object, *_: object) -> None:
            if optimizer is not self._stepping:
                self.stepped = place_of_call()

        handle = register_optimizer_step_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def gradients_of(self, number: int) -> Named:
        """Gradients of the parameters that one optimizer trains, by name: those that have one."""
        own = [name for name, group in self._trainable.items() if self._groups[group].phase == number]
        found = {name: self.parameters[f"parameter/{name}"].grad for name in own}
        gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
        if not gradients:
            loss, optimizer = (self.phases[number].called(part) for part in ("loss", "optimizer"))
            raise CaptureError(
                f"the {loss} depends on no parameter that {optimizer} trains: check whether it belongs to another "
                "optimizer, or is cut off by .detach()"
            )
        return gradients

    def step_of_own(self, phase: OptimizerPhase, gradients: Named) -> None:
        """Clip the gradients, and take a step of an optimizer of the user's, which writes into parameters."""
        own = {id(parameter) for group in phase.optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self.parameters.items():
            if id(parameter) not in own:
                parameter.grad = None
            elif phase.max_grad_norm is not None and name.removeprefix("parameter/") in gradients:
                with torch.no_grad(), self._lines, self._lines.all_from("clip_grad_norm_"):
                    parameter.grad = gradients[name.removeprefix("parameter/")] * clip_factor(
                        gradients.values(), phase.max_grad_norm
                    )
        self._stepping = phase.optimizer
        with self._lines:
            phase.optimizer.step()
        self._stepping = None

    def update(self, phase: OptimizerPhase, following: Named, gradients: Named, row: Named) -> None:
        """Clip the gradients, and take a step of the optimizer."""
        lines, factor, repeated = self._lines, None, RepeatedUpdates()
        if phase.max_grad_norm is not None:
            with torch.no_grad(), lines, lines.all_from("clip_grad_norm_"):
                factor = clip_factor(gradients.values(), phase.max_grad_norm)
        for name, gradient in gradients.items():
            number, prefix = self._trainable[name], f"slot/{name}/"
            group, parameter = self._groups[number].update, self._first[f"parameter/{name}"]
            own = {slot.removeprefix(prefix): following[slot] for slot in self.slots if slot.startswith(prefix)}
            scalars = {column: row[f"{number}/{column}"] for column in group.columns()}

            def step(
                p: torch.Tensor,
                g: torch.Tensor,
                *slots: torch.Tensor,
                update: Update = group,
                names: tuple[str, ...] = tuple(own),
                scalars: Named = scalars,
            ) -> list[torch.Tensor]:
                g = g if factor is None else g * factor
                p, after = update.apply(p, g, dict(zip(names, slots, strict=True)), scalars)
                return [p, *(after[name] for name in names)]

            with torch.no_grad(), lines, lines.all_from(type(phase.optimizer).__name__):
                following[parameter], *after = repeated.apply(
                    number, step, [following[parameter], gradient, *own.values()]
                )
            following.update({prefix + slot: tensor for slot, tensor in zip(own, after, strict=True)})
