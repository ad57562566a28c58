"""Steps of a task as its user wrote it, by PyTorch: what a captured program has to equal. And settings of the process
while one runs, or is traced: oneDNN, threads, garbage collection, PyTorch's log."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.draws import drawn_by_torch
from roundlog.capture.errors import CaptureError, a_kind, place_of_call
from roundlog.capture.task import Task


class EagerTraining:
    """Steps on the task's own model, optimizer and scheduler, which change."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._model = plain_model(task.model)
        self._turns = task.phases()
        self._rates = [[group["lr"] for group in phase.optimizer.param_groups] for phase in self._turns]

    def step(
        self,
        step: int,
        batch: Mapping[str, torch.Tensor],
        after_backward: Callable[[], None] | None = None,
        watching: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> float:
        """Step `step` (0, 1, ...) on a batch, field name -> [batch_size, ...]; gives the loss: the sum, of several
        optimizers. after_backward: called when the gradients of one stand in `.grad`, before they are clipped.
        watching: made for every loss and its gradients, around them."""
        # The first step looks for tensors that a trace has left behind; later ones go at full speed.
        looking = _OnlyReal if step == 0 else nullcontext
        with looking():
            parts = self.task.parts_at(step, batch)
        total = 0.0
        for phase, rates in zip(self._turns, self._rates, strict=True):
            if not isinstance(phase.schedule, LRScheduler):
                for group, rate in zip(phase.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * phase.schedule(step)
            for parameter in self._model.parameters():
                parameter.grad = None
            with looking():
                for part in parts:
                    with watching():
                        with noting_backward() as called:
                            found = phase.loss(self._model, dict(part))
                        with refusing_backward(found, called):
                            # Steps are compared in FP64 too; of shorter ones, the trace says what makes them.
                            loss = self.task.share(checked_loss(phase.called("loss"), found, *_FLOATS))
                            loss.backward()
                    total += float(loss.detach())
            own = [parameter for group in phase.optimizer.param_groups for parameter in group["params"]]
            theirs = {id(parameter) for parameter in own}
            for parameter in self._model.parameters():
                if id(parameter) not in theirs:
                    parameter.grad = None
            if after_backward is not None:
                after_backward()
            if phase.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(own, phase.max_grad_norm)
            phase.optimizer.step()
            if isinstance(phase.schedule, LRScheduler) and phase.schedule.last_epoch < self.task.steps:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # schedulers of PyTorch warn of what they do themselves
                    phase.schedule.step()
        return total


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


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def checked_loss(name: str, loss: object, *dtypes: torch.dtype) -> torch.Tensor:
    """A loss, of one of these dtypes, or FP32. Raises CaptureError for one that no step can be taken with."""
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(f"the {name} is {a_kind(loss)}: return a tensor, without .item()")
    if loss.ndim != 0:
        raise CaptureError(f"the {name} has the shape {list(loss.shape)}: reduce it to a scalar")
    if loss.dtype not in (dtypes or (torch.float32,)):
        raise CaptureError(f"the {name} is {loss.dtype}: compute it in float32")
    if not loss.requires_grad:
        raise CaptureError(f"the {name} depends on no parameter that is trained: check the model and the optimizer")
    return loss


class _OnlyReal(TorchDispatchMode):
    """While this is active, nothing is computed from tensors of a trace, which have no values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            raise CaptureError(f"{LEFT_BEHIND}{place_of_call()}")
        return func(*args, **(kwargs or {}))


LEFT_BEHIND = (
    "a tensor that a former step has left is used, and capture does not see where it is kept: keep it in an attribute "
    "of the model, or a buffer, that holds a tensor of its final shape from the start"
)
"""Refusal where tensors of one step appear in another."""


def refuse_autocast(where: str, devices: Iterable[str]) -> None:
    """Raises CaptureError if autocast is on for one of these devices, which no job would know of."""
    if any(torch.is_autocast_enabled(device) for device in devices):
        raise CaptureError(
            f"torch.autocast is left on {where}: switch it off there (torch.set_autocast_enabled, or the end of its "
            '`with`), and put `with torch.autocast("cpu", dtype=torch.bfloat16):` inside the loss, around all of it'
        )


def plain_model(model: nn.Module) -> nn.Module:
    """The model itself, if it is wrapped by `torch.compile`."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


@contextmanager
def without_onednn() -> Iterator[None]:
    """Switches oneDNN off, whose recurrent layers are one operator."""
    was_enabled = torch._C._get_mkldnn_enabled()
    # torch.backends.mkldnn.flags would set other options too, and warn of them.
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


@contextmanager
def plainly() -> Iterator[None]:
    """Switches off what computes several operators as one (compiled and scripted functions, fused attention), and the
    checks of `torch.distributions`, which look at values and change nothing. Python's random numbers are drawn by
    torch."""
    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with (
            torch.compiler.set_stance("force_eager"),
            torch._dynamo.config.patch(error_on_nested_fx_trace=False),
            torch.jit.optimized_execution(False),  # type: ignore[attr-defined]
            sdpa_kernel(SDPBackend.MATH),
            drawn_by_torch(),
            _with_all_masks(),
        ):
            yield
    finally:
        Distribution.set_default_validate_args(checks)


@contextmanager
def _with_all_masks() -> Iterator[None]:
    """Has transformers keep a mask that masks nothing: it looks at a mask's values, where a program cannot."""
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_tracing", None)
    if asked is None:
        yield
        return
    masks.is_tracing = lambda tensor=None: True  # type: ignore[union-attr]
    try:
        yield
    finally:
        masks.is_tracing = asked  # type: ignore[union-attr]


@contextmanager
def noting_threads(threads: list[threading.Thread]) -> Iterator[None]:
    """Appends the threads that are started meanwhile, but for those of the engine's kernels."""
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        if not thread.name.startswith("roundlog-kernel"):
            threads.append(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def without_collection() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off, which would look again and again at all nodes that there are."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def quietly() -> Iterator[None]:
    """Silences PyTorch's log of failures of fake tensors, which it writes with tracebacks before it raises them."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled
