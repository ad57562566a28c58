"""Sameness check: the captured step and the user's own are both run, and have to give the same results.

Python code may do anything, so a captured program is not trusted but tried. The engine and PyTorch, on the task's own
objects, each run three steps from the initial state and three from a state moved away from it; PyTorch in FP32 and,
where the model allows it, in FP64. Losses, gradients and the change of every state have to agree about as closely as
PyTorch's FP32 does with its FP64.

Where numbers have fewer than 32 bits, PyTorch's own steps are watched instead, and compared kernel by kernel
(`kernel_sameness`); so is what the program makes of their gradients, and updates on chosen numbers (`update_sameness`).
So are large models in FP32, unless something seems off: a kernel may round as no rule here says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

import torch

from roundlog.arithmetic import is_short
from roundlog.capture import Captured, CaptureError
from roundlog.data.spill_file import SpilledTensor, SpilledTensors, SpillFile
from roundlog.training.kernel_agreement import agree_on_change
from roundlog.training.kernel_sameness import confirm_same_kernels, has_short_numbers
from roundlog.training.trial import CHANGE, GRADIENT, LOSS, Results, Trial, TrialProgress
from roundlog.training.update_sameness import confirm_same_updates

_REWRITE = "write this part with ordinary operators on parameters and buffers"

STEPS = 3
"""Steps that are compared from each of the two states."""

_ROOM = 24.0
"""Allowed distance of the captured step from PyTorch's FP64, as a multiple of the distance of PyTorch's FP32."""

_FLOOR = 4e-6
"""Distance that is always allowed, in units of the largest element; FP32 has 6e-8."""

_BLURRED = 1e-3
"""Error of PyTorch's FP32, in units of the largest element, from which on a tensor's difference is not reported."""

_NUDGES = (1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4)
"""Ulps by which the initial state is nudged, try by try, while a tensor seems too far off. The engine may be on the
other side of a relu's zero than every one of PyTorch's runs if few are tried; four ulps leave little on its side."""

_PIECE = 1 << 16
"""Elements that are compared at once."""

_LARGE = 1 << 24
"""Elements of a state from which on steps in FP32 are compared kernel by kernel, too: others in FP64, and all that is
held against them, take much time and memory."""

_MOVED = 0.05
"""Relative distance of the second state from the first."""


@dataclass(frozen=True, slots=True)
class Sameness:
    """The result of the comparison."""

    steps: int
    """Steps that were compared from each state; 0 if PyTorch's first step is not finite."""
    largest: float
    """Largest difference, in units of the largest element of its tensor."""
    name: str
    """Name of the tensor with the largest difference."""
    in_fp64: bool
    """Whether PyTorch could run the step in FP64."""
    kernels: int = 0
    """Results of PyTorch's kernels that were compared one by one, where numbers have fewer than 32 bits."""
    warning: str = ""
    """The reason why no parameter has changed in any step; empty if one has."""

    def __str__(self) -> str:
        if not self.steps:
            return "captured step could not be compared: yours gives numbers that are not finite at the first step"
        if self.kernels:
            return (
                f"captured step equals yours: {self.steps} steps, and one from another state, {self.kernels:,} results "
                f"of PyTorch's kernels one by one, largest difference of what the optimizer makes {self.largest:.0e}"
            )
        with_what = "in FP64" if self.in_fp64 else "in FP32, since the model does not run in FP64"
        return (
            f"captured step equals yours: {self.steps} steps from two states, largest difference {self.largest:.0e} of "
            f"{self.name} (PyTorch {with_what})"
        )


def confirm_same(captured: Captured, tell: Callable[[float, str], None] = lambda share, detail: None) -> Sameness:
    """Runs the captured step and the user's own, of fresh tasks, and compares them. tell: called with the share that is
    done, and what is done now.

    Raises CaptureError, naming the first tensor that differs."""
    by_kernel = has_short_numbers(captured.program)
    if not by_kernel and sum(state.numel() for state in captured.states.values()) > _LARGE:
        with suppress(CaptureError):  # a step in FP64 then says whether something is
            return _compared(captured, tell, by_kernel=True)
    return _compared(captured, tell, by_kernel=by_kernel)


