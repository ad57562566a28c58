"""Agreement of a result of one of PyTorch's kernels with what the program computes of the same numbers: equal but for
the rounding of the result, and for what the kernel rounds in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.arithmetic import is_short
from roundlog.capture.draws import written_arguments
from roundlog.capture.kernel_calls import Note, WatchedCalls
from roundlog.capture.rules.short_formats import by_name, rounds_numbers, with_rounded_numbers

_PIECE = 1 << 16
"""Elements that are compared at once."""

_FEW = 0.01
"""Share of a tensor's numbers that may be neighbours of PyTorch's, beside one."""

_FP32 = 1e-5
"""Difference of FP32 results of one kernel, in units of the largest element, that the order of a sum accounts for."""

_HUGE = 1e4
"""Size from which on numbers may be what masks are made of, -1e4 being the smallest in use."""

_GAP = 30.0
"""Least ratio of the numbers of a mask to all smaller ones."""

_WORST = 1e-3
"""Error of PyTorch's FP32, in units of what a kernel adds up, that the allowance ends at."""

_SUMS = ("add", "sub", "rsub", "lerp", "addcmul", "addcdiv")
"""Kernels that add element by element."""

_SCALED = ("mul", "div", "leaky_relu", "leaky_relu_backward", "native_dropout", "native_dropout_backward")

_LOCAL = tuple(f"{kind}{way}" for kind in ("hardswish", "softplus", "elu", "hardtanh") for way in ("", "_backward"))
"""Kernels that work element by element, and are not marked so."""

_NORMS = tuple(f"native_{kind}_norm{way}" for kind in ("layer", "group", "batch") for way in ("", "_backward"))

_ADDING = (
    *("sum", "mean", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "convolution", "convolution_backward"),
    *("_softmax_backward_data", "_log_softmax_backward_data"),
)
"""Kernels whose results add up what may cancel, and are neither steep nor jump, whatever they read."""

_ROOM = 24.0
"""Allowed distance from PyTorch's FP64, as a multiple of that of PyTorch's FP32, and of what last bits move."""

_FLUSHED = 2.0**-116
"""Size of what a thousand terms lose where each is less than 2^-126 and taken for 0."""

_NUDGES = 6
"""Times that last bits are moved: by chance, a result may hardly move, one time in 30."""


class KernelArguments(WatchedCalls):
    """Notes calls with their arguments as they were before the call, where a kernel writes into them."""

    def __init__(self, note: Note, before_write: Callable[[list[Any]], None]) -> None:
        """before_write: called with the arguments that a kernel is about to write into."""
        super().__init__(lambda call, func, _args, _kwargs, given: note(call, func, *self._before, given))
        self._before_write = before_write
        self._before: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._before = (args, kwargs or {})
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            with _disable_current_modes(), torch.no_grad():
                self._before = tree_map(_cloned, self._before)
                self._before_write(tree_leaves(written_arguments(func._schema, args, kwargs or {})))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _cloned(thing: Any) -> Any:
    return thing.detach().clone() if isinstance(thing, torch.Tensor) else thing


