"""A task whose first step has been taken and undone, its states, and tensors of the trace in their places.

The first call of a model fills caches, which are constants of all later calls, and the first step of a user's own
optimizer makes its state. What such an optimizer makes has to be zeros: a program's first step is like all others.

A traced step gets its states as arguments. Each stands in every place that the walk has found, so that `self.weight`,
a closure's cell and an entry of a list all give the traced tensor; what a step leaves there is read back. A tensor that
code holds where no place is known is replaced when it is given to a function of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from roundlog.capture.captured import model_tensors
from roundlog.capture.errors import CaptureError, place_of_call, place_of_error, reason
from roundlog.capture.fresh_tasks import FreshTasks
from roundlog.capture.optimizers import is_own
from roundlog.capture.portable import portable
from roundlog.capture.real_steps.eager_steps import LEFT_BEHIND, WatchedSteps, batch_of, share, spilling
from roundlog.capture.real_steps.patched_torch import eager_torch, plain_model
from roundlog.capture.real_steps.reachable_values import (
    ReachableValues,
    TensorPlace,
    memory_of,
    reachable,
    tensor_digest,
)
from roundlog.capture.task import Source, Task


@dataclass(frozen=True, slots=True)
class WarmedTask:
    """A fresh task that stands where its first step begins, with full caches and all states."""

    task: Task
    states: tuple[str, ...]
    """Names of tensors that steps change, beside parameters and buffers of the model."""
    left: dict[int, str]
    """Id of a tensor that the first step has left, and that no step may read -> the reason."""
    fields: Mapping[str, Source]
    """The dataset that was made with the task."""

    def parameter(self, name: str) -> Tensor:
        """A parameter of the model."""
        return plain_model(self.task.model).get_parameter(name)


def warmed_task(
    fresh: FreshTasks,
    watched: WatchedSteps,
    shared: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    whole: bool = False,
) -> WarmedTask:
    """Take the first step of a fresh task, and undo it. shared: equal tensors, in whose memory states of the model lie
    from now on, by name. whole: whether copies are kept of large frozen parameters, too. Raises CaptureError for a
    state that an optimizer of the user's does not begin with zeros."""
    task, fields = fresh()
    digests: dict[int, str | None] = {}
    for name, tensor in model_tensors(plain_model(task.model)).items():
        if name in shared and tensor.stride() == shared[name].stride():
            tensor.data = shared[name]
        if not whole and isinstance(tensor, nn.Parameter) and not tensor.requires_grad and tensor.nbytes > _LARGE:
            digests[id(tensor)] = fresh.digest(name)
    early = reachable(task, watched.calls, elements=False)
    for name, tensor in watched.held.items():
        if name in early.places and memory_of(early.places[name].tensor) == memory_of(tensor) != 0:
            raise CaptureError(f"steps change {name}, which all tasks have: make it in the function that makes a task")
    held = [
        (place, place.tensor if id(place.tensor) in digests else place.tensor.detach().clone(), place.tensor._version)
        for place in early.places.values()
    ]
    after = _losses_and_own_steps(task)
    frozen = {id(place.tensor): place.tensor for place, *_ in held if id(place.tensor) in digests}
    if any(tensor_digest(tensor) != digests[key] for key, tensor in frozen.items()):
        return warmed_task(fresh, watched, whole=True)
    late = reachable(task, watched.calls, elements=False)
    made = [name for name in watched.states if name not in early.places]
    reached = (path for path, x in late.seen.values() if isinstance(x, torch.optim.Optimizer))  # also by the loss
    own = tuple(f"{path}.state[" for path in (*(phase.called("optimizer") for phase in task.phases()), *reached))
    zeros = [name for name in made if name.startswith(own) and name in late.places]
    left = {id(late.places[name].tensor): MOVED.format(name) for name in watched.moved if name in late.places}
    left |= {
        id(late.places[name].tensor): NONE_BEFORE.format(name, name)
        for name in made
        if name not in zeros and name in late.places
    }
    with torch.no_grad():
        for place, value, version in held:
            # Batch norm writes, and raises no _version.
            if place.tensor._version != version or not _equal(place.tensor, value):
                place.tensor.copy_(value)
            if place.put is not None and place.get() is not place.tensor:
                place.put(place.tensor)
            place.tensor.grad = None
        for name, put in early.numbers.items():
            if name in task.numbers:
                put(early.leaves[name])
        for name in zeros:
            late.places[name].tensor.zero_()
    if zeros:
        _require_zeros(task, watched, after, zeros[0])
    states = tuple(name for name in watched.states if name not in watched.moved and (name not in made or name in zeros))
    return WarmedTask(task, states, left, fields)


def _equal(x: Tensor, value: Tensor) -> bool:
    return x.layout != torch.strided or x.is_meta or torch.equal(x, value)


_LARGE = 1 << 20
"""Bytes of a frozen parameter from which on its digest is kept in place of a copy."""