def _compared(captured: Captured, tell: Callable[[float, str], None], *, by_kernel: bool) -> Sameness:
    """`confirm_same`. by_kernel: kernel by kernel, and not in FP64."""
    task = captured.task
    steps, found, in_fp64 = min(STEPS, task.steps), (0.0, LOSS), True
    kernels, warning = 0, ""
    # A single step shows what kernels do with other numbers.
    each = [steps, min(steps, 1) if by_kernel else steps]
    progress = TrialProgress(tell, each, kernels=len(captured.origin.trail.calls) if by_kernel else 0)
    for number, is_moved in zip(each, (False, True), strict=True):
        start = _moved(captured) if is_moved else captured.states
        comparison = _Comparison(captured, Trial(captured, start, number, progress), by_kernel=by_kernel)
        differences = list(comparison.differences())
        if not differences and start is captured.states:
            if comparison.failure:
                raise CaptureError(f"your own step fails on the first batch: {comparison.failure}: correct it")
            return Sameness(steps=0, largest=0.0, name="", in_fp64=comparison.in_fp64)
        is_still = not (comparison.is_trained or getattr(task.model, "trains_nothing", False))
        if start is captured.states and is_still:
            warning = comparison.standstill()
        found = max([found, *differences])
        in_fp64 &= comparison.in_fp64
        kernels += comparison.kernels
        del comparison  # and its files, which take as much of the disk as those of the next one
    if kernels:
        confirm_same_updates(captured)
    return Sameness(steps=steps, largest=found[0], name=found[1], in_fp64=in_fp64, kernels=kernels, warning=warning)


class _Mark(NamedTuple):
    """A result of one step, as the captured step and PyTorch have it."""

    apart: float
    """Largest difference of the captured step from the truth."""
    own: float
    """Largest difference of PyTorch's FP32 from the truth."""
    size: float
    """Largest element of the truth."""
    rounding: float
    """Most that rounding a state to FP32 once has changed, however little the state moves."""
    truth: Callable[[], torch.Tensor] | None
    """The truth, f64, if the captured step is too far off by this alone."""
    is_wrong: bool = False
    """Whether the captured step is too far off, whatever nudged runs give."""


@dataclass(slots=True)
class _Step:
    """The results of one step."""

    is_finite: bool = True
    """Whether all of PyTorch's are."""
    marks: dict[str, _Mark] = field(default_factory=dict)
    """By name: those that the captured step has, too."""
    names: set[str] = field(default_factory=set)
    """All that the truth has."""
    checksums: dict[str, int] = field(default_factory=dict)
    """By name: of PyTorch's in FP32, from the task's own initial state."""


