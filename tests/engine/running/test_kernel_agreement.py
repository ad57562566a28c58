"""One result of one of PyTorch's kernels: what rounding explains is let pass, and nothing else, beside masks and for
few numbers, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from roundlog.training.kernel_agreement import (
    KernelArguments,
    KernelInvocation,
    agree,
    agree_on_change,
    agree_on_order,
    agree_on_state,
    agrees_with_kernel,
)
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
BF16 = torch.bfloat16
MASKS = (-1e4, -1e9, "min", -torch.inf)


def is_let_pass(ours: Tensor, theirs: Tensor, func: Any, *args: Any, **kwargs: Any) -> bool:
    call = KernelInvocation(func, args, kwargs)
    return agree(ours, theirs, call) or agrees_with_kernel(ours, theirs, 0, call)


def masked(value: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scores, and a mask of zeros and of a value."""
    mask = torch.zeros(4, 16, dtype=dtype)
    mask[:, 8:] = torch.finfo(dtype).min if value == "min" else value
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).to(dtype), mask


def test_only_equal_numbers_may_be_in_another_order() -> None:
    x = torch.tensor([3, 1, 3, 2])
    right = torch.tensor([1, 3, 0, 2])
    call = KernelInvocation(aten.sort.default, (x,), {})
    assert agree_on_order(torch.tensor([1, 3, 2, 0]), right, call)
    for wrong in ([3, 1, 0, 2], [1, 3, 0, 0], [1, 0, 3, 2]):
        assert not agree_on_order(torch.tensor(wrong), right, call), wrong
    stable = KernelInvocation(aten.sort.stable, (x,), {"stable": True})
    assert not agree_on_order(torch.tensor([1, 3, 2, 0]), right, stable)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_topk_has_an_order_if_it_was_asked_for_one(is_sorted: bool) -> None:
    x = torch.tensor([[5.0, 4.0, 4.0, 1.0]], dtype=BF16)
    call = KernelInvocation(aten.topk.default, (x, 2), {"sorted": is_sorted})
    first = torch.tensor([[0, 1]])
    assert agree_on_order(torch.tensor([[0, 2]]), first, call)
    assert agree_on_order(torch.tensor([[2, 0]]), first, call) != is_sorted
    assert agree_on_order(x.gather(1, torch.tensor([[2, 0]])), x.gather(1, first), call) != is_sorted
    for wrong in ([[0, 3]], [[0, 0]], [[1, 2]]):
        assert not agree_on_order(torch.tensor(wrong), first, call), wrong


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("value", MASKS)
def test_an_error_beside_a_mask_is_noticed(value: Any, dtype: torch.dtype) -> None:
    scores, mask = masked(value, dtype)
    theirs = scores + mask
    assert is_let_pass(theirs.clone(), theirs, aten.add.Tensor, scores, mask)
    for error in (5.0, -5.0, 0.1):
        ours = theirs + torch.where(mask == 0, error, 0.0).to(dtype)
        assert not is_let_pass(ours, theirs, aten.add.Tensor, scores, mask)
    one = theirs.clone()
    one[0, 0] += 5.0
    assert not is_let_pass(one, theirs, aten.add.Tensor, scores, mask)
    assert not agree(one, theirs)


@pytest.mark.parametrize("value", MASKS[:3])
def test_an_error_in_a_logarithm_of_shares_beside_a_mask_is_noticed(value: Any) -> None:
    scores, mask = masked(value, torch.float32)
    given = (scores + mask, 1, False)
    theirs = aten._log_softmax.default(*given)
    ours = theirs * (1 - 2.0**-22)
    assert is_let_pass(ours, theirs, aten._log_softmax.default, *given)
    assert not is_let_pass(theirs + torch.where(mask == 0, 0.01, 0.0), theirs, aten._log_softmax.default, *given)


