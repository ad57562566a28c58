"""Sameness check of steps with numbers of fewer than 32 bits, kernel by kernel.

Where an activation is rounded to BF16, its last bits depend on the order of a sum, and a step as a whole says little: a
cast too many changes it less than rounding does. So the user's own step is watched. It has to call the same kernels as
the traced one, with the same dtypes; and for every result of a kernel, the part of the program that stands for it is
evaluated on PyTorch's own values of what it reads. There, nothing accumulates: numbers of BF16 are those that PyTorch
rounds to, or neighbours where what is rounded lies in the middle."""

from __future__ import annotations

import functools
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from roundlog.capture import Captured, CaptureError
from roundlog.capture.builder import needed
from roundlog.capture.captured import OwnStates
from roundlog.capture.kernel_calls import CallTrail, KernelCall
from roundlog.capture.real_steps.reachable_values import memory_of, tensor_checksum
from roundlog.data import materialized, widened
from roundlog.data.spill_file import SpilledTensor, SpilledTensors, SpillFile
from roundlog.execution import CheckedProgram, RunningStep, StoppedError
from roundlog.execution.batches import TensorsOf
from roundlog.number_format import FLOAT32
from roundlog.operators import Inexact, StepInputs, operator
from roundlog.program import Program
from roundlog.rounding import Recorder
from roundlog.spec import MIN_LOG_GUARD
from roundlog.training.kernel_agreement import (
    KernelArguments,
    KernelInvocation,
    agree,
    agree_on_order,
    agree_on_state,
    agrees_with_kernel,
)
from roundlog.training.trial import CHANGE, GRADIENT, LOSS, Results, Tensors, Trial, TrialRun, change

_SMALL = 1e-2
"""Size of a number below which it may stand beside squares."""

_WHOLE, _ROWS = 2, 64
"""Calls of one kernel, of one format and shape, that are compared in all of their elements; rows of a product that are
compared of later ones, if their operands are PyTorch's in all elements."""

_FAR, _LARGE = 64, 1 << 22
"""Calls after which a value that is still read waits in a file, and its bytes."""

_SIZES = 16
"""Most sizes of numbers that a kernel is compared on."""


def has_short_numbers(program: Program) -> bool:
    """Whether a program computes with numbers of fewer than 32 bits."""
    return any(node.type.dtype.is_short for node in program.nodes)


See = Callable[[int, Results, Results], None]
"""Is called with the number of a step, some of PyTorch's results, and the program's of the same names, or none of them:
the changes of trained parameters, and of what their optimizers keep, that it makes of PyTorch's own gradients."""


def confirm_same_kernels(captured: Captured, trial: Trial, see: See) -> tuple[TrialRun, int]:
    """Runs the user's own steps, and compares the kernels that they call with the program. Gives PyTorch's steps, and
    how many kernels were compared. see: called with every result, once. Raises CaptureError, naming the first kernel
    that differs."""
    steps = _Steps(captured, trial, see)
    theirs = trial.by_pytorch(torch.float32, steps.finish, watching=steps.watching, drawing=steps.drawn)
    return theirs, steps.compared


