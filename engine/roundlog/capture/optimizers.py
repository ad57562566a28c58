"""Updates of optimizers, PyTorch's as plain tensor arithmetic, so that they are captured like everything else, those of
the user's own as they are written; and learning rates by step: a factor like `LambdaLR`'s, or a scheduler of
torch.optim.lr_scheduler, as a table.

What PyTorch computes with Python floats at every step (learning rates, Adam's bias corrections) becomes a column of
the schedule table: computed once, in FP64, rounded to FP32, and from then on data."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from roundlog.arithmetic import is_short
from roundlog.capture.errors import CaptureError, reason

Factor = Callable[[int], float]

_CYCLED = ("momentum", "betas")
"""Options that OneCycleLR and CyclicLR change with the learning rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Options of one parameter group, as a schedule sets them."""

    rate: Callable[[int], float]
    options: dict[str, Callable[[int], Any]] = field(default_factory=dict)
    """Options that change: name -> value at a step."""

    def __call__(self, step: int) -> float:
        """The learning rate at a step (0, 1, ...)."""
        return self.rate(step)

    def at(self, step: int) -> dict[str, Any]:
        """Options that change, as entries of the parameter group."""
        return {"lr": self.rate(step), **{name: option(step) for name, option in self.options.items()}}

    def changing(self, steps: int) -> list[str]:
        """The entries that are not the same at all of so many steps."""
        first = self.at(0)
        return [name for name in first if any(self.at(step)[name] != first[name] for step in range(1, steps))]


def rates(optimizer: torch.optim.Optimizer, schedule: Factor | LRScheduler, steps: int) -> list[Rate]:
    """The learning rate of every parameter group at steps 0 .. steps - 1. A scheduler is one whose `step()` is called
    once after every step of the optimizer; it and the optimizer stay as they are.

    Raises CaptureError for a schedule that depends on more than the step, or that is not the optimizer's own."""
    if isinstance(schedule, LRScheduler):
        table = _table(optimizer, schedule, steps)
        return [_of_table([row[number] for row in table]) for number in range(len(optimizer.param_groups))]
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise CaptureError("the optimizer has a learning rate scheduler of its own: give that as the task's schedule")
    return [
        Rate(lambda step, rate=float(group["lr"]): rate * _value(schedule, step))  # type: ignore[misc]
        for group in optimizer.param_groups
    ]


def _value(schedule: Factor, step: int) -> float:
    try:
        return float(schedule(step))
    except Exception as error:
        raise CaptureError(f"the schedule fails at step {step} with {type(error).__name__}: {reason(error)}") from error


def _of_table(rows: list[dict[str, Any]]) -> Rate:
    changing = [name for name in rows[0] if name != "lr" and any(row[name] != rows[0][name] for row in rows)]
    return Rate(
        lambda step: float(rows[step]["lr"]),
        {name: lambda step, name=name: rows[step][name] for name in changing},  # type: ignore[misc]
    )


def _table(optimizer: torch.optim.Optimizer, schedule: LRScheduler, steps: int) -> list[list[dict[str, Any]]]:
    """[step][group]: the learning rate, and the options that may change, as the scheduler sets them."""
    name = type(schedule).__name__
    if isinstance(schedule, ReduceLROnPlateau):
        raise CaptureError(f"the schedule {name} depends on the loss: take one that depends on the step alone")
    if getattr(schedule, "optimizer", None) is not optimizer:
        raise CaptureError(f"the schedule {name} belongs to another optimizer: make it with the task's optimizer")
    # Chained schedulers have no count of their own.
    counted: Any = schedule if hasattr(schedule, "last_epoch") else vars(schedule)["_schedulers"][0]
    if counted.last_epoch != 0:
        raise CaptureError(f"the schedule {name} has already taken steps: capture with a fresh one")
    # A copy is what takes the steps; a scheduler never looks at parameters, which may be large.
    small: dict[int, Any] = {id(p): torch.zeros(()) for group in optimizer.param_groups for p in group["params"]}
    try:
        schedule = copy.deepcopy(schedule, small)
        groups = schedule.optimizer.param_groups
        options = _other_options(groups)
        table = []
        for step in range(steps):
            table.append([_changeable(group) for group in groups])
            if _other_options(groups) != options:
                raise CaptureError(
                    f"the schedule {name} changes more than learning rates and momenta at step {step}: leave the other "
                    "options as they are"
                )
            if step + 1 < steps:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of an optimizer that takes no steps
                    schedule.step()
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(f"the schedule {name} cannot be followed for {steps} steps: {reason(error)}") from error
    return table


def _changeable(group: dict[str, Any]) -> dict[str, Any]:
    momenta = {name: group[name] for name in _CYCLED if name in group}
    return {"lr": float(group["lr"]), **{k: tuple(v) if k == "betas" else v for k, v in momenta.items()}}


