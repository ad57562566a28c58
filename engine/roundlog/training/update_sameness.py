"""Sameness check of optimizers, on parameters and gradients of our own choosing.

A parameter in BF16 hides much of what its optimizer computes: no bit of it shows whether its decay is 0.0100 or 0.0101.
So the part of the program between the gradients and what is stored is computed in FP64, numbers of BF16 too, from
parameters and gradients of many sizes, and the task's own optimizers step copies in FP64. Both are given the same
constants as FP32 or BF16 has them, and differ by little more than FP64's rounding."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.arithmetic import is_short
from roundlog.capture import Captured, CaptureError, Task
from roundlog.capture.builder import needed
from roundlog.capture.captured import OwnStates
from roundlog.capture.optimizers import is_own
from roundlog.capture.real_steps.eager_steps import EagerTraining
from roundlog.capture.real_steps.patched_torch import eager_torch
from roundlog.capture.rules.short_formats import with_rounded_numbers
from roundlog.operators import Direct, Inexact, Source, StepInputs, operator
from roundlog.operators.registry import ints
from roundlog.program import Node

_STEPS = 3
"""Steps that are compared, of each choice: in the first one, the optimizer's states are those of a beginning."""

_CHOICES, _MANY = 4, 10_000
"""Choices of numbers, and parameters from which on one is enough."""

_TINY = 1e-10
"""Allowed difference of a parameter in FP64, in units of itself."""

_CLOSE, _FEW = 1e-9, 1e-6
"""Allowed difference of a change, in units of itself, and share of a tensor's elements that may be further off, where
terms cancel."""

_CLOSE_FP32, _FEW_FP32 = 1e-4, 1e-3
"""The same where one side is stepped in FP32, or where a rule has other constants: a rounded sum of two, say."""

_EXACT = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose rules have PyTorch's own constants in their first step, and in every step of short numbers."""

_CONVERSIONS = ("to_f32", "to_bf16", "to_f16")

Tensors = Mapping[str, torch.Tensor]


class _NotFollowed(Exception):
    """An update reads more than states and gradients, or PyTorch rounds in it where no call shows it."""


def confirm_same_updates(captured: Captured) -> None:
    """Hold the updates of a program that compute or store numbers of fewer than 32 bits against steps of the task's
    own optimizers: FP32 hides no constant of an update. Raises CaptureError, naming the first parameter that differs.
    """
    nodes, stores = captured.program.nodes, _stores(captured)
    read = {*needed(nodes, stores.values(), captured.origin.gradients.values()), *stores.values()}
    if not any(nodes[index].type.dtype.is_short for index in read - {*captured.origin.gradients.values()}):
        return
    trained = sum(captured.states[f"parameter/{name}"].numel() for name in captured.origin.trained)
    for seed in range(1 if trained > _MANY else _CHOICES):
        try:
            found = _difference(_Updates(captured), torch.Generator().manual_seed(seed))
        except Exception:  # whatever an optimizer of the user's raises in FP64; its own steps have been compared
            return
        if found:
            raise CaptureError(
                f"the captured step is not yours: {found}, of gradients that the comparison chooses: write this part "
                "of the optimizer with other operators, or keep its parameters in float32"
            )


class _Updates:
    """The part of a program from gradients to what an optimizer changes."""

    def __init__(self, captured: Captured) -> None:
        self.captured, self.own = captured, captured.begin()
        program = captured.program
        self.stores = _stores(captured)
        read = needed(program.nodes, self.stores.values(), captured.origin.gradients.values())
        self.is_short = any(program.nodes[index].type.dtype.is_short for index in read)
        """Whether updates compute with numbers of fewer than 32 bits."""
        if any(not program.nodes[place].inputs for place in captured.origin.gradients.values()):
            raise _NotFollowed  # a constant, which may be read elsewhere
        optimizers = [phase.optimizer for phase in self.own.task.phases()]
        self.is_own = any(map(is_own, optimizers))
        """Whether an optimizer is the user's own, whose step is traced as it is written."""
        self._is_exact = all(type(optimizer) in _EXACT for optimizer in optimizers)

    def is_exact(self, step: int) -> bool:
        """Whether a step has the same constants as PyTorch's, to the bit."""
        return self.is_short or self.is_own or (self._is_exact and not step)

    def following(self, states: Tensors, gradients: Tensors, step: int) -> dict[str, torch.Tensor]:
        """The states, f64, after a step from these."""
        nodes, captured = self.captured.program.nodes, self.captured
        device = torch.device("cpu")
        given = StepInputs(
            states=list(states.values()), data=[], schedule=captured.schedule[step], seed=0, step=step, device=device
        )
        known = {captured.origin.gradients[name]: gradient for name, gradient in gradients.items()}
        found = _in_fp64(nodes, self.stores.values(), known, given)
        return {**states, **{name: found[place] for name, place in self.stores.items()}}