class _Steps:
    """The user's own steps, compared while they run."""

    def __init__(self, captured: Captured, trial: Trial, see: See) -> None:
        self._captured, self._trial, self._see = captured, trial, see
        self._step = -1
        self._before: Tensors = {}
        self._parts: _Parts | None = None
        program = captured.program
        self._checked = CheckedProgram(program, FLOAT32)
        stores = {node.attributes["slot"]: node.inputs[0] for node in program.nodes if node.op == "store"}
        slots = {name: slot for slot, name in enumerate(program.state_names)}
        self._stores = {name: stores[slots[name]] for name in program.moved_states}
        """Next values of the states that steps change."""
        (self._loss,) = (node.inputs[0] for node in program.nodes if node.op == "loss")
        self._carried: Tensors = {}
        """States that the user's task has not, or only from the first step on, as the last step has left them."""
        self.compared = 0
        """Results that were compared."""
        self._forms: set[object] = set()
        """Calls with their constants that have been compared on chosen numbers."""
        self._calls, self._draws = Counter[object](), torch.Generator().manual_seed(captured.task.seed % 2**63)
        """How often kernels have been called, by their formats and shapes; what chooses rows of a product."""

    def drawn(self, step: int, before: Tensors) -> Mapping[int, torch.Tensor]:
        """The random numbers of a step, by operator. before: the states before it. Raises CaptureError."""
        wanted = self._captured.origin.observed()
        try:
            values = evaluated(self._checked, wanted, self._inputs(step, before)) if wanted else {}
        except StoppedError as error:
            raise CaptureError(f"the captured step stops where yours goes on: {error}") from error
        return {index: values[index] for index in wanted}

    def _inputs(self, step: int, before: Tensors) -> StepInputs:
        layers = cast("list[dict[str, torch.Tensor]]", [before, self._carried, self._captured.states])
        return self._trial.inputs(step, TensorsOf(ChainMap(*layers)))

    def watching(self, step: int, batch: Tensors, before: Tensors, own: OwnStates) -> AbstractContextManager[object]:
        """Compare the kernels that a step calls from now on."""
        if step != self._step or self._parts is None:
            self._step, self._before, self._parts = step, before, self._parts_of(step, before)
        else:
            self._read_parameters(self._parts, own.now())
        return KernelArguments(functools.partial(self._compare, self._parts), self._parts.before_write)

    def _read_parameters(self, parts: _Parts, now: Tensors) -> None:
        """Has later kernels read PyTorch's own parameters where the optimizer of an earlier loss has changed them: its
        changes are compared by themselves."""
        for name in (f"parameter/{name}" for name in self._captured.origin.trained):
            if name in parts.following and not torch.equal(now[name], self._before[name]):
                parts.know(parts.following[name], now[name].detach())

    def _parts_of(self, step: int, before: Tensors) -> _Parts:
        captured = self._captured
        given = self._inputs(step, before)
        ends = {self._loss, *captured.origin.gradients.values(), *self._stores.values()}
        return _Parts(self._checked, captured.origin.trail, ends, given)

    def _compare(
        self,
        parts: _Parts,
        call: KernelCall,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
    ) -> None:
        self._require_call(parts, call)
        with _disable_current_modes(), torch.no_grad():
            arguments = KernelInvocation(func, args, kwargs)
            given = [materialized(x) for x in given]  # a lazy zero has no memory
            self.compared += parts.upcoming
            form = (call, *(x.shape for x in given))
            self._calls[form] += 1
            found, read = parts.of_next(given, arguments.tensors, self._draws if self._calls[form] > _WHOLE else None)
            for result, ours in found:
                theirs = arguments.given(given, result)
                if agree(ours, theirs, arguments) or agrees_with_kernel(ours, theirs, result, arguments):
                    continue
                if not call.orders or not agree_on_order(ours, theirs, arguments):
                    self._refuse(call, _difference(ours, theirs))
            # Statistics alone do not show the eps.
            if arguments.eps is not None and not all(result for result, _ in found) and not _is_in(arguments.eps, read):
                self._refuse(call, f"it does not read the eps {arguments.eps}")
            if arguments.takes_any:
                self._compare_chosen(parts, call, arguments)
            self._trial.progress.add_kernel()

    def _require_call(self, parts: _Parts, call: KernelCall | None) -> None:
        """Raises CaptureError if a step calls another kernel than the traced one, or none where that calls one."""
        traced = next(iter(self._captured.origin.trail.calls[parts.called :]), None)
        if traced == call:
            return
        stated = self._captured.task.held_numbers()
        way = f"state {stated[0]} by a name that the loss reads from its batch, " if stated else ""
        raise CaptureError(
            f"the captured step is not yours: at step {self._step} PyTorch computes {call or 'nothing more'}, where "
            f"capture has {traced or 'nothing more'}: {way}convert the numbers yourself there (.float(), "
            ".to(torch.bfloat16)), or compute in float32"
        )

    def _compare_chosen(self, parts: _Parts, call: KernelCall, arguments: KernelInvocation) -> None:
        """Compare a kernel a second time, on numbers around its constants, once for all calls with the same ones."""
        for result, part in parts.of_arguments(arguments):
            form = (call, tuple(arguments.numbers), result, part.numbers)
            if form in self._forms:
                continue
            self._forms.add(form)
            sizes = {float(torch.tensor(x).abs()) for x in (*arguments.numbers, *part.numbers)}
            sizes |= {x**0.5 for x in sizes if x < _SMALL}  # beside what is a square
            sizes |= {abs(x / y) for x in arguments.numbers for y in arguments.numbers if y}
            for size in sorted(x for x in sizes if 2.0**-60 < x < 2.0**15)[:_SIZES]:
                tensors = part.chosen(arguments.tensors, size)
                other, given = arguments.of(tensors)
                if not all(bool(x.isfinite().all()) for x in given):
                    tensors = [x.abs() if x.is_floating_point() else x for x in tensors]
                    other, given = arguments.of(tensors)
                theirs = given[result]
                if not bool(theirs.isfinite().all()) or (ours := part.of(tensors)) is None:
                    continue
                if not agree(ours, theirs, other) and not agrees_with_kernel(ours, theirs, result, other):
                    self._refuse(call, f"of numbers around {size:.3g}, {_difference(ours, theirs)}")

    def _refuse(self, what: object, difference: str) -> None:
        raise CaptureError(
            f"the captured step is not yours: at step {self._step} {what} gives other numbers than PyTorch's, of "
            f"the same ones: {difference}: write this part with other operators, or in float32"
        )

    def finish(self, step: int, results: Results) -> None:
        """For `Trial.by_pytorch`: compares what a step leaves: the loss, the gradients, and the states that no
        optimizer changes. What the program makes of PyTorch's gradients is seen beside PyTorch's, one by one."""
        parts = self._parts
        assert parts is not None and step == self._step
        self._require_call(parts, None)
        origin = self._captured.origin
        trained = {f"parameter/{name}" for name in origin.trained}
        wanted = {LOSS: self._loss, **{f"{GRADIENT}{name}": place for name, place in origin.gradients.items()}}
        for name, place in self._stores.items():
            if name not in trained and f"{CHANGE}{name}" in results:
                wanted[f"{CHANGE}{name}"] = place
        for name, place in wanted.items():
            if name in results:
                self.compared += 1
                if (difference := self._differing_at_end(parts, name, place, results[name]())) is not None:
                    self._refuse(name, difference)
        for name, place in origin.gradients.items():
            if (gradient := results.get(f"{GRADIENT}{name}")) is not None:
                parts.know(place, gradient().to(self._captured.program.nodes[place].type.dtype.torch_dtype))
        names: dict[int, list[str]] = {}
        for name, place in self._stores.items():
            if name in trained or name not in self._before:
                names.setdefault(place, []).append(name)
        carried: dict[str, torch.Tensor | SpilledTensor] = {}
        file, others = SpillFile("a state of the comparison"), dict(results)  # until the next step has left its own

        def take(place: int, value: torch.Tensor) -> None:
            for name in names[place]:
                if name in self._before:
                    update = functools.partial(change, self._before[name], value)
                    self._see(step, {f"{CHANGE}{name}": others.pop(f"{CHANGE}{name}")}, {f"{CHANGE}{name}": update})
                else:
                    carried[name] = file.kept(value)

        parts.compute_at_end(names, take)
        parts.release()
        self._see(step, others, {})
        self._before, self._carried = {}, SpilledTensors(carried)

    def _differing_at_end(self, parts: _Parts, name: str, place: int, theirs: torch.Tensor) -> str | None:
        """The difference of a result of a step, in words; None if there is none. theirs: f64, a change for a
        state."""
        ours = parts.at_end(place)
        if (before := self._before.get(name.removeprefix(CHANGE))) is not None:
            theirs = theirs + torch.where(before.isfinite(), before, 0).double()
            ours = torch.where(ours.isfinite(), ours, 0)
        theirs = theirs.to(ours.dtype)
        if agree(ours, theirs) or (before is not None and agree_on_state(ours, theirs, before)):
            return None
        return _difference(ours, theirs)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{_kind(ours)} where yours is {_kind(theirs)}"
    one, two = ours.double(), theirs.double()
    apart = (one - two).abs().nan_to_num()
    return (
        f"the largest difference is {float(apart.max()):.2g}, where the largest element is {float(two.abs().max()):.2g}"
    )


