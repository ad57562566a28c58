"""Optimizer updates as plain tensor arithmetic, so that they are captured like everything else.

What PyTorch computes with Python floats at every step (learning rates, Adam's bias corrections) becomes a column of
the schedule table: computed once, in FP64, rounded to FP32, and from then on data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError
from roundlog.capture.optimizers.adam import Adafactor, Adam, Adamax, NAdam, RAdam
from roundlog.capture.optimizers.sgd import ASGD, SGD, Adadelta, Adagrad, RMSprop, Rprop
from roundlog.capture.optimizers.update import Factor, Own, Rate, Update, is_own, rates


def clip_factor(gradients: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Factor by which clipping multiplies every gradient: min(1, max_norm / (norm + 1e-6)), norm being the Euclidean
    one of all of them together, as torch.nn.utils.clip_grad_norm_ does it (Pascanu, Mikolov, Bengio 2013)."""
    gradients = list(gradients)
    if any(is_short(g.dtype) for g in gradients):
        # Norms of short numbers are short themselves.
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        factor: torch.Tensor = ((norm + 1e-6).reciprocal() * max_norm).clamp(max=1.0)
        return factor
    squares = torch.stack([(g * g).sum() for g in gradients])
    return (max_norm / (torch.sqrt(squares.sum()) + 1e-6)).clamp(max=1.0)


_UPDATES: dict[type, type[Update]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: Adam,
    torch.optim.NAdam: NAdam,
    torch.optim.RAdam: RAdam,
    torch.optim.Adamax: Adamax,
    torch.optim.RMSprop: RMSprop,
    torch.optim.Adagrad: Adagrad,
    torch.optim.Adadelta: Adadelta,
    torch.optim.Adafactor: Adafactor,
    torch.optim.ASGD: ASGD,
    torch.optim.Rprop: Rprop,
}


def updates(optimizer: torch.optim.Optimizer, schedule: Factor | LRScheduler, steps: int) -> list[Update]:
    """One update per parameter group, for so many steps. Raises CaptureError for an optimizer, option or schedule that
    is not supported."""
    name = type(optimizer).__name__
    kind = Own if is_own(optimizer) else _UPDATES.get(type(optimizer))
    if kind is None:
        known = ", ".join(f"torch.optim.{cls.__name__}" for cls in _UPDATES)
        iterates = type(optimizer) is torch.optim.Muon
        why = "iterates in bfloat16, which is not followed yet" if iterates else "is not supported"
        raise CaptureError(f"the optimizer {name} {why}: use one of {known}")
    _check_hooks(optimizer, name)
    if kind is Own and any(type(group.get("lr")) not in (int, float) for group in optimizer.param_groups):
        raise CaptureError(
            f"the optimizer {name} has no number lr in its param_groups: give it one, as torch.optim does"
        )
    # Adagrad has a state before its first step.
    if kind is not Own and any(float(state.get("step", 1)) for state in optimizer.state.values()):
        raise CaptureError("the optimizer has already taken steps: capture with a fresh one")
    if kind not in (Own, SGD, Adam) and any(
        is_short(p.dtype) for group in optimizer.param_groups for p in group["params"]
    ):
        raise CaptureError(
            f"the optimizer {name} steps parameters of fewer than 32 bits, which is not followed: keep them in float32 "
            "and compute under torch.autocast, or use torch.optim.SGD, Adam or AdamW"
        )
    for group in optimizer.param_groups:
        if group.get("fused") and kind is not Own and any(is_short(p.dtype) for p in group["params"]):
            raise CaptureError(
                f"{name} steps parameters of fewer than 32 bits by a fused kernel: give it fused=False "
                '(TrainingArguments.optim="adamw_torch")'
            )
        if group.get("differentiable"):
            raise CaptureError(f"{name}'s option differentiable is not supported: leave it off")
    return [
        kind(dict(group), _of_own(name, rate) if kind is Own else rate)
        for group, rate in zip(optimizer.param_groups, rates(optimizer, schedule, steps), strict=True)
    ]


def _of_own(name: str, rate: Rate) -> Rate:
    """The rate of an optimizer of the user's. Raises CaptureError for a schedule that changes more."""
    if rate.options:
        raise CaptureError(
            f"the schedule changes {min(rate.options)} of the optimizer {name}, and only lr can be followed in an "
            "optimizer of your own: take a schedule that changes learning rates (cycle_momentum=False)"
        )
    return rate


def _check_hooks(optimizer: Any, name: str) -> None:
    """Raises CaptureError if anything runs around the optimizer's steps: a program would not run it."""
    for method in ("step", "zero_grad"):
        own = vars(optimizer).get(method)
        if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):  # as schedulers of PyTorch do
            raise CaptureError(
                f"{name}.{method} has been replaced, but a program takes the step of {name} itself: undo it"
            )
    for when, own, shared in (
        ("pre", optimizer._optimizer_step_pre_hooks, _global_optimizer_pre_hooks),
        ("post", optimizer._optimizer_step_post_hooks, _global_optimizer_post_hooks),
    ):
        for hooks, register in (
            (own, f"{name}.register_step_{when}_hook"),
            (shared, f"register_optimizer_step_{when}_hook"),
        ):
            for hook in hooks.values():
                called = getattr(hook, "__name__", type(hook).__name__)
                raise CaptureError(
                    f"the hook {called} of {register} runs at every step, but not in a program: remove it by its handle"
                )
