"""Tensors of the trace in place of a task's own, wherever the task's code holds them.

A traced step gets its states as arguments. Each stands in every place that the walk has found, so that `self.weight`,
a closure's cell and an entry of a list all give the traced tensor; what a step leaves there is read back. A tensor that
code holds where no place is known is replaced when it is given to a function of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from roundlog.capture.captured import model_tensors
from roundlog.capture.errors import CaptureError, place_of_call
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.substitution import tied
from roundlog.fresh_capture.numbered_task import NumberedTask
from roundlog.fresh_capture.reachable_values import ReachableValues, TensorPlace, memory_of


@dataclass(frozen=True, slots=True)
class HeldState:
    """A state of the task, and where it stands."""

    tensor: Tensor
    places: tuple[TensorPlace, ...]


def held_states(task: NumberedTask, found: ReachableValues, more: Sequence[str]) -> dict[str, HeldState]:
    """The states of a task by name, in program order: those of the model, then others. found: what the task reaches.
    more: names of those that are not the model's. Raises CaptureError for one that shares part of its memory with
    another."""
    tensors = model_tensors(plain_model(task.model))
    known = {id(x) for x in tensors.values()}
    for name in more:
        tensor = found.places[name].tensor
        if id(tensor) not in known:
            known.add(id(tensor))
            tensors[f"attribute/{name}"] = tensor
    places: dict[int, list[TensorPlace]] = {}
    for place in found.places.values():
        places.setdefault(id(place.tensor), []).append(place)
    first = tied(tensors)
    aliases: dict[str, list[TensorPlace]] = {name: [] for name in first.values()}
    for name, tensor in tensors.items():
        aliases[first[name]] += places.get(id(tensor), [])
    return {name: HeldState(tensors[name], tuple(held)) for name, held in aliases.items()}


@contextmanager
def put_back_after(found: ReachableValues, numbers: Iterable[str]) -> Iterator[None]:
    """Put back, at the end, what stands in all places now, and these numbers."""
    places = [(place.get, place.put, place.tensor) for place in found.places.values() if place.put is not None]
    gradients = [(place.tensor, place.tensor.grad) for place in found.places.values() if place.tensor.is_leaf]
    mappings = {id(mapping): (mapping, dict(mapping)) for mapping, _ in found.by_tensor}
    try:
        yield
    finally:
        for get, put, value in places:
            if get() is not value:
                put(value)
        for mapping, before in mappings.values():
            mapping.clear()
            mapping.update(before)
        for name in numbers:
            found.numbers[name](found.leaves[name])
        for tensor, gradient in gradients:
            tensor.grad = gradient


def rename_keys(found: ReachableValues, stand_ins: Mapping[int, Tensor]) -> None:
    """Have traced tensors be the keys of mappings whose keys are the task's own."""
    for mapping, key in found.by_tensor:
        if id(key) in stand_ins and key in mapping:
            mapping[stand_ins[id(key)]] = mapping.pop(key)


class StandIns(TorchFunctionMode):
    """While this is active, functions of PyTorch's get the traced tensors for those of the task's own, and an
    assignment to a traced tensor's `.data` is a write."""

    def __init__(self, stand_ins: Mapping[int, Tensor], own: Mapping[str, Tensor], fields: Mapping[str, Any]) -> None:
        """stand_ins: id of a task's own tensor -> the traced one. own: name -> tensor of the states. fields: the whole
        dataset, which no step may read but by its batch."""
        super().__init__()
        self._stand_ins = dict(stand_ins)
        self._memory = {memory_of(x): name for name, x in own.items() if x.numel()}
        self._fields = {
            memory_of(x): name
            for name, x in fields.items()
            if isinstance(x, Tensor) and x.numel() and x.layout == torch.strided
        }
        self.refused: list[CaptureError] = []
        """Error that was raised, whether or not the user's code has caught it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(self._is_held(x) for x in tree_iter((args, kwargs))):
            args, kwargs = tree_map_only(Tensor, lambda x: self._stand_ins.get(id(x), x), (args, kwargs))
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            target, value = args
            if (target.shape, target.dtype) != (value.shape, value.dtype):
                self._refuse(
                    f"the step assigns to .data a tensor of another shape or dtype{place_of_call()}: keep both"
                )
            with torch.no_grad():
                target.copy_(value)
            return None
        return func(*args, **kwargs)

    def _is_held(self, x: Any) -> bool:
        if type(x) not in (Tensor, nn.Parameter) or x.layout != torch.strided:
            return False
        if id(x) in self._stand_ins:
            return True
        if (name := self._memory.get(memory_of(x))) is not None:
            self._refuse(
                f"a view of {name.partition('/')[2]} was made before the step, and is used in it{place_of_call()}: "
                "make it in the step"
            )
        if (name := self._fields.get(memory_of(x))) is not None:
            self._refuse(f"the step reads the dataset field {name} other than by its batch: take batch[{name!r}]")
        return False

    def _refuse(self, sentence: str) -> None:
        self.refused.append(CaptureError(sentence))
        raise self.refused[-1]


def stand_in_for(x: Tensor, traced: Tensor) -> Tensor:
    """The traced tensor, as a leaf of the same kind as the task's own: with its hooks, and a gradient if it has one."""
    if x.requires_grad and x.is_leaf:
        traced.requires_grad_(True)
        for hook in (x._backward_hooks or {}).values():
            traced.register_hook(hook)
        if getattr(x, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                "a parameter has a hook after its gradient is accumulated: take .register_hook, which sees the gradient"
            )
    if isinstance(x, nn.Parameter):
        traced._is_param = True
    traced.__dict__.update(x.__dict__)
    return traced


def left_in(name: str, state: HeldState, traced: Tensor) -> Tensor:
    """The tensor that a step has left in the place of a state. Raises CaptureError for one of another kind."""
    place = next((place for place in state.places if place.put is not None), None)
    found = traced if place is None else place.get()
    before = state.tensor
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (before.shape, before.dtype):
        told = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise CaptureError(
            f"a step makes {name.partition('/')[2]}, {before.dtype} {list(before.shape)}, {told}: give it its final "
            "shape and dtype before the first step"
        )
    if isinstance(before, nn.Parameter) and found is not traced:
        raise CaptureError(
            f"a step puts another tensor in the place of {name.partition('/')[2]}: write into the one that is there "
            "(.copy_())"
        )
    return found.detach()
