"""One training step, traced to ATen operators by make_fx with fake tensors: nothing is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward, increment_version
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_leaves

from roundlog.arithmetic import is_short
from roundlog.capture.captured import TracedCalls, model_tensors
from roundlog.capture.constants import written, written_by
from roundlog.capture.decompositions import decompositions
from roundlog.capture.draws import Draws, draws
from roundlog.capture.errors import (
    CaptureError,
    DefectError,
    SourceLines,
    UnknownValueError,
    a_kind,
    asks_for_values,
    control_flow,
    is_own_error,
    place_of_call,
    place_of_error,
    places_of,
    reason,
    source_of,
)
from roundlog.capture.optimizers import is_own
from roundlog.capture.portable import OutVariants
from roundlog.capture.python_state import (
    MISSING,
    Carried,
    Histories,
    Path,
    SharedMemory,
    Snapshot,
    followed_by_name,
    shared,
    types_as_in_training,
)
from roundlog.capture.task import STORED, OptimizerPhase, Task
from roundlog.capture.tracing.decisions import TOO_MANY, Decisions, PassedChecks, deciding
from roundlog.capture.tracing.eager import (
    noting_threads,
    plain_model,
    plainly,
    quietly,
    without_collection,
    without_onednn,
)
from roundlog.capture.tracing.rewritten import rewritten
from roundlog.capture.tracing.substitution import NewMemory, PartsByNumbers, Substitution, tied
from roundlog.capture.tracing.traced_optimizers import TracedOptimizers
from roundlog.capture.tracing.traced_step import NUMBERS, TracedPath, TracedStep, explored, merged

Named = dict[str, torch.Tensor]


class ChangedBuffersError(CaptureError):
    """A step changes buffers that were taken for known."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"steps change {min(names).partition('/')[2]}, but not the first one: change it in every step")
        self.names = names


