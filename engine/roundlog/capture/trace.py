"""One training step, traced to ATen operators by make_fx with fake tensors: nothing is computed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundlog.capture.decompositions import decompositions
from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import SourceLines, place_of_error
from roundlog.capture.optimizer import Update, clip_factor, updates
from roundlog.capture.task import Loss, Task, micro_batches
from roundlog.capture.untraceable import reason

Named = dict[str, torch.Tensor]


class _WithLoss(nn.Module):
    """The model and its loss as one module, so that functional_call reaches every use of the model."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.loss(self.model, batch)


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced step. The graph's placeholders are the leaves of (states, columns, batch) in this order; its outputs
    are the loss and the next states, in the order of `states`."""

    graph: fx.GraphModule
    states: Named
    """Initial state: parameters, buffers, optimizer slots, in program order."""
    columns: dict[str, Any]
    """Schedule columns: name -> function of the step."""


def trace(task: Task) -> Trace:
    """Trace one step of the task. Raises CaptureError where PyTorch cannot trace it (control flow that depends on
    values, most often), naming the user's line."""
    parameters = {f"parameter/{k}": v.detach() for k, v in task.model.named_parameters()}
    buffers = {f"buffer/{k}": v.detach() for k, v in task.model.named_buffers()}
    trainable, groups = _groups(task)
    slots: Named = {}
    columns: dict[str, Any] = {}
    for number, group in enumerate(groups):
        columns.update({f"{number}/{name}": column for name, column in group.columns().items()})
    for name, number in trainable.items():
        for slot, tensor in groups[number].slots(parameters[f"parameter/{name}"]).items():
            slots[f"slot/{name}/{slot}"] = tensor
    states = {**parameters, **buffers, **slots}
    module = _WithLoss(task.model, task.loss)
    lines = SourceLines()

    def step(states: Named, row: Named, batch: Named) -> tuple[torch.Tensor, list[torch.Tensor]]:
        leaves = {name: states[f"parameter/{name}"].requires_grad_() for name in trainable}
        called = {
            f"model.{kind_and_name.partition('/')[2]}": tensor
            for kind_and_name, tensor in states.items()
            if not kind_and_name.startswith("slot/")
        }
        losses: list[torch.Tensor] = []
        gradients: Named = {}
        with lines, lines.all_from("micro_batches"):
            parts = micro_batches(batch, task.micro_batches)
        for part in parts:
            # functional_call writes updated buffers back into the mapping that it is given.
            with lines:
                loss = _checked(torch.func.functional_call(module, called, (part,)))
            with lines, lines.all_from("micro_batches"):
                loss = loss if len(parts) == 1 else loss / len(parts)
            with lines, lines.backward_of(loss):
                found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            losses.append(loss.detach())
            with lines, lines.all_from("micro_batches"):
                for name, gradient in zip(leaves, found, strict=True):
                    if gradient is not None:
                        gradients[name] = gradients[name] + gradient if name in gradients else gradient
        factor = None
        if task.max_grad_norm is not None:
            with torch.no_grad(), lines, lines.all_from("clip_grad_norm_"):
                factor = clip_factor(gradients.values(), task.max_grad_norm)
        following = dict(states)
        following.update({name: called[f"model.{name.partition('/')[2]}"] for name in buffers})
        for name, number in trainable.items():
            if name not in gradients:
                continue
            prefix = f"slot/{name}/"
            own = {slot.removeprefix(prefix): states[slot] for slot in slots if slot.startswith(prefix)}
            scalars = {column: row[f"{number}/{column}"] for column in groups[number].columns()}
            with torch.no_grad(), lines, lines.all_from(type(task.optimizer).__name__):
                gradient = gradients[name] if factor is None else gradients[name] * factor
                updated, own = groups[number].apply(states[f"parameter/{name}"], gradient, own, scalars)
            following[f"parameter/{name}"] = updated
            following.update({prefix + slot: tensor for slot, tensor in own.items()})
        with lines, lines.all_from("micro_batches"):
            mean_loss = sum(losses[1:], losses[0])
        return mean_loss, [following[name].detach() for name in states]

    row = {name: torch.zeros(()) for name in columns}
    batch = {name: field[: task.batch_size] for name, field in task.dataset.items()}
    try:
        with preserve_node_meta(), sdpa_kernel(SDPBackend.MATH), _plainly():
            # Tensors that the user's functions refer to (class weights, say) come in as constants.
            graph = make_fx(step, decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(
                states, row, batch
            )
    except CaptureError:
        raise
    except (GuardOnDataDependentSymNode, DataDependentOutputException) as error:
        raise CaptureError(
            f"the step's control flow depends on values that it computes{place_of_error(error)}: "
            "decide by torch.where, or switch off the option of the model that asks for this"
        ) from error
    except Exception as error:
        raise CaptureError(f"PyTorch cannot trace this step: {reason(error)}{place_of_error(error)}") from error
    return Trace(graph=graph, states=states, columns=columns)


def _checked(loss: object) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(f"the loss is a {type(loss).__name__}: return a tensor, without .item()")
    if loss.ndim != 0:
        raise CaptureError(f"the loss has the shape {list(loss.shape)}: reduce it to a scalar")
    if loss.dtype != torch.float32:
        raise CaptureError(f"the loss is {loss.dtype}: compute it in float32")
    if not loss.requires_grad:
        raise CaptureError("the loss depends on no parameter that is trained: check the model and the optimizer")
    return loss


@contextmanager
def _plainly() -> Iterator[None]:
    """Without oneDNN, whose recurrent layers are one operator, and without PyTorch's log of the failures of fake
    tensors, which it writes, with tracebacks, before it raises them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, was_enabled = logger.disabled, torch._C._get_mkldnn_enabled()
    logger.disabled = True
    # torch.backends.mkldnn.flags would set other options too, and warn of them.
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        logger.disabled = was_disabled
        torch._C._set_mkldnn_enabled(was_enabled)


def _groups(task: Task) -> tuple[dict[str, int], list[Update]]:
    """(name of every parameter that is trained -> its group, the groups)."""
    groups = updates(task.optimizer, task.schedule, task.steps)
    number_of = {id(p): number for number, group in enumerate(groups) for p in group.group["params"]}
    named = dict(task.model.named_parameters())
    strangers = len(number_of) - sum(id(p) in number_of for p in named.values())
    if strangers:
        raise CaptureError(f"the optimizer holds {strangers} parameters that are not the model's")
    trainable = {name: number_of[id(p)] for name, p in named.items() if p.requires_grad and id(p) in number_of}
    if not trainable:
        raise CaptureError("nothing is trained: no parameter of the optimizer requires a gradient")
    outside = [name for name, p in named.items() if p.requires_grad and name not in trainable]
    if outside and task.max_grad_norm is not None:
        # clip_grad_norm_ would count its gradient, which optimizer.zero_grad() never clears.
        raise CaptureError(
            f"{outside[0]} requires a gradient but is in no group of the optimizer, so that the norm to clip is not "
            "clear: freeze it with .requires_grad_(False)"
        )
    return trainable, groups