NONE_BEFORE = (
    "a step reads {}, where there is no tensor before the first step: begin with one of its final shape, "
    "{} = torch.zeros(...)"
)
MOVED = (
    "a step puts another list, dictionary or object in the place of the one that holds {}, which the next step reads: "
    "keep the one that is there, and put the tensor into it"
)


def _losses_and_own_steps(task: Task) -> dict[str, Tensor]:
    """Compute the losses of the first batch, with steps of optimizers of the user's own; give the parameters then."""
    model = plain_model(task.model)
    generator = torch.get_rng_state()
    torch.manual_seed(task.seed % 2**63)
    try:
        with eager_torch(), portable(), spilling(model):
            for phase in task.phases():
                for parameter in model.parameters():
                    parameter.grad = None
                for part in task.parts_at(0, batch_of(task, 0)):
                    loss = share(task, phase.loss(model, dict(part)))
                    if is_own(phase.optimizer):
                        loss.backward()
                if is_own(phase.optimizer):
                    phase.optimizer.step()
    except CaptureError:
        raise
    except Exception as error:  # a stated number is one of Python's here
        raise CaptureError(f"the step fails in PyTorch itself: {reason(error)}{place_of_error(error)}") from error
    torch.set_rng_state(generator)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


def _require_zeros(task: Task, watched: WatchedSteps, after: dict[str, Tensor], name: str) -> None:
    """Raises CaptureError if the first step from zeros is not the first step from nothing."""
    found = reachable(task, watched.calls, elements=False)
    held = [(place.tensor, place.tensor.detach().clone()) for place in found.places.values()]
    again = _losses_and_own_steps(task)
    for parameter, value in after.items():
        if not torch.equal(value.nan_to_num(), again[parameter].nan_to_num()):
            raise CaptureError(f"{name} does not begin with zeros: make it before the first step")
    with torch.no_grad():
        for tensor, value in held:
            tensor.copy_(value)
            tensor.grad = None


@dataclass(frozen=True, slots=True)
class HeldState:
    """A state of the task, and where it stands."""

    tensor: Tensor
    places: tuple[TensorPlace, ...]


def held_states(task: Task, found: ReachableValues, more: Sequence[str]) -> dict[str, HeldState]:
    """The states of a task by name, in program order: those of the model, then others. found: what the task reaches.
    more: names of those that are not the model's. Raises CaptureError for one that shares part of its memory with
    another."""
    tensors = model_tensors(plain_model(task.model))
    known = {id(x) for x in tensors.values()}
    for name in more:
        tensor = found.places[name].tensor
        if isinstance(tensor, FakeTensor):
            raise CaptureError(f"{name} holds a tensor of the trace: {LEFT_BEHIND}")
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


def tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """name -> the first name of a tensor with the same elements at the same place in memory. Raises CaptureError for
    tensors that share memory in another way."""
    first: dict[object, str] = {}
    result = {}
    for name, tensor in tensors.items():
        other = first.setdefault(memory_of(tensor), name) if tensor.numel() else name
        if _geometry(tensors[other]) != _geometry(tensor):
            raise CaptureError(
                f"{name} shares memory with {other}, but not all of it: make one a copy, or compute one from the other "
                "inside the step"
            )
        result[name] = other
    return result


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


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


_SCALING = ("add", "sub", "addcmul", "addcdiv")
"""Functions of a tensor and another one, by a factor that PyTorch takes as a number."""


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
        for name in ("alpha", "value"):
            if isinstance(factor := kwargs.get(name), Tensor) and func.__name__.rstrip("_") in _SCALING:
                kwargs = {key: x for key, x in kwargs.items() if key != name}
                return func(args[0], args[1] * factor, *args[2:], **kwargs)
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
    found = held_now(state, traced)
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


def held_now(state: HeldState, otherwise: Tensor | None = None) -> Any:
    """What stands in the place of a state now. otherwise: what is there where nothing can be put."""
    place = next((place for place in state.places if place.put is not None), None)
    if place is None:
        return state.tensor if otherwise is None else otherwise
    return place.get()


@contextmanager
def widened(found: ReachableValues) -> Iterator[None]:
    """Make all FP32 tensors that a task reaches FP64, where they are, and put the FP32 ones back at the end: other
    tasks may have some of them. Those that share memory go on doing so."""
    wide: dict[int, Tensor] = {}
    before: list[tuple[Tensor, Tensor]] = []
    for x in {id(place.tensor): place.tensor for place in found.places.values()}.values():
        if x.dtype != torch.float32 or x.layout != torch.strided:
            continue
        whole = wide.get(memory_of(x))
        if whole is None:
            storage = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
            whole = wide[memory_of(x)] = storage.double()
        if x.is_leaf:
            x.grad = None
        before.append((x, x.detach()))
        x.data = whole.as_strided(x.size(), x.stride(), x.storage_offset())
    try:
        yield
    finally:
        for x, narrow in before:
            if x.is_leaf:
                x.grad = None
            x.data = narrow