class _Comparison:
    """A comparison of steps from one state, by the engine and by PyTorch."""

    def __init__(self, captured: Captured, trial: Trial, *, by_kernel: bool) -> None:
        self._trial = trial
        self._optimized = {f"{CHANGE}parameter/{name}" for name in captured.origin.trained}
        gradients = {f"{GRADIENT}{name}" for name in captured.origin.gradients}
        self._names = {LOSS, *gradients, *(f"{CHANGE}{name}" for name in captured.own_names)}
        """Results that the captured step has."""
        self._steps: list[_Step] = []
        """The steps of the truth."""
        self._is_first = trial.start is captured.states
        self.is_trained = False
        """Whether PyTorch's steps have changed a parameter."""
        self._earlier: dict[str, list[Callable[[], torch.Tensor]]] = {}
        """By name, PyTorch's changes of a state of short numbers, step by step."""
        self.in_fp64 = False
        if by_kernel:  # updates of short numbers are compared in FP64 by `update_sameness`
            self._single, self.kernels = confirm_same_kernels(captured, trial, self._mark)
            self._ours = self._single
        else:
            self._ours, self._single, self.kernels = trial.by_engine(), trial.kept_by_pytorch(), 0
            self.in_fp64 = bool(trial.by_pytorch(torch.float64, self._mark_kept).steps)
            if not self.in_fp64:
                for step, results in enumerate(self._single.kept):
                    self._mark_kept(step, results)
        if self._is_first:
            trial.by_pytorch(torch.float32, self._require_repeatable)
        self._noise: list[dict[tuple[int, str], float]] = []
        """By try, what `_noises` gives."""

    def _require_repeatable(self, step: int, again: Results) -> None:
        """Raises CaptureError if PyTorch gives other numbers the second time."""
        once = self._steps[step].checksums if step < len(self._steps) else {}
        for name in again.keys() & once.keys():
            if _checksum(again[name]()) != once[name]:
                raise CaptureError(
                    f"your own step gives another result every time: {name} changes though it starts from the same "
                    "state and draws the same numbers: keep whatever changes it in parameters and buffers"
                )

    def _mark_kept(self, step: int, results: Results) -> None:
        """Holds a step's results, which are the truth, against those of the other runs."""
        self._mark(step, results, *(run.kept[step] if step < run.steps else {} for run in (self._ours, self._single)))
        self._steps[step].is_finite &= step < self._single.steps

    def _mark(self, step: int, results: Results, ours: Results, single: Results | None = None) -> None:
        """Holds some of a step's results, which are the truth, against the captured step's of these names, and
        PyTorch's in FP32; None: the truth is."""
        single = results if single is None else single
        if step == len(self._steps):
            self._steps.append(_Step())
        found = self._steps[step]
        found.names |= results.keys()
        for name, result in results.items():
            truth = result()
            in_fp32 = truth if single.get(name, result) is result else single[name]()  # read once where it is one
            given = ours[name]() if name in ours else truth, in_fp32, truth
            sizes = _sizes(*given)
            found.is_finite &= all(map(isfinite, sizes[1:]))
            if name in ours:
                found.marks[name] = self._mark_of(name, given, sizes)
            if self._is_first:
                found.checksums[name] = _checksum(in_fp32)
                self.is_trained |= name in self._optimized and bool(in_fp32.any())

    def _mark_of(self, name: str, given: Sequence[torch.Tensor], sizes: Sequence[float]) -> _Mark:
        (ours, in_fp32, truth), (apart, own, size) = given, sizes
        state = self._trial.start.get(name.removeprefix(CHANGE))
        if state is not None and is_short(state.dtype):
            earlier = self._earlier.setdefault(name, [])
            ours, in_fp32, *others = (x.expand(state.shape) for x in (ours, in_fp32, *(one() for one in earlier)))
            wrong = not agree_on_change(ours, in_fp32, state, others)
            earlier += self._trial.put_aside({name: lambda: in_fp32}).values()
            return _Mark(apart, 0.0, size, 0.0, truth=None, is_wrong=wrong)
        if apart == own == size == 0:  # as of frozen parameters
            return _Mark(apart=0.0, own=0.0, size=0.0, rounding=0.0, truth=None)
        rounding = 0.0 if state is None else 2.0**-24 * _largest(state if state.is_floating_point() else state.double())
        mark = _Mark(apart, own, size, rounding, truth=None)
        if mark.apart <= _allowed(mark):
            return mark
        return mark._replace(truth=self._trial.put_aside({name: lambda: truth})[name])

    def differences(self) -> Iterator[tuple[float, str]]:
        """(difference in units of the largest element, name) of every compared tensor. Raises CaptureError."""
        for step, found in enumerate(self._steps):
            if not found.is_finite:
                return
            if step == self._ours.steps:
                raise CaptureError(f"the captured step stops where yours goes on: {self._ours.stopped}: {_REWRITE}")
            if only := sorted(self._names ^ found.names):
                whose = "the captured step" if only[0] in self._names else "yours"
                raise CaptureError(f"the captured step is not yours: only {whose} has {only[0]}: {_REWRITE}")
            for name, mark in found.marks.items():
                yield self._difference(step, name, mark), name

    def standstill(self) -> str:
        """What to do where no parameter changes, in words."""
        trained = [self._trial.start[name.removeprefix(CHANGE)] for name in self._optimized]
        way = (
            "keep the weights in FP32 (torch.autocast computes in BF16), "
            if any(is_short(x.dtype) for x in trained)
            else ""
        )
        return (
            f"none of the {len(trained)} trained parameters changes in the first {self._single.steps} step(s): "
            f"{way}raise the learning rate, and check what the loss depends on"
        )

    @property
    def failure(self) -> str:
        """Message of the error that the user's own step raises; empty if it raises none."""
        return self._single.stopped

    def _difference(self, step: int, name: str, mark: _Mark) -> float:
        allowed = _allowed(mark)
        wrong = mark.is_wrong or (
            mark.truth and not any(mark.apart <= allowed + _ROOM * noise for noise in self._noises(step, name))
        )
        if wrong:
            raise CaptureError(
                f"the captured step is not yours: at step {step} {name} differs by {mark.apart:.2g}, where its largest "
                f"element is {mark.size:.2g}: the model, the loss or a hook does something that capture does not "
                f"follow, so {_REWRITE}"
            )
        if (state := self._trial.start.get(name.removeprefix(CHANGE))) is not None and is_short(state.dtype):
            return 0.0  # by ulps of the parameter
        # If FP32 is too inaccurate for a tensor, the difference means nothing.
        return max(0.0, mark.apart - mark.rounding) / mark.size if mark.own < _BLURRED * mark.size else 0.0

    def _noises(self, step: int, name: str) -> Iterator[float]:
        """Distances of PyTorch's FP32 from the truth after the initial state is nudged in random directions. They are
        large where terms cancel, or a choice depends on the last bit."""
        for number, ulps in enumerate(_NUDGES):
            if number == len(self._noise):
                self._noise.append(self._noise_of(number, ulps))
            if (step, name) in self._noise[number]:
                yield self._noise[number][step, name]

    def _noise_of(self, number: int, ulps: int) -> dict[tuple[int, str], float]:
        """(step, name) of what is too far off -> its noise by one nudge."""
        noise: dict[tuple[int, str], float] = {}

        def look(step: int, results: Results) -> None:
            for name, mark in self._steps[step].marks.items() if step < len(self._steps) else ():
                if mark.truth is not None and name in results:
                    noise[step, name] = _apart(results[name](), mark.truth())

        start = self._trial.start.items()
        self._trial.by_pytorch(torch.float32, look, {name: _nudged(name, value, number, ulps) for name, value in start})
        return noise


