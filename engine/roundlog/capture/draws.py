"""The random numbers that a step draws: which operator calls draw them, which of these draw the same, and their replay.
Those of Python's `random` and of `numpy.random` are drawn by torch instead."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from roundlog.capture.errors import CaptureError, is_of_torch, place_of_call, traced_with

GENERATOR = torch.Generator().manual_seed(0x2ED3_98E3_0725_C97C)
"""Generator of these numbers of Python: another than torch's, which activation checkpointing puts back."""

_Function = Callable[..., Any]


@contextmanager
def drawn_by_torch() -> Iterator[None]:
    """While this is active, these functions of `random` and `numpy.random` draw one number by torch."""
    tables: tuple[tuple[Any, dict[str, _Function]], ...] = ((random, _OF_PYTHON), (np.random, _OF_NUMPY))
    before = [(module, name, getattr(module, name), function) for module, of in tables for name, function in of.items()]
    for module, name, own, function in before:
        setattr(module, name, _instead(own, function))
    try:
        yield
    finally:
        for module, name, own, _ in before:
            setattr(module, name, own)


def _instead(own: _Function, function: _Function) -> _Function:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if is_of_torch(sys._getframe(1).f_code.co_filename):
            return own(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except TypeError:  # arguments that give arrays, or none that the function takes
            return own(*args, **kwargs)

    return draw


def _uniform(low: Any = 0.0, high: Any = 1.0) -> Any:
    return _number(torch.empty(()).uniform_(float(low), float(high), generator=GENERATOR))


def _beta(a: Any, b: Any) -> Any:
    return _number(torch._sample_dirichlet(torch.tensor([float(a), float(b)]), generator=GENERATOR)[0])


def _below(low: Any, high: Any = None) -> Any:
    """A whole number from low to high - 1, or from 0 to low - 1."""
    first, last = (0, index(low)) if high is None else (index(low), index(high))
    return _number(torch.randint(first, last, (), generator=GENERATOR))


def _number(drawn: torch.Tensor) -> Any:
    return drawn if isinstance(drawn, FakeTensor) else drawn.item()  # a step is traced with the tensor itself


def _permutation(count: Any) -> Any:
    places = torch.randperm(index(count), generator=GENERATOR)
    return places.numpy() if type(places) is torch.Tensor else places


def _seeded(*_: Any, **__: Any) -> Any:
    raise CaptureError(
        f"the step sets a seed of Python's or numpy's random numbers{place_of_call()}: set it before the first step"
    )


_OF_PYTHON: dict[str, _Function] = {
    **dict.fromkeys(("seed", "setstate"), _seeded),
    **dict.fromkeys(("random", "uniform"), _uniform),
    "randint": lambda a, b: _below(a, b + 1),
    "randrange": _below,
}
_OF_NUMPY: dict[str, _Function] = {
    **dict.fromkeys(("seed", "set_state"), _seeded),
    **dict.fromkeys(("rand", "random"), lambda: _uniform()),
    "uniform": _uniform,
    "beta": _beta,
    "randint": _below,
    "permutation": _permutation,
}


_KEY = "roundlog_draw"


@dataclass(frozen=True, slots=True)
class Draw:
    """One operator call that draws random numbers."""

    number: int
    """Number of the call in its step."""
    state: str
    """State of the generator before the call."""


class Draws(TorchDispatchMode):
    """While a step is traced: marks the graph nodes of calls that draw random numbers. A call that finds its generator
    in a state that no call of this step has found or left raises CaptureError: somebody has set a seed, or made the
    generator, inside the step, and what a seed draws is not random from step to step."""

    def __init__(self, states: Mapping[int, torch.Tensor]) -> None:
        """states: id of a generator -> its state before the step; 0 for that of torch."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = 0
        self._states = {generator: {_digest(state)} for generator, state in states.items()}
        self._found: dict[int, tuple[torch.Generator | None, set[str]]] = {}
        """Key of a generator -> itself, and the states in which a call has found it."""
        self.refused: list[CaptureError] = []
        """Error that was raised, whether or not the user's code has caught it."""
        self.drawn: list[torch.Tensor] = []
        """Copies of what was drawn, in order: nodes of the graph."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not draws(func):
            return func(*args, **kwargs)
        self._calls += 1
        generator = kwargs.get("generator")
        state = _state(generator)
        known = self._states.setdefault(generator_key(generator), set())
        if state not in known:
            self.refused.append(
                CaptureError(
                    f"{func}{place_of_call()} draws from a seed that is set inside the step, or from a generator that "
                    "is made there: draw from torch's own generator, whose seed is the task's"
                )
            )
            raise self.refused[-1]
        self._found.setdefault(generator_key(generator), (generator, set()))[1].add(state)
        marks = torch.fx.traceback.current_meta.get("custom") or {}
        with traced_with("custom", {**marks, _KEY: Draw(self._calls, state)}):
            result = func(*args, **kwargs)
        _advance(generator)
        known.add(_state(generator))
        self.drawn.extend(tensor.clone() for tensor in _drawn(func, args, kwargs, result))
        return result

    def refuse_put_back(self) -> None:
        """Raises CaptureError for a generator that stands, after the step, in a state in which the step has drawn."""
        for generator, states in self._found.values():
            if _state(generator) in states:
                raise CaptureError(
                    "the step puts a generator of random numbers back after it has drawn, so that the next step draws "
                    "the same numbers: draw without torch.random.fork_rng() and manual_seed(), or draw once, before "
                    "the first step"
                )


class Replay(TorchDispatchMode):
    """While the user's own step runs: calls that draw random numbers give those that were drawn before. Those of
    Python's `random` and of numpy do so under `drawn_by_torch`."""

    def __init__(self, drawn: Sequence[torch.Tensor | None]) -> None:
        """drawn: in the order of the trace; None where a program has no use for the numbers."""
        super().__init__()  # type: ignore[no-untyped-call]
        # PyTorch draws nothing for a dropout of no rows.
        self._drawn = iter([one for one in drawn if one is None or one.numel()])

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not draws(func):
            return result
        for tensor in _drawn(func, args, kwargs, result):
            if not tensor.numel():
                continue
            drawn = next(self._drawn, _TOO_MANY)
            if drawn is not None and drawn.shape != tensor.shape:
                raise CaptureError("the step draws other random numbers than when it was traced")
            if drawn is not None:
                tensor.copy_(drawn)
        return result


_TOO_MANY = torch.empty(0)
"""In the place of a draw that the trace has not seen."""


def generator_key(generator: torch.Generator | None) -> int:
    """Identity of a generator; 0 for that of torch."""
    if generator is None:
        return 0
    # Python's objects for generators are made anew; what they stand for has an address.
    address, default = (int(found._cdata) for found in (generator, torch.default_generator))  # type: ignore[attr-defined]
    return 0 if address == default else address


def draws(func: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def draw_of(node: fx.Node) -> Draw | None:
    """The call that a graph node is a part of; None if it draws nothing."""
    return (node.meta.get("custom") or {}).get(_KEY)


def _drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """The tensors that a call has filled: its results, and arguments that it wrote into."""
    filled = (*tree_leaves(result), *written_arguments(func._schema, args, kwargs))
    return list({id(tensor): tensor for tensor in filled if isinstance(tensor, torch.Tensor)}.values())


def written_arguments(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that a call of an operator writes into."""
    return [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _state(generator: torch.Generator | None) -> str:
    return _digest(torch.get_rng_state() if generator is None else generator.get_state())


def _digest(state: torch.Tensor) -> str:
    with _disable_current_modes():
        return hashlib.sha256(state.numpy().tobytes()).hexdigest()


def _advance(generator: torch.Generator | None) -> None:
    with _disable_current_modes():
        torch.empty(1).uniform_(generator=generator)