def _stores(captured: Captured) -> dict[str, int]:
    """Next values of the states that an optimizer changes."""
    places = {node.attributes["slot"]: node.inputs[0] for node in captured.program.nodes if node.op == "store"}
    kept = tuple(f"attribute/{phase.called('optimizer')}" for phase in captured.task.phases())
    trained = {f"parameter/{name}" for name in captured.origin.trained}
    return {
        name: places[slot]
        for slot, name in enumerate(captured.states)
        if slot in places and (name in trained or name.startswith(("slot/", *kept)))
    }


def _in_fp64(
    nodes: Sequence[Node], wanted: Collection[int], known: Mapping[int, torch.Tensor], given: StepInputs
) -> dict[int, torch.Tensor]:
    """Values of a program, nothing of them rounded but what follows from constants and the schedule alone."""
    values, fixed = dict(known), set[int]()
    order = sorted(needed(nodes, wanted, known) - known.keys())
    last = {value: index for index in order for value in nodes[index].inputs}
    for index in order:
        node, kind = nodes[index], operator(nodes[index].op)
        inputs = [values[value] for value in node.inputs]
        if node.op in ("data", "uniform"):
            raise _NotFollowed
        if isinstance(kind, Source):
            value = kind.load(node.attributes, node.type, given)
        elif node.op in _CONVERSIONS:
            value = inputs[0]
        elif node.op == "sqrt":
            value = inputs[0].sqrt()
        elif node.op == "sum":
            value = inputs[0].sum(ints(node.attributes, "dims"), keepdim=True)
        elif isinstance(kind, Inexact):
            value = kind.approximate(inputs, node.attributes)
        else:
            assert isinstance(kind, Direct)
            value = kind.compute(inputs, node.attributes)
        if node.op in ("constant", "schedule") or (node.inputs and fixed.issuperset(node.inputs)):
            fixed.add(index)
            value = value.to(node.type.dtype.torch_dtype)
        values[index] = value.double() if node.type.dtype.is_float else value
        for read in node.inputs:
            if last[read] == index and read not in wanted:
                values.pop(read, None)
    return values


def _difference(updates: _Updates, draws: torch.Generator) -> str:
    """The first difference of some steps, in words; empty if there is none."""
    captured, own = updates.captured, updates.own
    with nullcontext() if updates.is_short else own.widened():
        for name in updates.stores.keys() & own.tensors.keys():
            tensor = own.tensors[name]
            if is_short(tensor.dtype):
                tensor.data = tensor.double()
        for parameter in own.trained.values():
            parameter.data = _drawn(parameter, draws, -6, 1)
        wide = {name: captured.states[name] for name in updates.stores}
        states = dict(captured.states) | {name: x.double() for name, x in wide.items() if x.is_floating_point()}
        states |= {f"parameter/{name}": p.detach().double().clone() for name, p in own.trained.items()}
        training, gradients = EagerTraining(_without_model(own)), dict[str, torch.Tensor]()
        for step in range(min(_STEPS, own.task.steps)):
            drawn: dict[int, torch.Tensor] = {}  # two parameters may have one gradient
            for name, place in captured.origin.gradients.items():
                if step and updates.is_own:  # means of gradients that turn cross the zeros of signs
                    x = -gradients[name] * _drawn(own.trained[name], draws, -2, 0).abs()
                else:
                    x = _drawn(own.trained[name], draws, -10, step)
                gradients[name] = drawn.setdefault(place, x)
            clipped = [phase.max_grad_norm for phase in own.task.phases() if phase.max_grad_norm is not None]
            if clipped:  # where what is added to the norm shows
                norm = torch.stack([x.double().norm() for x in gradients.values()]).norm()
                gradients = {name: x * (1.5 * max(clipped) / norm).to(x.dtype) for name, x in gradients.items()}
            with eager_torch(), _Rounding(updates.is_short) as rounding:
                training.step(step, {}, lambda chosen=gradients: _exchange(own, chosen))  # type: ignore[misc]
            after = updates.following(states, {name: x.double() for name, x in gradients.items()}, step)
            now = {name: x.detach().clone() for name, x in own.now().items() if name in updates.stores}
            for name, x in now.items():
                if found := _apart(states[name], after[name], x.to(rounding.dtype), updates.is_exact(step)):
                    return f"at step {step} the change of {name} {found}"
            states = after | {name: x.double() if x.is_floating_point() else x for name, x in now.items()}
    return ""