def _kind(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


class _ChosenPart:
    """The part of a program between the arguments of a kernel and a result of it."""

    def __init__(self, checked: CheckedProgram, place: int, arguments: Mapping[int, int], given: StepInputs) -> None:
        """arguments: number of a tensor that the kernel is given -> the operator that gives it."""
        self._checked, self._place, self._arguments, self._given = checked, place, arguments, given
        nodes, places = checked.program.nodes, set(arguments.values())
        read = needed(nodes, [place], places)
        self.is_whole = (
            places <= read
            and place not in places
            and all(nodes[one].inputs or nodes[one].op in ("constant", "iota") for one in read - places)
        )
        """Whether it reads all of these arguments, and nothing else but constants."""
        constants = sorted(
            one for one in read - places if nodes[one].op == "constant" and nodes[one].type.dtype.is_float
        )
        values = evaluated(checked, constants, given) if self.is_whole else {}
        self.numbers = tuple(
            float(values[one].flatten()[0]) for one in constants if self.is_whole and values[one].numel()
        )
        """Its constants."""

    def chosen(self, tensors: Sequence[torch.Tensor], size: float) -> list[torch.Tensor]:
        """The tensors that a kernel is given, but for numbers of a size in the place of those that the part reads: at
        it, a little below and above, smaller and larger, and zeros."""
        draws, found = torch.Generator().manual_seed(0), list(tensors)
        of_place: dict[int, torch.Tensor] = {}
        for number, place in self._arguments.items():
            x = tensors[number]
            if not x.is_floating_point():
                continue
            near = 1 + torch.randint(-4, 5, x.shape, generator=draws) * 2.0**-8
            some = torch.randn(x.shape, generator=draws)
            signs = torch.randint(0, 2, x.shape, generator=draws) * 2 - 1
            any_one = torch.where(torch.rand(x.shape, generator=draws) < 0.5, signs * near, some)
            found[number] = of_place.setdefault(place, (any_one * size).to(x.dtype))
        return found

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The result by the program; None where it stops."""
        known = {place: widened(tensors[number]) for number, place in self._arguments.items()}
        try:
            return evaluated(self._checked, [self._place], self._given, known)[self._place]
        except StoppedError:
            return None


class _Parts:
    """Parts of a program that stand for the kernels of one step, in turn."""

    def __init__(self, checked: CheckedProgram, trail: CallTrail, ends: Collection[int], given: StepInputs) -> None:
        """ends: values that are wanted when all kernels have been called."""
        self._checked, self._given, self.following = checked, given, trail.following
        self._nodes = nodes = checked.program.nodes
        self.called = 0
        """Kernels that have been called."""
        self._results: list[list[tuple[int, int]]] = [[] for _ in trail.calls]
        for (call, result), place in trail.places.items():
            # Whole numbers are seen in what is made of them: kernels may leave out those that they do not need. Orders
            # are compared themselves, since PyTorch goes on with the one that it has chosen.
            kind = trail.calls[call].outputs[result]
            if kind.is_floating_point or kind is torch.bool or trail.calls[call].orders:
                self._results[call].append((result, place))
        self._arguments: list[dict[int, int]] = [{} for _ in trail.calls]
        for (number, argument), place in trail.arguments.items():
            if nodes[place].op != "constant":
                self._arguments[number][argument] = place
        self._cut: set[int] = set()
        """Places of the results of kernels that have been called."""
        self._known: dict[int, torch.Tensor | SpilledTensor] = {}
        """PyTorch's values of those that are still read, in PyTorch's memory; copies of those that are read at the end,
        since gradients are clipped in place behind the watched part."""
        self._values, self._file = SpilledTensors(self._known), SpillFile("what the kernels of the comparison give")
        self._checksums: dict[int, int] = {}
        """Checksum of each in PyTorch's memory, as it was given: other code than PyTorch's may write there, too."""
        self._last = self._last_reads(ends)

    def _last_reads(self, ends: Collection[int]) -> dict[int, int]:
        """Place of a kernel's result -> the number of the last call that reads it."""
        last: dict[int, int] = {}
        cut: set[int] = set()
        for number, results in enumerate([*self._results, [(0, end) for end in ends]]):
            places = {place for _, place in results}
            is_end = number == len(self._results)
            read = needed(self._nodes, places, cut) if is_end else self._read(places, cut)
            last |= dict.fromkeys(read & cut, number)
            cut |= places
        return last

    def _read(self, places: Iterable[int], cut: Collection[int]) -> set[int]:
        """The values that these are computed from, down to those that are known, themselves aside."""
        return needed(self._nodes, {one for place in places for one in self._nodes[place].inputs}, cut)

    @property
    def upcoming(self) -> int:
        """Number of results of the next call that have a place in the program."""
        return len(self._results[self.called])

    def of_next(
        self, theirs: Sequence[torch.Tensor], operands: Sequence[torch.Tensor], draws: torch.Generator | None
    ) -> tuple[list[tuple[int, torch.Tensor]], list[torch.Tensor]]:
        """(result, its value by the program) of the next call, by PyTorch's values of what came before, and the single
        numbers that the program reads there; PyTorch's own are what later calls read. theirs: results of the call.
        operands: the tensors that it is given. draws: of a product of these with many rows, only some are computed, and
        it is left out if they agree; None: all."""
        results, number = self._results[self.called], self.called
        found: list[tuple[int, torch.Tensor]] = []
        read: list[torch.Tensor] = []
        for result, place in results:
            if draws is not None and self._has_same_rows(place, theirs[result].detach(), operands, draws):
                continue
            values = self._evaluated([place])
            found.append((result, values[place]))
            read += (x for x in values.values() if x.numel() == 1 and x.is_floating_point())
        self.called += 1
        for result, place in results:
            self._cut.add(place)
            if (last := self._last.get(place, -1)) > number:
                value = theirs[result].detach()
                if last == len(self._results):
                    self.know(place, value)
                elif last > number + _FAR and value.nbytes >= _LARGE:
                    self._known[place] = self._file.put(value)
                else:
                    self._known[place], self._checksums[place] = value, tensor_checksum(value)
        for place in [place for place in self._known if self._last[place] <= number]:
            del self._known[place]
        return found, read

    def release(self) -> None:
        """Drops all values, at the end of a step: the mode that watched it refers to itself, and to this."""
        self._known.clear()
        del self._file
        self._given = replace(self._given, states=(), data=())

    def before_write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the values whose memory a kernel is about to write into."""
        written = {memory_of(x) for x in tensors if isinstance(x, torch.Tensor)}
        for place, value in self._known.items():
            if isinstance(value, torch.Tensor) and memory_of(value) in written:
                self._known[place] = value.clone()

    def of_arguments(self, call: KernelInvocation) -> Iterator[tuple[int, _ChosenPart]]:
        """(result, what it is computed by) of the last call, where the program computes it of the same arguments."""
        number = self.called - 1
        tensors, nodes = call.tensors, self._nodes
        arguments = {one: place for one, place in self._arguments[number].items() if tensors[one].ndim}
        for one, place in arguments.items():
            x, kind = tensors[one], nodes[place].type
            if tuple(x.shape) != kind.shape or (x.is_floating_point() and x.dtype != kind.dtype.torch_dtype):
                return
        for result, place in self._results[number]:
            part = _ChosenPart(self._checked, place, arguments, self._given)
            if part.is_whole:
                yield result, part

    def know(self, place: int, value: torch.Tensor) -> None:
        """Has later calls, and the end, read a copy of a value."""
        self._cut.add(place)
        self._known[place], self._last[place] = self._file.kept(value), len(self._results)
        self._checksums.pop(place, None)

    def at_end(self, place: int) -> torch.Tensor:
        """A value when all kernels have been called: PyTorch's own, if it is a result of one."""
        return self._values[place] if place in self._known else self._evaluated([place])[place]

    def compute_at_end(self, places: Collection[int], see: Callable[[int, torch.Tensor], None]) -> None:
        """Computes values by the program of what PyTorch's kernels have given. see: called with the place of each, and
        the value, which nobody else keeps. Raises CaptureError where it stops."""
        unknown = [place for place in places if place not in self._known]
        for some in (unknown, *([place] for place in places if place in self._known)):
            self._evaluated(some, see=see)

    def _has_same_rows(
        self, place: int, theirs: torch.Tensor, operands: Sequence[torch.Tensor], draws: torch.Generator
    ) -> bool:
        """Whether a value is a product of matrices with many rows, of the same operands as PyTorch's to the bit, and
        some of its rows are PyTorch's."""
        node = self._nodes[place]
        if node.op != "matmul" or node.type.shape[-2] < 4 * _ROWS or theirs.shape != node.type.shape:
            return False
        rows = torch.randint(node.type.shape[-2], (_ROWS,), generator=draws)
        values = self._evaluated([place], node.inputs)
        a, b = (values[one] for one in node.inputs)
        if not all(
            x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)
            for x, y in zip((a, b), operands, strict=False)
        ):
            return False
        kind, format = operator(node.op), node.type.dtype.number_format()
        assert isinstance(kind, Inexact) and format is not None
        ours = Recorder(MIN_LOG_GUARD).round(place, kind, [a.index_select(-2, rows), b], node.attributes, format)
        return agree(ours, theirs.index_select(-2, rows))

    def _evaluated(
        self,
        places: Sequence[int],
        wanted: Collection[int] = (),
        see: Callable[[int, torch.Tensor], None] | None = None,
    ) -> dict[int, torch.Tensor]:
        """Values of the program, by PyTorch's values of what comes before, and the values that they are computed from.
        wanted: only these of them. see: as of `evaluated`. Raises CaptureError where it stops."""
        known = self._read(places, self._cut) & self._known.keys()
        for index in known & self._checksums.keys():
            if tensor_checksum(self._values[index]) != self._checksums[index]:
                raise CaptureError(
                    f"the step writes, by other code than PyTorch's, into what {self._nodes[index].op} gives"
                    f"{' at ' + source if (source := self._nodes[index].source) else ''}: write by PyTorch's functions"
                )
        try:
            taken = SpilledTensors({index: self._known[index] for index in known})
            return evaluated(self._checked, wanted or places, self._given, taken, see)
        except StoppedError as error:
            raise CaptureError(f"the captured step stops where yours goes on: {error}") from error