def _sizes(ours: torch.Tensor, in_fp32: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """The largest distances of two results, f64, from a third, and its largest element: NaN or infinite where one of
    them is not finite. In pieces that stay in a processor's cache."""
    if not truth.numel():
        return [0.0, 0.0, 0.0]
    count = max(x.numel() for x in (ours, in_fp32, truth))
    pieces = zip(*(x.reshape(-1).expand(count).split(_PIECE) for x in (ours, in_fp32, truth)), strict=True)
    found = [torch.stack([(a - c).abs().max(), (b - c).abs().max(), c.abs().max()]) for a, b, c in pieces]
    largest: list[float] = torch.stack(found).amax(0).tolist()
    return largest


def _allowed(mark: _Mark) -> float:
    """Distance of the captured step from the truth that needs no look at nudged runs."""
    return _FLOOR * mark.size + 4 * mark.rounding + _ROOM * mark.own


def _moved(captured: Captured) -> SpilledTensors[str]:
    """A state moved away from the initial one, but for what no step of the run changes. Zeros stay zero in buffers,
    where they may be by design, but not in parameters."""
    generator, file = torch.Generator().manual_seed(1), SpillFile("a state of the comparison")
    stepped = captured.program.moved_states
    moved: dict[str, torch.Tensor | SpilledTensor] = {}
    for name, state in captured.states.items():
        kind = name.partition("/")[0]
        if name not in stepped:
            moved[name] = state
            continue
        if state.is_floating_point() and kind == "parameter":
            spread = _MOVED * float(state.float().square().mean().sqrt()) + _MOVED / 10 if state.numel() else 0.0
            state = (state + spread * torch.randn(state.shape, generator=generator)).to(state.dtype)
        elif state.is_floating_point() and kind in ("buffer", "transient", "attribute"):
            state = (state * (1 - _MOVED * torch.rand(state.shape, generator=generator))).to(state.dtype)
        moved[name] = file.kept(state)
    return SpilledTensors(moved)


def _nudged(name: str, state: torch.Tensor, number: int, ulps: int) -> torch.Tensor:
    """A state changed by so many ulps, in directions that follow from the number. Zeros of a parameter are changed a
    little, too: with a router of zeros, choices between equal scores would depend on nothing at all."""
    if not state.is_floating_point():
        return state
    signs = torch.randint(0, 2, state.shape, generator=torch.Generator().manual_seed(number)) * 2 - 1
    zeros = (state == 0) & name.startswith("parameter/")
    moved = state * (1 + signs * ulps * torch.finfo(state.dtype).eps)
    return torch.where(zeros, signs * 2.0**-20, moved).to(state.dtype)


def _checksum(x: torch.Tensor) -> int:
    """A checksum of numbers, f64, of which those that compare as equal have the same."""
    found = 0
    for piece in x.reshape(-1).split(_PIECE):
        found = zlib.crc32((piece.nan_to_num() + 0.0).numpy(), found)
    return found


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return _largest(a - b)


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
