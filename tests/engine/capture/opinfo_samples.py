"""PyTorch's own table of operators and samples of their arguments, each as one captured step."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from roundlog.capture import CaptureError
from roundlog.execution import StoppedError
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from tests.engine.capture.elementwise import states_after_a_step

RELATIVE = 1e-4
"""Error that is allowed, as a part of the largest element, beside a few times PyTorch's own in FP32."""

TIMES_PYTORCH = 10

RANDOM = re.compile(
    r"dropout|bernoulli|multinomial|(^|[._])normal($|[._])|rand|uniform|exponential|cauchy|geometric|rrelu|empty|multi_head"
)
"""Names of operators whose values nobody can compare, since they are random or never written."""

BY_CHOICE = re.compile(
    r"(^|[._])(svd|svd_lowrank|eig|eigh|qr|lu|lu_factor|pca_lowrank|ldl_factor|householder_product|ormqr|polar)"
)
"""Names of operators whose values are not unique."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    """close, refused, stopped (not a finite number in the step), impossible (for PyTorch too), wrong or failed."""
    text: str = ""


class OneOperator(nn.Module):
    """A weight is added to the input, so that its gradient shows; what the operator gives stays in a buffer."""

    def __init__(self, op: Any, sample: Any, dtype: torch.dtype) -> None:
        super().__init__()
        cast = lambda x: x.detach().to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x  # noqa: E731
        self.op = op
        self.input, self.arguments, self.options = tree_map(
            cast, (sample.input, list(sample.args), dict(sample.kwargs))
        )
        self.dtype = dtype
        first = next((x for x in tree_leaves(self.input) if _is_float(x)), torch.zeros((), dtype=dtype))
        self.weight = nn.Parameter(torch.zeros(first.shape, dtype=dtype))
        self.register_buffer("value", torch.zeros(0, dtype=dtype))
        with torch.no_grad():
            self.value = torch.zeros_like(self.outputs())

    def outputs(self) -> Tensor:
        """All numbers that the operator gives."""
        found = iter([True])
        x = tree_map(lambda x: x + self.weight if _is_float(x) and next(found, False) else x, self.input)
        if not any(_is_float(leaf) for leaf in tree_leaves(self.input)):
            x = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, self.input)
        result = self.op(x, *self.arguments, **self.options)
        parts = [y.reshape(-1) for y in tree_leaves(result) if isinstance(y, Tensor)]
        parts = [y.to(self.dtype) for y in parts if not y.is_complex()]
        return torch.cat([self.weight.sum().reshape(1) * 0, *parts])

    def forward(self) -> Tensor:
        y = self.outputs()
        self.value.copy_(y.detach())
        return (y * (torch.arange(len(y), dtype=self.dtype) % 5 + 1)).sum()


def _drops(sample: Any) -> bool:
    """Whether arguments ask for dropout."""
    named = sum(
        value for name, value in sample.kwargs.items() if name.startswith("dropout") and isinstance(value, float)
    )
    return bool(named)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64)


def reference(op: Any, sample: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values, gradient) by PyTorch."""
    model = OneOperator(op, sample, dtype)
    model().backward()
    assert model.weight.grad is not None
    return model.value.detach(), model.weight.grad


def one_step(model: OneOperator) -> tuple[Tensor, Tensor]:
    """(values, gradient) by a program."""
    states = states_after_a_step(model)
    return states["buffer/value"], states["slot/weight/momentum"]


def outcome(op: Any, sample: Any) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exact = reference(op, sample, torch.float64)
            plain = reference(op, sample, torch.float32)
        except Exception as error:
            return Outcome("impossible", str(error)[:100])
        try:
            ours = one_step(OneOperator(op, sample, torch.float32))
        except CaptureError as error:
            return refused(str(error))
        except StoppedError as error:
            finite = all(bool(x.isfinite().all()) for x in (*exact, *plain))
            return Outcome("stopped", ("although all is finite: " if finite else "") + str(error)[:150])
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {error}"[:300])
    if RANDOM.search(op.name) or BY_CHOICE.search(op.name) or _drops(sample):
        return Outcome("close", "not compared")
    for what, found, right, other in zip(("values", "gradient"), ours, exact, plain, strict=True):
        wrong = _difference(found.double(), right.double(), other.double())
        if wrong:
            return Outcome("wrong", f"{what}: {wrong}")
    return Outcome("close")


def refused(message: str) -> Outcome:
    """One sentence with an operator's name, or what PyTorch cannot trace, and the line; no path of a machine."""
    good = re.match(
        r"(the operator \S+ \(at |aten\.\S+ \(at |PyTorch cannot trace this step: |the step's control flow depends)",
        message,
    )
    if "\n" in message or "/" + "site-packages" in message or not good or "(at " not in message:
        return Outcome("failed", f"refused badly: {message}"[:300])
    return Outcome("refused", message)


def _difference(found: Tensor, right: Tensor, other: Tensor) -> str:
    if not right.numel():
        return ""
    finite = right.isfinite()
    if not torch.equal(finite & other.isfinite(), found.isfinite() & finite & other.isfinite()):
        return f"not finite where PyTorch's are: {found[:6].tolist()}"
    found, right, other = (x[finite & other.isfinite()] for x in (found, right, other))
    if not right.numel():
        return ""
    error, theirs = float((found - right).abs().max()), float((other - right).abs().max())
    if error <= RELATIVE * float(right.abs().max()) + TIMES_PYTORCH * theirs + 1e-30:
        return ""
    return f"{error:.3g} apart, PyTorch {theirs:.3g}, of {float(right.abs().max()):.3g}"


def samples(each: int, part: int = 0, parts: int = 1) -> Iterator[tuple[str, Any, Any]]:
    """(name, operator, sample): up to so many samples of every `parts`-th operator."""
    for number, op in enumerate(op_db):
        if number % parts != part or torch.float32 not in op.dtypes:
            continue
        torch.manual_seed(0)
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        count = 0
        generated = iter(op.sample_inputs("cpu", torch.float32, requires_grad=False))
        while count < each:
            try:
                sample = next(generated, None)
            except Exception:  # a generator of PyTorch's that needs what is not installed
                break
            if sample is None:
                break
            count += 1
            if all(
                x.numel() <= 20_000
                for x in tree_leaves((sample.input, sample.args, sample.kwargs))
                if isinstance(x, Tensor)
            ):
                yield name, op, sample