def _apart(before: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, is_exact: bool) -> str:
    """How a change differs from PyTorch's, in words; empty if it does not. theirs: f64, or f32 if it is stepped so."""
    is_wide, theirs = theirs.dtype is torch.float64, theirs.double()
    close, few = (_CLOSE, _FEW) if is_wide and is_exact else (_CLOSE_FP32, _FEW_FP32)
    changes = (theirs - before).abs()
    changes += 1e-3 * changes.median()  # a mean of gradients that nearly cancel shows the constants' rounding
    room = close * changes + (_TINY if is_wide else 2.0**-22) * (before.abs() + theirs.abs())
    apart = (ours - theirs).abs()
    if int((apart > room).sum()) <= few * apart.numel():
        return ""
    place = (apart - room).argmax()
    differs, yours = (float(x.flatten()[place]) for x in (apart, theirs - before))
    return f"differs by {differs:.2g}, where yours is {yours:.2g}"


def _drawn(like: torch.Tensor, draws: torch.Generator, low: float, high: float) -> torch.Tensor:
    """Numbers of either sign and of sizes between two powers of ten, some of them zero, in FP32, or in FP64 for what
    has another format."""
    sizes = torch.rand(like.shape, generator=draws, dtype=torch.float64).mul_(high - low).add_(low)
    signs = torch.randint(-2, 3, like.shape, generator=draws).sign()
    return (signs * 10.0**sizes).to(torch.float32 if like.dtype is torch.float32 else torch.float64)


def _without_model(own: OwnStates) -> Task:
    """The task with losses that compute nothing with the model."""

    def loss(*_: object) -> torch.Tensor:
        return torch.stack([p.double().sum() for p in own.trained.values()]).sum()

    optimizer = own.task.optimizer
    losses: Any = loss
    if isinstance(optimizer, Mapping):
        losses = dict.fromkeys(optimizer, loss)
    elif isinstance(optimizer, Sequence):
        losses = [loss] * len(optimizer)
    for phase in own.task.phases():
        for group in phase.optimizer.param_groups:
            group.update({key: False for key in ("foreach", "fused") if key in group})
            if isinstance(group.get("eps"), tuple) and None in group["eps"]:
                raise _NotFollowed  # Adafactor's follows from the dtype
    return replace(own.task, loss=losses, of_batch=None, micro_batches=1, numbers={})


def _exchange(own: OwnStates, gradients: Tensors) -> None:
    for name, parameter in own.trained.items():
        if parameter.grad is not None:
            parameter.grad = gradients[name].clone() if name in gradients else None


class _Rounding(TorchDispatchMode):
    """Gives operators Python's numbers as FP32 has them; and of numbers in FP64, which stand for short ones, as kernels
    of those take them, and brings them to FP32 beside numbers of FP32."""

    def __init__(self, is_short: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_short = is_short
        self.dtype = torch.float64
        """FP32 once something has been computed in it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_short and str(func).startswith(("aten._foreach_add", "aten._foreach_sub")):
            raise _NotFollowed
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        dtypes = {x.dtype for x in given if x.ndim} or {x.dtype for x in given}
        is_wide = not self._is_short or torch.float32 not in dtypes
        if not is_wide and any(x.ndim for x in given):  # not of a count of steps
            self.dtype = torch.float32
        if self._is_short and torch.float64 in dtypes and is_wide:
            args, kwargs = with_rounded_numbers(func, args, kwargs, torch.bfloat16)

        def taken(thing: Any) -> Any:
            if type(thing) is float:
                return float(torch.tensor(thing, dtype=torch.float32))
            if isinstance(thing, torch.dtype) and (is_short(thing) or (thing is torch.float32 and not self._is_short)):
                return torch.float64
            return thing

        args, kwargs = tree_map(taken, (args, kwargs))
        return func(*args, **kwargs)
