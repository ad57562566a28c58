"""Checks of a traced graph, and what is left out of it."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import _engine_run_backward

from roundlog.capture.constants import written_by
from roundlog.capture.draws import draws
from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.lines import source_of

THREAD = (
    "the step computes in another thread, where it cannot be followed: compute everything in the thread that calls it"
)


def differentiate(loss: torch.Tensor) -> None:
    """`loss.backward()`, but that modes for functions go on in hooks and in what checkpoints compute again."""
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
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
