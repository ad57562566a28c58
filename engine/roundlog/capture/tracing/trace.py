"""One training step, traced to ATen operators by make_fx with fake tensors: nothing is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import increment_version
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from roundlog.capture.captured import model_tensors
from roundlog.capture.constants import written
from roundlog.capture.decompositions import decompositions
from roundlog.capture.draws import Draws
from roundlog.capture.errors import CaptureError, DefectError, UnknownValueError, a_kind, is_own_error
from roundlog.capture.lines import SourceLines, place_of_call, place_of_error, places_of
from roundlog.capture.optimizers import Update, clip_factor, is_own
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
from roundlog.capture.task import STORED, Task, Turn
from roundlog.capture.trace_errors import asks_for_values, control_flow, reason
from roundlog.capture.tracing.decisions import TOO_MANY, Decisions, PassedChecks, deciding
from roundlog.capture.tracing.eager import (
    noting_threads,
    plain_model,
    plainly,
    quietly,
    without_collection,
    without_onednn,
)
from roundlog.capture.tracing.graph_checks import (
    THREAD,
    checked_loss,
    differentiate,
    drop_what_nothing_uses,
    require_followed,
)
from roundlog.capture.tracing.groups import groups_of, schedule_of, trained
from roundlog.capture.tracing.out_variants import OutForms
from roundlog.capture.tracing.parts_by_numbers import PartsByNumbers
from roundlog.capture.tracing.repeated_updates import RepeatedUpdates
from roundlog.capture.tracing.rewritten import rewritten
from roundlog.capture.tracing.substitution import NewMemory, Substitution, tied
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
        self._standing = {id(one): one.before for one in carried}
        old = {name: tensor for one in carried if not one.is_new for name, tensor in one.leaves(one.before).items()}
        tensors = {**model_tensors(model), **attributes, **old}
        snapshot.refuse_views(tensors)
        first = tied(tensors)
        # A buffer may be a parameter by another name.
        self._known = {name: tensor for name, tensor in tensors.items() if name in known and first[name] in known}
        self.originals = {name: tensor for name, tensor in tensors.items() if name not in self._known}
        self._first = {name: first[name] for name in self.originals}
        self._turns, self._groups = task.turns(), groups_of(task)
        self._trainable = trained(task, model, self._groups, self._first)
        self._substitution = Substitution(
            self.originals, {name: field for name, field in task.dataset.items() if isinstance(field, torch.Tensor)}
        )
        self.columns, self.schedule = schedule_of(self._groups, task.steps)
        self.states: Named = {
            name: tensor.detach()
            for name, tensor in tensors.items()
            if first[name] == name and (tensor.dtype in STORED or name not in self._known)
        }
        self.states |= {name: tensor for one in carried if one.is_new for name, tensor in one.start.items()}
        for name, number in self._trainable.items():
            parameter = self._parameters[f"parameter/{name}"].detach()
            for slot, tensor in self._groups[number].update.slots(parameter).items():
                self.states[f"slot/{name}/{slot}"] = tensor
        self.changing = {
            f"{group.name}.{option}" for group in self._groups for option in group.update.rate.changing(task.steps)
        }
        """Names of the optimizer's options that the schedule changes."""
        self.rates = {
            f"{group.name}.lr": group.update.rate
            for group in self._groups
            if group.is_own and f"{group.name}.lr" in self.changing
        }
        """The learning rates that optimizers of the user's read, by name, where they change."""
        self.stepped: str | None = None
        """Place in the loss, in words, where an optimizer has taken a step."""
        self._stepping: object = None
        """Optimizer of the user's that is taking the step of its turn."""
        self.used: set[int] = set()
        """Ids of the tensors that the step which was traced last has read as constants."""
        self.histories = Histories()
        self.shared = SharedMemory(self._first[f"parameter/{name}"] for name in self._trainable)
        self._decides = decides
        self._parts = PartsByNumbers()
        self._lines = SourceLines()
        self._gradients: tuple[str, ...] = ()
        self._factors: list[float] = []
        self._confirm_schedule()

    def _confirm_schedule(self) -> None:
        """Raises CaptureError if the schedule gives other rates when it is asked again."""
        again = schedule_of(groups_of(self._task), self._task.steps)
        if not torch.equal(again[1], self.schedule):
            raise CaptureError(
                "the schedule gives other rates the second time it is asked: make it depend on the step alone"
            )
        self.confirm_factors()

    def confirm_factors(self) -> None:
        """Raises CaptureError if a schedule that is a function gives other factors now than at first."""
        schedules = [turn.schedule for turn in self._turns]
        functions = [
            function
            for schedule in schedules
            for function in (vars(schedule).get("lr_lambdas", ()) if isinstance(schedule, LRScheduler) else (schedule,))
        ]
        factors = [function(step) for function in functions for step in range(self._task.steps)]
        self._factors = self._factors or factors
        if factors != self._factors:
            raise CaptureError("the schedule depends on what steps change: make it depend on the step alone")

    def set_first_rates(self) -> None:
        """Give optimizers of the user's the learning rates of the first step, if the schedule changes them."""
        for turn in self._turns:
            for place, group in enumerate(turn.optimizer.param_groups):
                if (rate := self.rates.get(f"{turn.called('optimizer')}.param_groups[{place}].lr")) is not None:
                    group["lr"] = rate(0)

    def follows(self, thing: object) -> bool:
        """Whether a tensor is part of the state, so that whatever takes its place is followed."""
        return any(thing is tensor for tensor in self.originals.values())

    def carried_as(self, thing: object) -> Carried | None:
        """The place whose tensors are part of the state and stand in something; None if it is none of these."""
        return next((one for one in self._carried.values() if self._standing[id(one)] is thing), None)

    def stand_in(self, one: Carried, thing: Any) -> None:
        """Put what stands in a place from now on, where no state was before the first step. Raises CaptureError for
        tensors that share memory with others."""
        self._standing[id(one)] = thing
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
        self._refuse_counted(paths)
        return TracedStep(
            graph=merged(paths, len(self.states)),
            states=self.states,
            columns=self.columns,
            schedule=self.schedule,
            trained={name: self._parameters[f"parameter/{name}"] for name in self._trainable},
            gradients=tuple(name for name in self._trainable if name in gradients),
            known=frozenset(self._known),
        )

    def _refuse_counted(self, paths: Sequence[TracedPath]) -> None:
        """Raises CaptureError for a parameter that has a gradient on some paths only, if its optimizer counts the
        steps that it has taken with it: which is not known before training."""
        for name, number in self._trainable.items():
            have = {name in path.gradients for path in paths}
            if len(have) == 2 and self._groups[number].update.counts(self._task.steps):
                kind = type(self._turns[self._groups[number].turn].optimizer).__name__
                raise CaptureError(
                    f"{name} gets a gradient on some of the step's paths only, and {kind} counts the steps that a "
                    "parameter has taken: choose by torch.where between results that both are computed, or take "
                    "torch.optim.SGD or RMSprop"
                )

    def _path(self, decisions: Decisions, numbers: Path | None) -> TracedPath:
        """One path through the step, from where the user's code stands now. numbers: that of those which are
        followed."""
        task, self._parts = self._task, PartsByNumbers()
        row = {name: torch.zeros(()) for name in (*self.columns, *_NUMBERS)}
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
                rewritten(),
                types_as_in_training(self._snapshot.asking_for_types()),
                followed_by_name(self._snapshot.functions()),
                quietly(),
                without_collection(),
                noting_threads(threads),
                self._noting_optimizers(),
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
        return TracedPath(graph, self._gradients, decisions)

    @contextmanager
    def _noting_optimizers(self) -> Iterator[None]:
        """Notes where the user's code takes a step of an optimizer meanwhile."""

        def note(optimizer: object, *_: object) -> None:
            if optimizer is not self._stepping:
                self.stepped = place_of_call()

        handle = register_optimizer_step_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()

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
        with OutForms(), self._substitution, drawn, memory, self._parts, checks, deciding(decisions):
            with self._lines, self._lines.all_from("micro_batches"):
                parts = self._task.parts(batch)
            losses: list[torch.Tensor] = []
            kept: Named = {}
            following: Named = {}
            clipped: Named = {}
            for number, turn in enumerate(self._turns):
                losses.append(self._accumulate(turn, parts))
                gradients = self._gradients_of(number)
                kept.update({name: gradient.clone() for name, gradient in gradients.items()})
                if turn.max_grad_norm is not None:
                    clipped |= {f"gradient of {name}": gradient for name, gradient in gradients.items()}
                slots = {name: tensor for name, tensor in following.items() if name.startswith("slot/")}
                if is_own(turn.optimizer):
                    self._step_of_own(turn, gradients)
                following = self._following(states) | slots
                if not is_own(turn.optimizer):
                    self._update(turn, following, gradients, row)
                    if turn is not self._turns[-1]:
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

    def _accumulate(self, turn: Turn, parts: Sequence[Named]) -> torch.Tensor:
        """Gradients of a batch, into `.grad`; gives the loss."""
        lines, losses = self._lines, []
        for parameter in self._parameters.values():
            parameter.grad = None
        for part in parts:
            with lines:
                loss = checked_loss(turn.called("loss"), turn.loss(plain_model(self._task.model), dict(part)))
            with lines, lines.all_from("micro_batches"):
                loss = self._task.share(loss)
            with lines, lines.backward_of(loss):
                differentiate(loss)
            losses.append(loss.detach())
        return self._sum(losses)

    def _sum(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        with self._lines, self._lines.all_from("the sum of losses"):
            return sum(losses[1:], losses[0])

    def _gradients_of(self, number: int) -> Named:
        """Gradients of the parameters that one optimizer trains, by name: those that have one."""
        own = [name for name, group in self._trainable.items() if self._groups[group].turn == number]
        found = {name: self._parameters[f"parameter/{name}"].grad for name in own}
        gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
        if not gradients:
            loss, optimizer = (self._turns[number].called(part) for part in ("loss", "optimizer"))
            raise CaptureError(
                f"the {loss} depends on no parameter that {optimizer} trains: check whether it belongs to another "
                "optimizer, or is cut off by .detach()"
            )
        return gradients

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

    def _step_of_own(self, turn: Turn, gradients: Named) -> None:
        """Clip the gradients, and take a step of an optimizer of the user's, which writes into parameters."""
        own = {id(parameter) for group in turn.optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self._parameters.items():
            if id(parameter) not in own:
                parameter.grad = None
            elif turn.max_grad_norm is not None and name.removeprefix("parameter/") in gradients:
                with torch.no_grad(), self._lines, self._lines.all_from("clip_grad_norm_"):
                    parameter.grad = gradients[name.removeprefix("parameter/")] * clip_factor(
                        gradients.values(), turn.max_grad_norm
                    )
        self._stepping = turn.optimizer
        with self._lines:
            turn.optimizer.step()
        self._stepping = None

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

    def _update(self, turn: Turn, following: Named, gradients: Named, row: Named) -> None:
        """Clip the gradients, and take a step of the optimizer."""
        lines, factor, repeated = self._lines, None, RepeatedUpdates()
        if turn.max_grad_norm is not None:
            with torch.no_grad(), lines, lines.all_from("clip_grad_norm_"):
                factor = clip_factor(gradients.values(), turn.max_grad_norm)
        for name, gradient in gradients.items():
            number, prefix = self._trainable[name], f"slot/{name}/"
            group, parameter = self._groups[number].update, self._first[f"parameter/{name}"]
            own = {slot.removeprefix(prefix): following[slot] for slot in self.states if slot.startswith(prefix)}
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

            with torch.no_grad(), lines, lines.all_from(type(turn.optimizer).__name__):
                following[parameter], *after = repeated.apply(
                    number, step, [following[parameter], gradient, *own.values()]
                )
            following.update({prefix + slot: tensor for slot, tensor in zip(own, after, strict=True)})


_NUMBERS = tuple(f"number/{place}" for place in range(NUMBERS))


def _kind(thing: object) -> str:
    if thing is MISSING:
        return "nothing"
    return "another tensor" if isinstance(thing, torch.Tensor) else a_kind(thing)