def evaluated(
    checked: CheckedProgram,
    wanted: Collection[int],
    given: StepInputs,
    known: Mapping[int, torch.Tensor] = MappingProxyType({}),
    see: Callable[[int, torch.Tensor], None] | None = None,
) -> dict[int, torch.Tensor]:
    """The values of these nodes, and single numbers among those that they need. known: values that are taken as they
    are, each read when it is needed. see: takes each wanted value that is computed, in place of the result. Raises
    StoppedError as a run does."""
    nodes, running = checked.program.nodes, RunningStep(checked, given, Recorder(MIN_LOG_GUARD))
    values = running.values
    values |= {index: known[index] for index in wanted if index in known}
    order, done = list[int](), set(known)
    for one in sorted(wanted, reverse=True):  # a parameter with its moments, not the moments of all before it
        some = sorted(needed(nodes, [one], done) - done)
        order += some
        done.update(some)
    last = {value: number for number, index in enumerate(order) for value in nodes[index].inputs}
    for number, index in enumerate(order):
        inputs = nodes[index].inputs
        values |= {value: known[value] for value in inputs if value not in values}
        running.compute(index)
        if see is not None and index in wanted:
            see(index, values[index])
        for value in {index, *inputs}:
            is_read = last.get(value, -1) > number and value not in known
            is_result = value in wanted and see is None
            if not is_read and not is_result and values[value].numel() > 1:  # single numbers are looked at
                del values[value]
    return values


def _is_in(number: float, read: Iterable[torch.Tensor]) -> bool:
    """Whether a number is among others, as a format of programs has it."""
    exact = torch.tensor(number, dtype=torch.float64)
    forms = {float(exact.to(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    return any(float(x) in forms for x in read)