def ulps_of(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distances to the next number of a dtype, of FP64 numbers."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(x.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(x, info.eps), exponent)


def agree(ours: torch.Tensor, theirs: torch.Tensor, call: KernelInvocation | None = None) -> bool:
    """Whether two results of a kernel, of the same inputs, are the same but for roundings at the very end."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if torch.equal(ours, theirs):
        return True
    is_float, is_rounded = ours.is_floating_point(), is_short(ours.dtype)
    places = _apart(ours, theirs, _FP32 / 2 if is_float and not is_rounded else 0.0)
    if not len(places) or not is_float:
        return not len(places)
    one, two = (x.reshape(-1)[places].double() for x in (ours, theirs))
    apart, ulp = (one - two).abs(), 0.0 * two
    if is_rounded:
        if len(places) > 1 + _FEW * ours.numel():
            return False
        ulp = ulps_of(torch.maximum(one.abs(), two.abs()), ours.dtype)
        if bool((apart <= ulp).all()):
            return True
    return bool((apart <= ulp + (1e-6 if is_rounded else _FP32) * _magnitudes(theirs, call, places)).all())


def _apart(ours: torch.Tensor, theirs: torch.Tensor, room: float) -> torch.Tensor:
    """The elements that differ by more than `room` times their own size: flat indices, int64. In pieces that stay in a
    processor's cache."""
    found = [torch.empty(0, dtype=torch.int64)]
    for number, (a, b) in enumerate(zip(*(x.reshape(-1).split(_PIECE) for x in (ours, theirs)), strict=True)):
        same = a == b
        if room and not bool(same.all()):
            apart = (a - b).abs()
            same |= (apart <= room * b.abs()) & (apart < torch.inf)
        if not bool(same.all()):
            found.append((~same & ~((a != a) & (b != b))).nonzero().flatten() + number * _PIECE)
    return torch.cat(found)


def agree_on_state(ours: torch.Tensor, theirs: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a state of short numbers that a kernel changes beside its results, as batch norm does its running
    statistics, is the same but for what the kernel rounds in between: m, x, m x and (1 - m) s, where m x may be twice
    as large as the state, beside the roundings at the end. So any number may be four ulps off, but on average they are
    by less than one, and to no side by more than half of one. before: the state before the step."""
    if agree(ours, theirs):
        return True
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not is_short(ours.dtype):
        return False
    one, two = ours.double(), theirs.double()
    sizes = torch.maximum(torch.maximum(one.abs(), two.abs()), before.double().abs().nan_to_num(0.0, 0.0))
    apart = (one - two) / ulps_of(sizes, ours.dtype)
    by_chance = ours.numel() ** -0.5
    sides, whole = abs(float(apart.mean())), float(apart.abs().mean())
    return bool((apart.abs() <= 4).all()) and sides <= 0.5 + by_chance and whole <= 1.0 + by_chance


def agree_on_change(
    ours: torch.Tensor, theirs: torch.Tensor, state: torch.Tensor, earlier: Sequence[torch.Tensor] = ()
) -> bool:
    """Whether an optimizer changes a parameter of short numbers as PyTorch's does, of the same gradients, but for the
    rounding of what is added.

    PyTorch's loop over vectors computes p + a x and rounds once; its loop over what is left (a tensor's last elements,
    or all of a small one) rounds a x first. Either is right for every element. The second moves the sum by at most half
    an ulp of a x, so the rounded sums are neighbours at most; rounding is monotone, so both changes have one sign, or
    are 0. How many are neighbours follows from how far a x is moved; momentum has been moved so in each step before.

    ours, theirs: f64, the changes. state: the parameter before the first step. earlier: f64, PyTorch's changes in
    earlier steps."""
    if not theirs.numel():
        return True
    before = state.double() + sum(earlier, torch.zeros_like(theirs))
    sizes = sum((one.abs() for one in earlier), theirs.abs())
    ulp = ulps_of(torch.maximum(before.abs(), (before + theirs).abs()), state.dtype)
    apart, moved = (ours - theirs).abs(), torch.finfo(state.dtype).eps * sizes
    if bool((ours * theirs < 0).any()) or not bool((apart <= ulp + moved).all()):
        return False
    expected = float((moved / ulp).clamp(max=1.0).sum())
    others = int((apart > ulp / 4).sum())
    return others <= (len(earlier) + 1) * (1 + _FEW * ours.numel()) + 3 * expected


def agree_on_order(ours: torch.Tensor, theirs: torch.Tensor, call: KernelInvocation) -> bool:
    """Whether a result of a kernel that orders is as right as PyTorch's: the same numbers in the same order, or in any
    where the kernel was asked for none, and no element twice. Sorts that are asked to be stable have one answer."""
    options = call.options
    x, dim = options["self"].detach(), options["dim"]
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not x.ndim or options.get("stable"):
        return False
    if ours.ndim < x.ndim:  # one element of each line
        ours, theirs = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    one, two = ours, theirs
    if not ours.is_floating_point():
        ordered = ours.sort(dim=dim).values
        if bool((ordered.diff(dim=dim) == 0).any()):
            return False
        one, two = x.gather(dim, ours), x.gather(dim, theirs)
    if not options.get("sorted", True):
        one, two = one.sort(dim=dim).values, two.sort(dim=dim).values
    return bool(((one == two) | (one != one) & (two != two)).all())


def agrees_with_kernel(ours: torch.Tensor, theirs: torch.Tensor, result: int, call: KernelInvocation) -> bool:
    """Whether a result of a kernel is that of the same kernel in FP64, rounded once, and PyTorch's is the same rounded
    more often: some kernels round what they compute in between, or add up many numbers in another order.

    PyTorch's may be an ulp off for the roundings at the end, and two more of an intermediate result, each by half an
    ulp, 2^-9 of itself. Where a kernel adds, what is rounded in between is as large as its summands; where it computes
    a function of each element, as the result; else, as the largest of the results. Where it adds up n rows in BF16, as
    layer norm does its weight's gradient even in FP32, n roundings are a random walk: 2 sqrt(n) halves of an ulp or
    more are further off than chance goes. Where all that it adds up cancels, as in softmax's gradient, results are
    small beside what FP32 rounds on the way: they may be off as far as they move with the last bits of what is read.
    Instructions for products of BF16 numbers take subnormal ones for 0."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not ours.is_floating_point():
        return False
    if is_short(ours.dtype) and not call.has_known_scalars(ours.dtype):
        return False
    try:
        truth, single = (call.result(result, dtype, ours.dtype) for dtype in (torch.float64, torch.float32))
    except (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError):
        return False
    if truth.shape != ours.shape or not bool(truth.isfinite().all()):
        return False
    size = _magnitudes(truth, call)
    worst = ((single - truth).abs() / size.clamp(min=1e-300)).nan_to_num(0.0, 0.0, 0.0)
    room = (min(_ROOM * _largest(worst), _WORST) + 1e-6) * size
    off, apart = (ours.double() - truth).abs(), (ours.double() - theirs.double()).abs()
    short = call.short_dtype
    between = call.steps(ours.numel()) * (truth.abs() if call.is_function else size.clamp(min=call.summed_up))

    def is_within(room: torch.Tensor) -> bool:
        apart_room = room + (torch.finfo(short).eps * between if short else room)
        if not is_short(ours.dtype):
            return bool((off <= room + _FP32 * size).all()) and bool((apart <= apart_room + _FP32 * size).all())
        ulp = ulps_of(truth, ours.dtype)
        flushed = _FLUSHED if ours.dtype is torch.bfloat16 and not call.is_local else 0.0
        return bool(((off <= ulp / 2 + room) & (apart <= ulp + apart_room + flushed)).all())

    return is_within(room) or (
        call.only_adds(result) and is_within(room + _ROOM * call.moved(result, truth, ours.dtype))
    )


def _magnitudes(
    theirs: torch.Tensor, call: KernelInvocation | None, places: torch.Tensor | None = None
) -> torch.Tensor:
    """Sizes of what a kernel adds up for each element, f64: the element and those that it is computed from, where a
    kernel works element by element; else, the largest element. Large numbers that masks are made of are by themselves:
    beside them, any other number would be of no weight. places: flat indices of the elements; None: all of them."""
    chosen = theirs if places is None else theirs.reshape(-1)[places]
    sizes = torch.where(chosen.isfinite(), chosen, 0.0).double().abs()
    largest = _largest(theirs)
    most = torch.full_like(sizes, largest)
    if largest >= _HUGE and (huge := _least_of_mask(theirs)) < torch.inf:
        below = _largest(theirs[theirs.abs() < huge])
        most = torch.where(sizes < huge, below, sizes)
    if call is None:
        return most
    return torch.minimum(most, call.summands(sizes, theirs.shape, places))


def _least_of_mask(x: torch.Tensor) -> float:
    """Size of the smallest number of those that a mask is made of; infinite if there are none."""
    large = x[x.isfinite() & (x.abs() >= _HUGE)].abs()
    ordered = large[:1] if bool((large == large[0]).all()) else large.sort().values
    smaller = _largest(x[x.abs() < _HUGE])
    before = torch.cat([torch.full_like(ordered[:1], smaller), ordered[:-1]]).double()
    gaps = (before > 0) & (ordered >= _GAP * before)
    return float(ordered[gaps][0]) if bool(gaps.any()) else torch.inf


class KernelInvocation:
    """A kernel and what it has been given."""

    def __init__(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        name = func.overloadpacket.__name__
        self._name = name.removesuffix("_")
        self.is_local = torch.Tag.pointwise in func.tags or self._name in (*_SUMS, *_SCALED, "_log_softmax")
        """Whether it works element by element."""
        self.is_function = self.is_local and self._name not in _SUMS
        """Whether it computes a function of each element, other than a sum."""

    @property
    def options(self) -> dict[str, Any]:
        """Its arguments by name, with the defaults of its schema."""
        schema = self._func._schema.arguments
        defaults = {one.name: one.default_value for one in schema if one.has_default_value()}
        return defaults | by_name(self._func, self._args, self._kwargs)

    @property
    def eps(self) -> float | None:
        """The number that a norm adds to its variance, which no result shows where the variance is large; None of other
        kernels: gradients have the roots that the norm has left."""
        return self.options.get("eps") if self._name in _NORMS and not self._name.endswith("_backward") else None

    @property
    def short_dtype(self) -> torch.dtype | None:
        """The dtype in which it may round in between."""
        given = tree_leaves((self._args, self._kwargs))
        return next((one.dtype for one in given if isinstance(one, torch.Tensor) and is_short(one.dtype)), None)

    @property
    def summed_up(self) -> float:
        """The largest number in the rows that it adds up in a short dtype; 0 if it is not known to add any."""
        return _largest(self._args[0].detach()) if self._name in _NORMS and self._name.endswith("_backward") else 0.0

    def steps(self, count: int) -> float:
        """Number of ulps of what it adds up that roundings in between may come to. count: elements of the result."""
        given = [one.numel() for one in tree_leaves((self._args, self._kwargs)) if isinstance(one, torch.Tensor)]
        return 1.0 if self.is_local else 2 * (max([count, *given]) / max(count, 1)) ** 0.5

    def has_known_scalars(self, dtype: torch.dtype) -> bool:
        """Whether it is known how the kernel rounds the numbers among its arguments, for results of a dtype."""
        if self._name in (*_SUMS, "pow", *_SCALED, *_NORMS):
            return True  # which they are given as `short_formats` says
        return all(
            float(torch.tensor(float(one)).to(dtype)) == float(one)
            for one in tree_leaves((self._args, self._kwargs))
            if isinstance(one, float) or (isinstance(one, torch.Tensor) and not one.ndim and one.is_floating_point())
        )

    def only_adds(self, result: int) -> bool:
        """Whether a result adds up what may cancel, and is neither steep nor jumps, whatever the kernel reads."""
        is_mean = self._name in _NORMS and not self._name.endswith("_backward") and result == 1
        return is_mean or self._name in _ADDING

    def moved(self, result: int, truth: torch.Tensor, rounded: torch.dtype) -> torch.Tensor:
        """The largest change of a result, f64, where each number that the kernel reads changes by some 2^-24 of itself,
        up or down. truth: the result in FP64; rounded: the dtype of PyTorch's."""
        most = torch.zeros_like(truth)
        # From a normal distribution: of so few as three terms, equal steps would often cancel as the terms do.
        changes = torch.Generator().manual_seed(0)

        def nudged(thing: Any) -> Any:
            if not isinstance(thing, torch.Tensor) or not thing.is_floating_point():
                return thing
            change = torch.randn(thing.shape, generator=changes, dtype=torch.float64)
            return change.mul_(2.0**-24).add_(1).mul_(thing.detach())

        for _ in range(_NUDGES):
            given = tree_map(nudged, (self._args, self._kwargs))
            other = KernelInvocation(self._func, *given).result(result, torch.float64, rounded)
            most = torch.maximum(most, (other - truth).abs().nan_to_num(0.0, 0.0, 0.0))
        return most

    def result(self, result: int, dtype: torch.dtype, rounded: torch.dtype) -> torch.Tensor:
        """A result of the kernel when it computes in a dtype, f64. rounded: the dtype of PyTorch's result."""
        rounds = rounds_numbers(self._func) and is_short(rounded)
        given = (self._args, self._kwargs)
        if rounds:
            given = with_rounded_numbers(self._func, *given, rounded)

        def cast(thing: Any) -> Any:
            if isinstance(thing, torch.Tensor) and thing.is_floating_point():
                thing = thing.detach()
                return (thing.to(rounded) if rounds and not thing.ndim else thing).to(dtype, copy=True)
            if isinstance(thing, torch.Tensor):
                return thing.clone()
            return dtype if isinstance(thing, torch.dtype) and thing.is_floating_point else thing

        args, kwargs = tree_map(cast, given)
        found = self._func(*args, **kwargs)
        one = (
            found
            if isinstance(found, torch.Tensor)
            else [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)][result]
        )
        return one.double()

    def given(self, results: Sequence[torch.Tensor], result: int) -> torch.Tensor:
        """A result of PyTorch's. Those of a dropout are replaced by the program's, as all draws are, so what it makes
        of its mask is computed again. What other kernels draw is compared with itself."""
        if self._name != "native_dropout" or result or not self._args[2]:
            return results[result].detach()
        p = float(self._args[1])
        x: torch.Tensor = self._args[0].detach()
        return x.mul(results[1]).mul_(1 / (1 - p) if p < 1 else 0.0)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it is given, in order."""
        return [one for one in tree_leaves((self._args, self._kwargs)) if isinstance(one, torch.Tensor)]

    @property
    def numbers(self) -> list[float]:
        """The numbers with a fraction that it is given, in order."""
        return [one for one in tree_leaves((self._args, self._kwargs)) if isinstance(one, float)]

    @property
    def takes_any(self) -> bool:
        """Whether its tensors may be chosen at will: each by itself, and whatever the numbers are."""
        writes = self._func._schema.is_mutable
        return not writes and (self.is_local or self._name in _LOCAL or self.eps is not None)

    def of(self, tensors: Sequence[torch.Tensor]) -> tuple[KernelInvocation, list[torch.Tensor]]:
        """The same call of other tensors, and its results."""
        given = iter(tensors)
        args, kwargs = tree_map(
            lambda one: next(given) if isinstance(one, torch.Tensor) else one, (self._args, self._kwargs)
        )
        results = tree_leaves(self._func(*tree_map(_cloned, args), **tree_map(_cloned, kwargs)))
        return KernelInvocation(self._func, args, kwargs), [x for x in results if isinstance(x, torch.Tensor)]

    def summands(self, sizes: torch.Tensor, shape: torch.Size, places: torch.Tensor | None) -> torch.Tensor:
        """The largest of each element's size and those of what it is computed from; infinite if not known. shape: of
        the result. places: flat indices of the elements in it; None: all of them."""
        if not self.is_local:
            return torch.full_like(sizes, torch.inf)
        for one in tree_leaves((self._args, self._kwargs)):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                given = one.detach()
                if given.ndim > len(shape) or torch.broadcast_shapes(given.shape, shape) != shape:
                    continue
                if places is not None:
                    given = given.expand(shape)[torch.unravel_index(places, shape)]
                sizes = torch.maximum(sizes, torch.where(given.isfinite(), given, 0).double().abs())
            elif isinstance(one, (int, float)) and not isinstance(one, bool) and abs(one) < torch.inf:
                sizes = sizes.clamp(min=abs(float(one)))
        return sizes


def _largest(x: torch.Tensor) -> float:
    """The size of the largest finite element; 0 if there is none."""
    if not x.numel():
        return 0.0
    least, most = (float(one) for one in x.aminmax())
    if isfinite(least) and isfinite(most):
        return max(abs(least), abs(most))
    return _largest(x[x.isfinite()])