def test_a_base_that_the_kernel_does_not_round_so_is_noticed() -> None:
    """PyTorch rounds 0.999 to 1 in BF16."""
    x = torch.linspace(1, 300, 64).to(BF16)
    theirs = torch.pow(0.999, x)
    assert bool((theirs == 1).all())
    assert not is_let_pass(torch.pow(0.999, x.float()).to(BF16), theirs, aten.pow.Scalar, 0.999, x)
    assert is_let_pass(torch.ones(64, dtype=BF16), theirs, aten.pow.Scalar, 0.999, x)


@pytest.mark.parametrize("count", [1, 8, 31, 75])
def test_an_optimizers_step_is_let_pass_but_for_its_sign_and_size(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for _ in range(100):
        p, g = (torch.randn(count, generator=generator).to(BF16) for _ in range(2))
        ours = (p.float() - torch.tensor(0.1).to(BF16).float() * g.float()).to(BF16)
        theirs = p.clone().add_(g, alpha=-0.1)
        before = p.double()
        assert agree_on_change(ours.double() - before, theirs.double() - before, p)
        moved = theirs.double() - before
        assert not moved.any() or not agree_on_change(-moved, moved, p)
        if float((moved / before).abs().max()) > 0.02:  # a difference of more than an ulp
            assert not agree_on_change(2 * moved, moved, p)


def test_one_number_that_steps_the_wrong_way_is_noticed() -> None:
    p = torch.tensor([0.1]).to(BF16)
    assert not agree_on_change(torch.tensor([0.0005]).double(), torch.tensor([-0.0004]).double(), p)
    assert agree_on_change(torch.tensor([-0.0004]).double(), torch.tensor([-0.0004]).double(), p)


def test_statistics_of_batch_norm_are_let_pass_but_for_their_momentum() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = torch.randn(5, 24, generator=generator).to(BF16)
        mean, variance = torch.randn(24, generator=generator).to(BF16), torch.rand(24, generator=generator).to(BF16)
        for number, new in enumerate((x.double().mean(0), x.double().var(0))):
            theirs = [mean.clone(), variance.clone()]
            torch.native_batch_norm(x, None, None, *theirs, True, 0.1, 1e-5)
            before = (mean, variance)[number]
            for momentum, is_right in ((0.1, True), (0.15, False)):
                ours = (momentum * new + (1 - momentum) * before.double()).to(BF16)
                assert agree_on_state(ours, theirs[number], before) is is_right


def test_arguments_are_noted_as_they_were_before_a_kernel_writes_into_them() -> None:
    noted: list[Any] = []
    written: list[Any] = []
    x, y = torch.ones(3), torch.ones(3)
    with KernelArguments(lambda call, func, args, kwargs, given: noted.append((args, kwargs, given)), written.extend):
        x.add_(y, alpha=2)
    ((args, kwargs, given),) = noted
    assert [one is x for one in written] == [True]
    assert args[0].tolist() == [1, 1, 1] and kwargs == {"alpha": 2} and given[0].tolist() == [3, 3, 3]


def cancelling(rows: int, columns: int = 4) -> Tensor:
    """FP32 rows whose exact sums are less than what FP32 rounds by on the way."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(7))
    x[-1] = -x[:-1].double().sum(0).float()
    return x


def one_by_one(x: Tensor) -> Tensor:
    """The sums of rows in FP32, from the last one on."""
    total = torch.zeros_like(x[0])
    for row in x.flip(0):
        total = total + row
    return total


@pytest.mark.parametrize("func", [aten.sum.dim_IntList, aten.mean.dim])
def test_sums_that_cancel_wholly_may_be_what_rounding_leaves(func: Any) -> None:
    x = cancelling(1_000)
    exact, divisor = x.double().sum(0), 1_000 if func is aten.mean.dim else 1
    other_order = one_by_one(x)
    assert float((other_order.double() - exact).abs().max()) > 1e-5 * float(exact.abs().max())
    assert is_let_pass((exact / divisor).float(), other_order / divisor, func, x, [0])
    wrong = (exact + 1e-3 * x.double().abs().sum(0)) / divisor
    assert not is_let_pass(wrong.float(), other_order / divisor, func, x, [0])
    assert not is_let_pass((exact / divisor).float(), (other_order + x[0]) / divisor, func, x, [0])


@pytest.mark.parametrize("rows", [3, 4, 6])
def test_all_of_many_short_sums_that_cancel_may_be_what_rounding_leaves(rows: int) -> None:
    x = cancelling(rows, 10_000)
    assert is_let_pass(x.double().sum(0).float(), one_by_one(x), aten.sum.dim_IntList, x, [0])


def test_means_that_a_norm_takes_of_normed_numbers_may_be_what_rounding_leaves() -> None:
    x = cancelling(1_000).T.contiguous()
    exact = x.double().mean(1, keepdim=True)
    call = KernelInvocation(aten.native_layer_norm.default, (x, [1_000], None, None, 1e-5), {})
    other_order = one_by_one(x.T).unsqueeze(1) / 1_000
    assert not agree(exact.float(), other_order, call)
    assert agrees_with_kernel(exact.float(), other_order, 1, call)
    assert not agrees_with_kernel((exact + 1e-3).float(), other_order, 1, call)
    assert not agrees_with_kernel(exact.float(), other_order + 1e-3, 1, call)


def test_gradients_of_softmax_that_cancel_may_be_what_rounding_leaves() -> None:
    generator = torch.Generator().manual_seed(1)
    out = torch.randn(8, 16, generator=generator).softmax(1).to(BF16)
    gradient = (1 + torch.randn(8, 1, generator=generator).to(BF16)).expand(8, 16).contiguous()
    wide, y = gradient.float(), out.float()
    ours = (y * (wide - (wide * y).sum(1, keepdim=True))).to(BF16)
    last_bits = wide * (1 + 2.0**-23)
    theirs = (y * (wide - (last_bits * y).sum(1, keepdim=True))).to(BF16)
    func, given = aten._softmax_backward_data.default, (gradient, out, 1, BF16)
    assert is_let_pass(ours, theirs, func, *given)
    assert not is_let_pass((ours.float() + 1e-3 * y).to(BF16), theirs, func, *given)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_what_is_steep_or_jumps_has_no_room_for_last_bits(dtype: torch.dtype) -> None:
    p, target = torch.tensor([1.0, 0.5, 0.25], dtype=dtype), torch.zeros(3, dtype=dtype)
    right = F.binary_cross_entropy(p, target, reduction="none")
    wrong = right * torch.tensor([0.5, 1.0, 1.0], dtype=dtype)
    assert is_let_pass(right, right, aten.binary_cross_entropy.default, p, target, None, 0)
    assert not is_let_pass(wrong, right, aten.binary_cross_entropy.default, p, target, None, 0)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1] = torch.finfo(dtype).min
    wrong = x.softmax(1)
    wrong[1] = 0.0
    assert not is_let_pass(wrong, x.softmax(1), aten._softmax.default, x, 1, False)


def test_products_of_bf16_may_take_subnormal_numbers_for_zero() -> None:
    x, y = torch.full((2, 3), 2.0**-64, dtype=BF16), torch.full((3, 2), 2.0**-65, dtype=BF16)
    ours = (x.double() @ y.double()).to(BF16)
    assert 0 < float(ours.max()) < torch.finfo(BF16).tiny
    assert is_let_pass(ours, torch.zeros_like(ours), aten.mm.default, x, y)
    assert not is_let_pass(2 * ours, torch.zeros_like(ours), aten.mm.default, x, y)
    assert not is_let_pass(ours, torch.zeros_like(ours), aten.mul.Tensor, ours, torch.ones_like(ours))
    assert not is_let_pass(ours * 2.0**15, torch.zeros_like(ours), aten.mm.default, x, y * 2.0**15)
