"""Numbers beside BF16 tensors, as PyTorch's kernels on the CPU take them: rounded to BF16 or not, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError
from torch import Tensor
from torch._ops import OpOverload

from tests.engine.capture.elementwise import Computing, states_after_a_step
from tests.engine.capture.short_kernels import (
    ELSEWHERE,
    OF_NUMBERS,
    REFUSED,
    beside_a_number,
    of_two_tensors,
    taking_numbers,
)

NUMBERS = (257, 0.999, 0.1, 1e-3, 1.7)
"""Numbers that BF16 has not."""

SIZES = (8, 32, 40)
"""Sizes of tensors: less than the loop over vectors takes, all of it, and the rest behind it."""


def operands(size: int, number: float) -> tuple[Tensor, Tensor]:
    """Two BF16 tensors, with the BF16 numbers around a number among them."""
    generator = torch.Generator().manual_seed(size)
    x, y = (torch.randn(size, generator=generator).bfloat16() * 2 for _ in range(2))
    near = torch.tensor(float(number), dtype=torch.bfloat16)
    step = near * 2.0**-7
    x[1:8:2] = torch.stack([near, near - step, near + step, -near])
    if size > 32:
        x[-4:] = x[1:8:2].flip(0)
    return x, y


def by_program(cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]]) -> list[Tensor]:
    """Values of functions, by one step of a program."""
    states = states_after_a_step(Computing(cases))
    return [states[f"buffer/y{place}"] for place in range(len(cases))]


ADDING = ("add", "sub", "rsub")
"""Kernels whose loop over vectors adds a product as it is, and whose loop over the rest rounds it first."""

ROUNDING_BETWEEN = (
    *("huber_loss", "huber_loss_backward", "xlogy", "special_xlog1py", "lerp"),
    *("sigmoid_backward", "tanh_backward"),
)
"""Kernels that round between their operations, to the next number at most."""


def agree(name: str, ours: Tensor, theirs: Tensor) -> bool:
    """Whether the numbers of a program are those of a kernel, but for what the lists above say."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    same = (ours == theirs) | ours.isnan() & theirs.isnan()
    if name in ROUNDING_BETWEEN:
        apart = (ours.double() - theirs.double()).abs()
        same |= apart <= 2.0**-7 * theirs.double().abs()
    return bool(same.all())


def without_the_rest(name: str, x: Tensor) -> Tensor:
    """Values as the loop over vectors computes them."""
    return x[: len(x) // 32 * 32] if name in ADDING else x


def name_of(op: OpOverload) -> str:
    return op._schema.name.removeprefix("aten::")


def hold_against_program(op: OpOverload, cases: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]]) -> None:
    assert op.namespace, "PyTorch keeps it when it is first asked, and a step may change no attributes"
    ours = by_program(cases)
    for (function, xs), found in zip(cases, ours, strict=True):
        theirs = function(*xs)
        name = name_of(op)
        assert agree(name, without_the_rest(name, found), without_the_rest(name, theirs)), (xs, found, theirs)


@pytest.mark.slow_but("aten.add.Tensor", "aten.pow.Scalar", "aten.hardshrink.default")
@pytest.mark.parametrize("op", OF_NUMBERS, ids=str)
def test_a_number_of_python_is_rounded_where_the_kernel_rounds_it(op: OpOverload) -> None:
    hold_against_program(
        op,
        [
            (lambda x, y, function=function, number=number: function(x, y, number), operands(size, number))
            for function in OF_NUMBERS[op]
            for number in NUMBERS
            for size in SIZES
        ],
    )


@pytest.mark.slow_but("aten.div.Tensor")
@pytest.mark.parametrize("op", [op for op in of_two_tensors() if beside_a_number(op)], ids=str)
def test_a_tensor_without_axes_is_rounded_where_the_kernel_rounds_it(op: OpOverload) -> None:
    cases = []
    for function in beside_a_number(op):
        for number in NUMBERS:
            for size in SIZES:
                x, t = operands(size, number)[0], torch.tensor(float(number))
                cases.append((function, (x, t)))
    hold_against_program(op, cases)


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_rounds_numbers_on_the_way_is_refused_by_name(name: str) -> None:
    x, y = operands(8, 0.1)
    with pytest.raises(CaptureError, match=rf"aten\.{name.partition(' ')[0]} on numbers of bfloat16 rounds between"):
        by_program([(REFUSED[name], (x, y))])


def test_every_kernel_that_takes_a_number_is_held_against_a_program() -> None:
    refused = {name.partition(" ")[0] for name in REFUSED} | {"logit_backward"}
    known = {*ELSEWHERE, *refused, *(name_of(op) for op in OF_NUMBERS)}
    # Scales of images are no operands.
    assert {name_of(op) for op in taking_numbers() if "upsample" not in str(op)} <= known
