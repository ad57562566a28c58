"""Values that are known while a step is traced, because they depend on no parameter, no data and no random number.

Python code asks tensors for their values: whether a mask is causal, how large an image is, which elements a mask marks.
A traced tensor has none, but where it comes from constants alone it has the same value in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes

from roundlog.capture.constants import Constants

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]


def node_of(x: torch.Tensor) -> fx.Node | None:
    """The graph node that a tensor stands for, while a step is traced."""
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(x, mode.tracer, None)
    return None if slot is None else slot.proxy.node


def known(x: Any) -> torch.Tensor | None:
    """The value of a traced tensor on the CPU, if it is known."""
    if not isinstance(x, torch.Tensor):
        return None
    constant = getattr(x, "constant", None)
    if constant is not None:
        with _disable_current_modes():
            held: torch.Tensor = constant.detach().cpu()
            return held
    node, mode = node_of(x), get_proxy_mode()
    if not isinstance(x, FakeTensor) and node is None:
        with _disable_current_modes():
            return x.detach().cpu()  # a tensor of the user's
    if node is None or mode is None:
        return None
    root: torch.nn.Module = mode.tracer.root  # type: ignore[union-attr]
    constants = Constants(root, node.graph)
    if node not in constants:
        return None
    with _disable_current_modes():
        value = constants.evaluate(node)
    return value if isinstance(value, torch.Tensor) else None


def with_known_values(table: Table) -> Table:
    """A table for `make_fx` in which operators whose result depends on values are computed where these are known."""
    return {**table, **{op: _trying(function, table.get(op)) for op, function in _OPERATORS.items()}}


def _trying(function: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if result is not NotImplemented:
            return result
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return apply


def _item(x: torch.Tensor) -> Any:
    value = known(x)
    if value is None:
        return NotImplemented
    with _disable_current_modes():
        return value.item()


def _equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    values = known(a), known(b)
    if values[0] is None or values[1] is None:
        return NotImplemented
    with _disable_current_modes():
        return torch.equal(values[0], values[1])


def _below(x: torch.Tensor, limit: float) -> Any:
    """Random numbers of [0, 1) are never below 0: that is what layer drop asks where it is switched off."""
    node = node_of(x) if limit <= 0 and x.ndim == 0 else None
    drawn = node is not None and node.target in (_aten.rand.default, _aten.rand_like.default)
    return torch.tensor(False, device=x.device) if drawn else NotImplemented


def _made(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A known value as a constant of the traced step."""
    with _disable_current_modes():
        items = value.tolist()
    return torch.tensor(items, dtype=value.dtype, device=like.device).reshape(value.shape)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
    value = known(repeats)
    if value is None:
        return NotImplemented
    with _disable_current_modes():
        places = torch.repeat_interleave(value)
    return _made(places, repeats)


def _nonzero(x: torch.Tensor) -> Any:
    value = known(x)
    if value is None:
        return NotImplemented
    with _disable_current_modes():
        places = value.nonzero()
    return _made(places, x)


def _without_masks(op: Any) -> Callable[..., Any]:
    """An operator on indexed elements, with the places that known masks mark instead of the masks."""

    def apply(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *args: Any, **kwargs: Any) -> Any:
        places = _places(indices)
        return NotImplemented if places is None else op(x, places, *args, **kwargs)

    return apply


def _places(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
    """Indices without known masks; None if there are no such masks."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        value = known(index) if index is not None and index.dtype == torch.bool else None
        if value is None:
            places.append(index)
            continue
        assert index is not None
        with _disable_current_modes():
            columns = value.nonzero(as_tuple=True)
        places += [_made(column, index) for column in columns]
    if len(places) == len(indices) and all(a is b for a, b in zip(places, indices, strict=True)):
        return None
    return places


_OPERATORS: Table = {
    _aten._local_scalar_dense.default: _item,
    _aten.equal.default: _equal,
    _aten.lt.Scalar: _below,
    # Writes nothing; as an operator it would make what follows look written to.
    _aten.detach_.default: lambda x: x,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.nonzero.default: _nonzero,
    **{op: _without_masks(op) for op in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)},
}
"""ATen operator -> what it is where values are known; NotImplemented where they are not."""
