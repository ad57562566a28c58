"""Kernels that are as wrong as the bounds allow: every product of two FP64 matrices errs, in every element, by all that
some order of summation may err by. However products are cut and added up, the error stays below the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.kernels import threads
from roundlog.operators import Inexact, operator
from roundlog.operators.contraction import Contraction, MatMul
from roundlog.operators.convolution import _Convolution

UNIT = 2.0**-53


class Worst:
    """A product as the most hostile library has it: the exact one and all that (K - 1) additions may add to it."""

    def __init__(self, signs: Callable[[tuple[int, ...]], Any]) -> None:
        self.signs = signs
        self.calls = 0

    def __call__(self, a: Any, b: Any) -> Any:
        self.calls += 1
        a, b, terms = a.numpy(), b.numpy(), a.shape[-1]
        # 64 bits of mantissa: what is lost here is nothing beside what is added.
        exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
        magnitude = np.abs(a) @ np.abs(b)
        # One unit less, because the sum is rounded to FP64 in the end, and none at all where nothing is added.
        reach = max(terms - 2, 0) * UNIT * magnitude * (1 - 2.0**-20)
        return torch.from_numpy((exact + self.signs(magnitude.shape) * reach).astype(np.float64))


def up(shape: tuple[int, ...]) -> float:
    return 1.0


def mixed(shape: tuple[int, ...]) -> Any:
    return np.where(np.arange(np.prod(shape)).reshape(shape) % 3 == 0, 1.0, -1.0)


@pytest.fixture
def shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for three threads, however little it is."""
    monkeypatch.setattr(threads, "MIN_ELEMENTS", 1)
    torch.set_num_threads(3)


def even(*shape: int) -> torch.Tensor:
    """Numbers of one magnitude and either sign: Cauchy and Schwarz give nothing away, so the bound is as tight as it
    can be."""
    rng = np.random.default_rng(list(shape))
    signs = rng.choice([-1.0, 1.0], shape)
    return torch.from_numpy((signs * (1 + rng.random(shape) * 2.0**-9)).astype(np.float32))


def cancelling(*shape: int) -> torch.Tensor:
    """Sums of which next to nothing is left."""
    x = even(*shape)
    half = shape[-1] // 2
    x[..., half : 2 * half] = -x[..., :half]
    x[..., ::7] *= 2.0**-20
    return x


PLAIN = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
Case = tuple[str, list[torch.Tensor], dict[str, Any]]


def cases(numbers: Callable[..., torch.Tensor]) -> list[Case]:
    """Every way in which products are cut: by batches, panels of rows and of columns, and by terms, in one block and in
    several."""
    made: list[Case] = [
        ("matmul", [numbers(a, k), numbers(b, k).T], {})
        for a, k, b in ((40, 96, 9), (9, 96, 40), (5, 3200, 6), (3, 2, 3))
    ]
    made.append(("matmul", [numbers(7, 4, 600), numbers(7, 5, 600).mT], {}))
    x, w, g = numbers(3, 6, 7, 5), numbers(8, 6, 3, 3), numbers(3, 8, 7, 5)
    made += [
        ("conv2d", [x, w], PLAIN),
        ("conv2d_grad_input", [g, w], {**PLAIN, "size": (7, 5)}),
        ("conv2d_grad_weight", [g, x], {**PLAIN, "size": (3, 3)}),
        # The sums over the taps alone.
        ("conv2d_grad_input", [numbers(3, 1, 7, 5), numbers(1, 3, 3, 3)], {**PLAIN, "size": (7, 5)}),
        ("conv2d", [numbers(2, 300, 3, 3), numbers(4, 300, 3, 3)], PLAIN),
        ("conv2d_grad_input", [numbers(2, 700, 4, 4), numbers(700, 3, 3, 3)], {**PLAIN, "size": (4, 4)}),
        ("conv2d_grad_weight", [numbers(12, 3, 20, 16), numbers(12, 2, 20, 16)], {**PLAIN, "size": (3, 3)}),
    ]
    return made


def inexact(name: str) -> Inexact:
    op = operator(name)
    assert isinstance(op, Inexact)
    return op


@contextmanager
def hostile(monkeypatch: pytest.MonkeyPatch, signs: Callable[[tuple[int, ...]], Any]) -> Iterator[None]:
    worst = Worst(signs)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: worst(a, b))
        # On the CPU, tiles are added up in an order of their own, which no library decides.
        patch.delattr(MatMul, "certify")
        patch.delattr(_Convolution, "certify")
        yield
    assert worst.calls, "products are taken by something else than @: be hostile there"


def some(count: int) -> list[int]:
    return sorted(Random(count).sample(range(count), min(count, 20)))


def exactly(op: Inexact, inputs: list[torch.Tensor], attributes: dict[str, Any], chosen: list[int]) -> list[Fraction]:
    """The chosen elements by the definition of what they read, in fractions."""
    assert isinstance(op, Contraction)
    terms = op.listed([x.contiguous() for x in inputs], attributes, np.array(chosen))
    return [sum(map(Fraction, row), Fraction(0)) for row in terms.tolist()]


@pytest.mark.slow_but("cancelling")
@pytest.mark.parametrize("numbers", [even, cancelling], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("shared_out")
def test_no_error_that_a_kernel_may_make_steps_over_the_bound(
    numbers: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, inputs, attributes in cases(numbers):
        op = inexact(name)
        with hostile(monkeypatch, mixed):
            # So wide an interval that every element is marked, and tells its approximation and its bound.
            rounded, marked = op.certify(inputs, attributes, 2.0**60)
        assert marked.indices.tolist() == list(range(rounded.numel()))
        chosen = some(rounded.numel())
        for i, exact in zip(chosen, exactly(op, inputs, attributes, chosen), strict=True):
            assert abs(Fraction(marked.y[i].item()) - exact) <= Fraction(marked.d[i].item()), (name, i)