def _other_options(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Options that a schedule may not change. Its own notes have these names: initial_lr, min_lr, max_lr, ..."""
    return [
        {key: group[key] for key in group if key not in ("params", *_CYCLED) and not key.endswith("lr")}
        for group in groups
    ]


Tensors = Mapping[str, torch.Tensor]
Column = Callable[[int], float]
Stepped = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""(next parameter, next slots)"""


class Update(ABC):
    """The update of one parameter group."""

    def __init__(self, group: Mapping[str, Any], rate: Rate) -> None:
        self.group = group
        self.rate = rate

    @abstractmethod
    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        """The optimizer slots of one parameter, as they are before the first step."""

    @abstractmethod
    def columns(self) -> dict[str, Column]:
        """The columns of the schedule table that this group needs: FP64 value by step (0, 1, ...)."""

    @abstractmethod
    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """(next parameter, next slots) from parameter, gradient, slots and this step's schedule scalars."""

    def apply(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """The update of `step`, upwards if the group says so (`maximize`)."""
        return self.step(p, -g if self.group.get("maximize") else g, slots, row)

    def option(self, name: str, step: int) -> Any:
        """An option of the group at a step: schedules may change some."""
        changing = self.rate.options.get(name)
        return self.group[name] if changing is None else changing(step)

    def changes(self, name: str) -> bool:
        return name in self.rate.options

    def decayed(self, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """The gradient with that of the weight decay."""
        decay = float(self.group["weight_decay"])
        if is_short(p.dtype):
            return added(g, p, decay) if decay else g
        return g + decay * p if decay else g


class Own(Update):
    """The update of one parameter group of an optimizer of the user's own.

    Its `step()` is traced as it is written, with everything else that a step computes: its state becomes state of the
    program, and numbers of Python that it counts or computes with become columns of the schedule, as those of a model
    do."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def columns(self) -> dict[str, Column]:
        return {}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        raise NotImplementedError


def is_own(optimizer: object) -> bool:
    """Whether an optimizer's step is traced as it is written: neither its class nor its step are torch's."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    kind = type(optimizer)
    homes = (kind.__module__, getattr(kind.step, "__module__", ""))
    return not any(str(home).startswith("torch.") for home in homes)


def added(x: torch.Tensor, y: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    """x + factor y of short numbers, as `x.add(y, alpha=factor)` of PyTorch's on the CPU: the factor is rounded to the
    format first, and the product is not. So PyTorch's loop over vectors has it; its loop over the rest, what is left of
    a tensor's elements after the last 32 of them, rounds the product, too. factor: a number, or f32[]."""
    if not isinstance(factor, torch.Tensor):
        factor = torch.tensor(factor, dtype=torch.float32)
    return (x.float() + factor.to(x.dtype).float() * y.float()).to(x.dtype)


def zeros(p: torch.Tensor, *names: str) -> dict[str, torch.Tensor]:
    """Slots that start as zeros of the parameter's shape."""
    return {name: torch.zeros_like(p) for name in names}


class _WithMomentum(Update):
    """An update by a learning rate that may have a momentum."""

    @property
    def _has_momentum(self) -> bool:
        return bool(self.group["momentum"]) or self.changes("momentum")

    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {"lr": self.rate}
        if self.changes("momentum"):
            columns["momentum"] = lambda step: float(self.option("momentum", step))
        return columns


class SGD(_WithMomentum):
    """torch.optim.SGD: momentum, Nesterov momentum, dampening, weight decay."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "momentum") if self._has_momentum else {}

    def columns(self) -> dict[str, Column]:
        columns = super().columns()
        if self._has_momentum and self.group["dampening"]:
            # The first step of PyTorch copies the gradient into the buffer, undampened.
            columns["fresh"] = lambda step: 1.0 - float(self.group["dampening"]) if step else 1.0
        return columns

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.decayed(p, g)
        if is_short(p.dtype):
            return self._step_short(p, g, slots, row)
        if not self._has_momentum:
            return p - row["lr"] * g, {}
        momentum = row.get("momentum", self.group["momentum"])
        # The first step of PyTorch copies the gradient into the buffer: the same as starting from zeros.
        buffer = momentum * slots["momentum"] + (row["fresh"] * g if "fresh" in row else g)
        g = g + momentum * buffer if self.group["nesterov"] else buffer
        return p - row["lr"] * g, {"momentum": buffer}

    def _step_short(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """Rounded where PyTorch's operators round. g: with the weight decay."""
        if not self._has_momentum:
            return added(p, g, -row["lr"]), {}
        momentum = row.get("momentum", self.group["momentum"])
        buffer = added(slots["momentum"] * momentum, g, row.get("fresh", 1.0))
        g = added(g, buffer, momentum) if self.group["nesterov"] else buffer
        return added(p, g, -row["lr"]), {"momentum": buffer}


class RMSprop(_WithMomentum):
    """torch.optim.RMSprop (Hinton 2012), centered or not, with momentum or without."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        names = ["square_avg"]
        names += ["grad_avg"] if self.group["centered"] else []
        names += ["momentum"] if self._has_momentum else []
        return zeros(p, *names)

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g, alpha = self.decayed(p, g), float(self.group["alpha"])
        square = alpha * slots["square_avg"] + (1 - alpha) * (g * g)
        following = {"square_avg": square}
        variance = square
        if self.group["centered"]:
            mean = following["grad_avg"] = alpha * slots["grad_avg"] + (1 - alpha) * g
            # Rounding may take it below zero, where PyTorch gives NaN.
            variance = (square - mean * mean).clamp(min=0.0)
        scaled = g / (torch.sqrt(variance) + self.group["eps"])
        if self._has_momentum:
            scaled = following["momentum"] = row.get("momentum", self.group["momentum"]) * slots["momentum"] + scaled
        return p - row["lr"] * scaled, following


class Adagrad(Update):
    """torch.optim.Adagrad (Duchi, Hazan and Singer 2011)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": torch.full_like(p, float(self.group["initial_accumulator_value"]))}

    def columns(self) -> dict[str, Column]:
        return {"lr": lambda step: self.rate(step) / (1.0 + step * float(self.group["lr_decay"]))}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.decayed(p, g)
        total = slots["sum"] + g * g
        return p - row["lr"] * (g / (torch.sqrt(total) + self.group["eps"])), {"sum": total}


class Adadelta(Update):
    """torch.optim.Adadelta (Zeiler 2012)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "square_avg", "acc_delta")

    def columns(self) -> dict[str, Column]:
        return {"lr": self.rate}

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g, rho, eps = self.decayed(p, g), float(self.group["rho"]), self.group["eps"]
        square = rho * slots["square_avg"] + (1 - rho) * (g * g)
        delta = torch.sqrt(slots["acc_delta"] + eps) / torch.sqrt(square + eps) * g
        moved = rho * slots["acc_delta"] + (1 - rho) * (delta * delta)
        return p - row["lr"] * delta, {"square_avg": square, "acc_delta": moved}


class Moments(Update):
    """Two running means: of the gradient, and of its square. Weights decay by way of the gradient, or by themselves
    (`decoupled_weight_decay`; Loshchilov and Hutter 2019)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return zeros(p, "exp_avg", "exp_avg_sq")

    def columns(self) -> dict[str, Column]:
        decay = float(self.group["weight_decay"])
        columns: dict[str, Column] = {"decay": lambda step: 1.0 - self.rate(step) * decay} if self._decays_alone else {}
        if self.changes("betas"):
            for number in (0, 1):
                columns[f"beta{number + 1}"] = lambda step, n=number: self.beta(n, step)  # type: ignore[misc]
                columns[f"rest{number + 1}"] = lambda step, n=number: 1.0 - self.beta(n, step)  # type: ignore[misc]
        return columns

    def beta(self, number: int, step: int) -> float:
        return float(self.option("betas", step)[number])

    def bias(self, number: int, step: int) -> float:
        """Sum of a running mean's weights after a step."""
        return float(1.0 - self.beta(number, step) ** (step + 1))

    def weights(self, number: int, row: Tensors) -> tuple[Any, Any]:
        """Weights of a running mean and of its next item."""
        if self.changes("betas"):
            return row[f"beta{number + 1}"], row[f"rest{number + 1}"]
        beta = float(self.group["betas"][number])
        return beta, 1 - beta

    def moments(self, g: torch.Tensor, slots: Tensors, row: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        keep, add = self.weights(0, row)
        m = keep * slots["exp_avg"] + add * g
        keep, add = self.weights(1, row)
        return m, keep * slots["exp_avg_sq"] + add * (g * g)

    @property
    def _decays_alone(self) -> bool:
        """Whether weights decay, and not by way of the gradient."""
        return bool(self.group["weight_decay"] and self.group.get("decoupled_weight_decay"))

    def gradient(self, p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return g if self._decays_alone else self.decayed(p, g)

    def shrunk(self, p: torch.Tensor, row: Tensors) -> torch.Tensor:
        return p * row["decay"] if self._decays_alone else p


class Adam(Moments):
    """torch.optim.Adam (Kingma and Ba 2015) and torch.optim.AdamW, with amsgrad (Reddi, Kale and Kumar 2018)."""

    def slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {**super().slots(p), **(zeros(p, "max_exp_avg_sq") if self.group["amsgrad"] else {})}

    def columns(self) -> dict[str, Column]:
        return {
            **super().columns(),
            "step_size": lambda step: self.rate(step) / self.bias(0, step),
            "bias2_sqrt": lambda step: self.bias(1, step) ** 0.5,
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        if is_short(p.dtype):
            return self._step_short(p, g, slots, row)
        m, v = self.moments(self.gradient(p, g), slots, row)
        following = {"exp_avg": m, "exp_avg_sq": v}
        if self.group["amsgrad"]:
            v = following["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        return self.shrunk(p, row) - row["step_size"] * (m / denominator), following

    def _step_short(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        """Rounded where PyTorch's operators round: `lerp_`, `mul_`, `addcmul_`, `sqrt`, `div`, `add_`, `addcdiv_`."""
        dtype, p = p.dtype, self.shrunk(p, row)
        g, m = self.gradient(p, g).float(), slots["exp_avg"].float()
        (_, add), (keep, of_square) = self.weights(0, row), self.weights(1, row)
        m = (m + add * (g - m)).to(dtype)
        v = ((slots["exp_avg_sq"] * keep).float() + of_square * g * g).to(dtype)
        following = {"exp_avg": m, "exp_avg_sq": v}
        if self.group["amsgrad"]:
            v = following["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        denominator = torch.sqrt(v) / row["bias2_sqrt"] + self.group["eps"]
        return (p.float() - row["step_size"] * m.float() / denominator.float()).to(dtype), following


class NAdam(Moments):
    """torch.optim.NAdam (Dozat 2016): Nesterov momentum, whose weight grows from step to step."""

    def __init__(self, group: Mapping[str, Any], rate: Rate) -> None:
        super().__init__(group, rate)
        self._products = [1.0]

    def _weight(self, step: int, ahead: int = 0) -> float:
        power = (step + 1 + ahead) * self.group["momentum_decay"]
        return self.beta(0, step) * (1.0 - 0.5 * float(0.96**power))

    def _product(self, step: int) -> float:
        """Product of the weights of all steps so far."""
        while len(self._products) <= step + 1:
            self._products.append(self._products[-1] * self._weight(len(self._products) - 1))
        return self._products[step + 1]

    def columns(self) -> dict[str, Column]:
        def of_mean(step: int) -> float:
            ahead = self._weight(step, 1)
            return self.rate(step) * ahead / (1.0 - self._product(step) * ahead)

        return {
            **super().columns(),
            "bias2": lambda step: self.bias(1, step),
            "of_gradient": lambda step: self.rate(step) * (1.0 - self._weight(step)) / (1.0 - self._product(step)),
            "of_mean": of_mean,
        }

    def step(self, p: torch.Tensor, g: torch.Tensor, slots: Tensors, row: Tensors) -> Stepped:
        g = self.gradient(p, g)
        m, v = self.moments(g, slots, row)
        denominator = torch.sqrt(v / row["bias2"]) + self.group["eps"]
        p = self.shrunk(p, row) - row["of_gradient"] * (g / denominator)
        return p - row["of_mean"] * (m / denominator), {"exp_avg": m, "exp_avg_sq": v}


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
    torch.optim.RMSprop: RMSprop,
    torch.optim.Adagrad: Adagrad,
    torch.optim.Adadelta: Adadelta,
}


def updates(optimizer: torch.optim.Optimizer, schedule: Factor | LRScheduler, steps: int) -> list[Update]:
    """One update per parameter group, for so many steps. Raises CaptureError for an optimizer, option or schedule that
    is not supported."""
    name = type(optimizer).__name__
    kind = Own if is_own(optimizer) else _UPDATES.get(type(optimizer))
    if kind is None:
        known = ", ".join(f"torch.optim.{cls.__name__}" for cls in _UPDATES)
        raise CaptureError(
            f"the optimizer {name} is not supported: use one of {known}, or write its step in a subclass of "
            "torch.optim.Optimizer whose __init__ makes the state, with counts in tensors"
        )
    refuse_hooks(optimizer)
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


def refuse_hooks(optimizer: Any) -> None:
    """Raises CaptureError if anything runs around the optimizer's steps: a program would not run it."""
    name = type(optimizer).__name__
    for method in ("step", "zero_grad"):
        own = vars(optimizer).get(method)
        if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):  # as schedulers of PyTorch do
            raise CaptureError(
                f"{name}.{method} has been replaced, but a program takes the step of {name} itself: undo it"
            )
    for when, own, shared in (
        ("pre", getattr(optimizer, "_optimizer_step_pre_hooks", {}), _global_optimizer_pre_hooks),
        ("post", getattr(optimizer, "_optimizer_step_post_hooks", {}), _global_optimizer_post_hooks),
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