class Tracer:
    """Traces steps of one task."""

    def __init__(
        self,
        task: Task,
        snapshot: Snapshot,
        attributes: Mapping[str, torch.Tensor],
        known: frozenset[str] = frozenset(),
        carried: Sequence[Carried] = (),
        *,
        decides: bool = False,
    ) -> None:
        """attributes: tensors that are neither parameters nor buffers, but that steps change; by name. known: names of
        buffers that no step changes, so that they come in as constants. carried: places whose tensors are states, too.
        decides: whether a step may decide by values.

        Raises CaptureError for an optimizer, an option or a schedule that is not supported."""
        model = plain_model(task.model)
        self._task = task
        self._snapshot = snapshot
        self._parameters = {f"parameter/{k}": v for k, v in model.named_parameters()}
        self._carried = {one.location: one for one in carried}
        self._current = {id(one): one.before for one in carried}
        old = {name: tensor for one in carried if not one.is_new for name, tensor in one.leaves(one.before).items()}
        tensors = {**model_tensors(model), **attributes, **old}
        snapshot.refuse_views(tensors)
        first = tied(tensors)
        # A buffer may be a parameter by another name.
        self._known = {name: tensor for name, tensor in tensors.items() if name in known and first[name] in known}
        self.originals = {name: tensor for name, tensor in tensors.items() if name not in self._known}
        self._first = {name: first[name] for name in self.originals}
        self._lines = SourceLines()
        self.optimizers = TracedOptimizers(task.phases(), task.steps, model, self._first, self._lines)
        self._substitution = Substitution(
            self.originals, {name: field for name, field in task.dataset.items() if isinstance(field, torch.Tensor)}
        )
        self.states: Named = {
            name: tensor.detach()
            for name, tensor in tensors.items()
            if first[name] == name and (tensor.dtype in STORED or name not in self._known)
        }
        self.states |= {name: tensor for one in carried if one.is_new for name, tensor in one.start.items()}
        self.states |= self.optimizers.slots
        self.used: set[int] = set()
        """Ids of the tensors that the step which was traced last has read as constants."""
        self.histories = Histories()
        self.shared = SharedMemory(self._first[f"parameter/{name}"] for name in self.optimizers.trained)
        self._decides = decides
        self._parts = PartsByNumbers()
        self._gradients: tuple[str, ...] = ()
        self._calls = TracedCalls()

    def follows(self, thing: object) -> bool:
        """Whether a tensor is part of the state, so that whatever takes its place is followed."""
        return any(thing is tensor for tensor in self.originals.values())

    def carried_as(self, thing: object) -> Carried | None:
        """The place whose tensors are part of the state and stand in something; None if it is none of these."""
        return next((one for one in self._carried.values() if self._current[id(one)] is thing), None)

    def stand_in(self, one: Carried, thing: Any) -> None:
        """Put what stands in a place from now on, where no state was before the first step. Raises CaptureError for
        tensors that share memory with others."""
        self._current[id(one)] = thing
        for name, tensor in one.leaves(thing).items():
            memory = tensor.untyped_storage()._cdata
            for other, original in self.originals.items():
                if other != name and original.untyped_storage()._cdata == memory and tensor.numel():
                    raise CaptureError(shared(one.name, other))
            self.originals[name], self._first[name] = tensor, name
            self._substitution.add(name, tensor)

    def trace(self, begin: Callable[[], Path | None], end: Callable[[], None]) -> TracedStep:
        """Trace a step, on all its paths. begin, end: called before and after each; the first has the user's code stand
        where the step begins, and gives the path of the numbers that are followed. Raises CaptureError where PyTorch
        cannot trace it, naming the user's line."""

        def followed(decisions: Decisions) -> TracedPath:
            numbers = begin()
            path = self._path(decisions, numbers)
            end()
            return path

        self.used = set()
        paths = explored(followed, allowed=self._decides)
        gradients = dict.fromkeys(name for path in paths for name in path.gradients)
        self.optimizers.refuse_counted(paths)
        return TracedStep(
            graph=merged(paths, len(self.states)),
            states=self.states,
            columns=self.optimizers.columns,
            schedule=self.optimizers.schedule,
            trained=self.optimizers.trained,
            gradients=tuple(name for name in self.optimizers.trained if name in gradients),
            known=frozenset(self._known),
        )

    def _path(self, decisions: Decisions, numbers: Path | None) -> TracedPath:
        """One path through the step, from where the user's code stands now. numbers: that of those which are
        followed."""
        task, self._parts, self._calls = self._task, PartsByNumbers(), TracedCalls()
        row = {name: torch.zeros(()) for name in (*self.optimizers.columns, *_NUMBERS)}
        batch = task.batch(torch.arange(task.batch_size))

        def step(
            states: Named, row: Named, batch: Named
        ) -> tuple[Any, ...]:  # make_fx cannot count a method's arguments
            if numbers is not None:
                numbers.columns = [row[name] for name in _NUMBERS]
            return self._step(states, row, batch, decisions)

        threads: list[threading.Thread] = []
        try:
            with (
                preserve_node_meta(),
                plainly(),
                without_onednn(),
                rewritten(is_short=any(is_short(state.dtype) for state in self.states.values())),
                types_as_in_training(self._snapshot.asking_for_types()),
                followed_by_name(self._snapshot.functions()),
                quietly(),
                without_collection(),
                noting_threads(threads),
                self.optimizers.noting_steps(),
            ):
                # Tensors that the user's functions refer to (class weights, say) come in as constants.
                graph = make_fx(step, decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(
                    self.states, row, batch
                )
        except CaptureError:
            raise
        except (Exception, SystemExit) as error:
            if is_own_error(error):
                raise DefectError(error, place=place_of_error(error)) from error
            if asks_for_values(error):
                raise UnknownValueError(control_flow(error) + (TOO_MANY if decisions.are_too_many else "")) from error
            # PyTorch's modes are a stack for all threads: two that trace at once leave it in disorder, for any error.
            if threads or any(
                "concurrent/futures/thread" in place.path.replace("\\", "/") for place in places_of(error)
            ):
                raise CaptureError(f"{THREAD}{place_of_error(error)}") from error
            raise UnknownValueError(
                f"PyTorch cannot trace this step: {reason(error)}{place_of_error(error)}"
            ) from error
        drop_what_nothing_uses(graph.graph)
        require_followed(graph)
        self._parts.refuse_writes({node.name for node in written(graph.graph)})
        if changed := self._changed(graph):
            raise ChangedBuffersError(changed)
        self._own_constants(graph)
        self.shared.add_graph(graph.graph, self.states)
        return TracedPath(graph, self._gradients, decisions, tuple(self._calls.calls))

    def _changed(self, graph: fx.GraphModule) -> frozenset[str]:
        """Names of the known buffers that a traced step writes into, or puts something else in the place of."""
        targets = (getattr(graph, str(node.target)) for node in written(graph.graph) if node.op == "get_attr")
        memory = {tensor.untyped_storage()._cdata for tensor in targets if isinstance(tensor, torch.Tensor)}
        replaced = {id(change.before) for change in self._snapshot.changes()}
        return frozenset(
            name
            for name, tensor in self._known.items()
            if tensor.untyped_storage()._cdata in memory or id(tensor) in replaced
        )

    def _own_constants(self, graph: fx.GraphModule) -> None:
        """Copy constants that lie in arrays of numpy's, which are going to be put back."""
        for node in graph.graph.nodes:
            held = getattr(graph, str(node.target)) if node.op == "get_attr" else None
            if not isinstance(held, torch.Tensor) or id(held) in self._snapshot.tensors:
                continue
            if self._snapshot.is_in_array(held):
                setattr(graph, str(node.target), held.detach().clone())

    def _step(self, states: Named, row: Named, batch: Named, decisions: Decisions) -> tuple[Any, ...]:
        self._substitution.begin({name: states[first] for name, first in self._first.items()})
        drawn = Draws(self._snapshot.generator_states())
        memory, checks = NewMemory(self._substitution, self._snapshot.tensors), PassedChecks()
        with OutVariants(), self._substitution, drawn, memory, self._parts, checks, deciding(decisions):
            with self._lines, self._lines.all_from("micro_batches"):
                parts = self._task.parts(batch)
            losses: list[torch.Tensor] = []
            kept: Named = {}
            following: Named = {}
            clipped: Named = {}
            for number, phase in enumerate(self.optimizers.phases):
                losses.append(self._accumulate(phase, parts))
                gradients = self.optimizers.gradients_of(number)
                kept.update({name: gradient.clone() for name, gradient in gradients.items()})
                if phase.max_grad_norm is not None:
                    clipped |= {f"gradient of {name}": gradient for name, gradient in gradients.items()}
                slots = {name: tensor for name, tensor in following.items() if name.startswith("slot/")}
                if is_own(phase.optimizer):
                    self.optimizers.step_of_own(phase, gradients)
                following = self._following(states) | slots
                if not is_own(phase.optimizer):
                    self.optimizers.update(phase, following, gradients, row)
                    if phase is not self.optimizers.phases[-1]:
                        self._write(gradients, following)
            loss = self._sum(losses)
        self._note_left(following, clipped)
        # The user's code has caught these.
        for refused in (*drawn.refused, *memory.refused, *checks.refused, *decisions.refused):
            raise refused
        drawn.refuse_put_back()
        self._gradients = tuple(kept)
        conditions = [decision.condition for decision in decisions.taken]
        return loss, [following[name].detach() for name in states], list(kept.values()), drawn.drawn, conditions

    def _note_left(self, following: Named, clipped: Named) -> None:
        """Note what the user's own tensors have beside values, and which of them were read."""
        own = {name: tensor for name, tensor in following.items() if not name.startswith("slot/")}
        own |= {name: self._substitution.now(name) for name in own if name in self._parameters}
        self.shared.add_tensors(own, clipped)
        self.used |= self._substitution.constants
        self.histories.names |= {name for name in own if name not in self._parameters and own[name].requires_grad}

    def _accumulate(self, phase: OptimizerPhase, parts: Sequence[Named]) -> torch.Tensor:
        """Gradients of a batch, into `.grad`; gives the loss."""
        lines, losses = self._lines, []
        for parameter in self._parameters.values():
            parameter.grad = None
        for part in parts:
            with noting_backward() as called, lines, self._calls:
                found = phase.loss(plain_model(self._task.model), dict(part))
            try:
                refuse_autocast("by the loss function", ("cpu",))
            finally:
                torch.set_autocast_enabled("cpu", False)
            with refusing_backward(found, called), lines, self._calls:
                loss = checked_loss(phase.called("loss"), found)
                with lines.all_from("micro_batches"):
                    loss = self._task.share(loss)
                with lines.backward_of(loss):
                    differentiate(loss)
            losses.append(loss.detach())
        return self._sum(losses)

    def _sum(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        with self._lines, self._lines.all_from("the sum of losses"):
            return sum(losses[1:], losses[0])

    def _write(self, gradients: Iterable[str], following: Named) -> None:
        """Put the parameters that one optimizer has stepped where the losses after it read them, as it does itself."""
        with torch.no_grad(), self._lines, self._lines.all_from("optimizer"):
            for name in gradients:
                parameter = self._first[f"parameter/{name}"]
                self._substitution.now(parameter).copy_(following[parameter])
                # PyTorch refuses a backward pass whose saved tensors were written since.
                increment_version(self._parameters[f"parameter/{name}"])

    def _following(self, states: Named) -> Named:
        """Tensors that the user's code has left in place of every state: written into it, or put where it stood."""
        following = states | {name: self._substitution.now(name) for name in states if name in self._first.values()}
        name_of = {id(tensor): name for name, tensor in self.originals.items()}
        for change in self._snapshot.changes():
            if (one := self._carried.get(change.location)) is not None:
                following.update(self._left(one, change.after, states))
                continue
            name = name_of.get(id(change.before))
            if name is None:
                continue
            if name in self._parameters or not isinstance(change.after, torch.Tensor):
                raise CaptureError(
                    f"a step puts {_kind(change.after)} in the place of {change.name}: write into the tensor that is "
                    "there (.copy_()), or keep what is new under another name"
                )
            if self._first[name] in self._parameters:  # and the name itself is not: an alias
                if self._substitution.has_used(change.before):
                    raise CaptureError(
                        f"a step reads {change.name}, which shares memory with {self._first[name]}, and then puts "
                        "another tensor in its place: make it a copy (.clone()) before the first step"
                    )
                continue  # it is made anew in every step, as spectral_norm does with the weight
            value = self._substitution.of(change.after)
            before = states[self._first[name]]
            if (value.shape, value.dtype) != (before.shape, before.dtype):
                raise CaptureError(
                    f"a step makes {change.name}, {before.dtype} {list(before.shape)}, {value.dtype} "
                    f"{list(value.shape)}: give it its final shape and dtype before the first step"
                )
            following[self._first[name]] = value
        return following

    def _left(self, one: Carried, thing: Any, states: Named) -> Named:
        """The states that a step has left in a place, by name."""
        found = {name: self._substitution.of(tensor) for name, tensor in one.leaves(thing).items()}
        for name, value in found.items():
            if (value.shape, value.dtype) != (states[name].shape, states[name].dtype):
                raise CaptureError(
                    f"a step makes {name.partition('/')[2]}, {states[name].dtype} {list(states[name].shape)}, "
                    f"{value.dtype} {list(value.shape)}: give it one shape and dtype at all steps"
                )
        return {self._first.get(name, name): value for name, value in found.items()}


THREAD = (
    "the step computes in another thread, where it cannot be followed: compute everything in the thread that calls it"
)


def differentiate(loss: torch.Tensor) -> None:
    """`loss.backward()`, but that modes for functions go on in hooks and in what checkpoints compute again."""
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def refuse_autocast(where: str, devices: Iterable[str]) -> None:
    """Raises CaptureError if autocast is on for one of these devices, which no job would know of."""
    if any(torch.is_autocast_enabled(device) for device in devices):
        raise CaptureError(
            f"torch.autocast is left on {where}: switch it off there (torch.set_autocast_enabled, or the end of its "
            '`with`), and put `with torch.autocast("cpu", dtype=torch.bfloat16):` inside the loss, around all of it'
        )


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


def checked_loss(name: str, loss: object) -> torch.Tensor:
    """A loss, under its name. Raises CaptureError for what no step can be taken with."""
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(f"the {name} is {a_kind(loss)}: return a tensor, without .item()")
    if loss.ndim != 0:
        raise CaptureError(f"the {name} has the shape {list(loss.shape)}: reduce it to a scalar")
    if loss.dtype != torch.float32:
        raise CaptureError(f"the {name} is {loss.dtype}: compute it in float32")
    if not loss.requires_grad:
        raise CaptureError(f"the {name} depends on no parameter that is trained: check the model and the optimizer")
    return loss


_NUMBERS = tuple(f"number/{place}" for place in range(NUMBERS))


def _kind(thing: object) -> str:
    if thing is MISSING:
        return "nothing"
    return "another tensor" if isinstance(thing, torch.Tensor) else a_kind(thing)
