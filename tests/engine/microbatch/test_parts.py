"""Sums over the batch taken part by part: the bound of the whole, and the same bits, whatever the parts."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from roundlog.execution import NonFiniteError, slicing
from roundlog.execution.slicing import ranges
from roundlog.operators import Summation, operator
from roundlog.operators import summation as terms
from roundlog.operators.summation import InParts
from roundlog.rounding import Follower, Recorder
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from torch import nn

from tests.engine.tasks import small_task

CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "size": (3, 3)}
STRIDED = {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2), "groups": 2, "size": (2, 3)}

CASES: dict[str, tuple[str, dict[str, object], list[tuple[tuple[int, ...], int]]]] = {
    # name: operator, attributes, and for every input its shape and the axis of the samples
    "matmul": ("matmul", {}, [((7, 40), 1), ((40, 5), 0)]),
    "long matmul": ("matmul", {}, [((3, 1100), 1), ((1100, 4), 0)]),
    "matmul of batches": ("matmul", {}, [((2, 3, 40), 2), ((2, 40, 5), 1)]),
    "kernel's gradient": ("conv2d_grad_weight", CONV, [((8, 4, 5, 6), 0), ((8, 3, 5, 6), 0)]),
    "strided, in groups": ("conv2d_grad_weight", STRIDED, [((6, 4, 3, 4), 0), ((6, 6, 7, 6), 0)]),
    "sum": ("sum", {"dims": (0,)}, [((30, 11), 0)]),
    "sum of all": ("sum", {"dims": (0, 1, 2)}, [((4, 12, 3), 1)]),
    "sum around an axis": ("sum", {"dims": (0, 2)}, [((12, 5, 7), 0)]),
    "scatter_add": ("scatter_add", {"dim": 0, "size": 4}, [((24, 3), 0), ((24, 1), 0)]),
    "scatter_add, one axis": ("scatter_add", {"dim": 0, "size": 4}, [((24,), 0), ((24,), 0)]),
    "scatter_add inside": ("scatter_add", {"dim": 1, "size": 3}, [((3, 24, 2), 1), ((3, 24, 2), 1)]),
}


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x


def whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """Zeros and ties among the sums, all of them exact in FP64."""
    return x.round()


def cancelling(x: torch.Tensor) -> torch.Tensor:
    """Terms of all sizes, between which nothing is left in FP64."""
    return (x * 2.0 ** torch.randint(-60, 61, x.shape)).float()


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0**-80


DRAWS = [plain, whole_numbers, cancelling, tiny]


def drawn(name: str, draw: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Summation, dict[str, object], list]:
    op_name, attributes, shapes = CASES[name]
    op = operator(op_name)
    assert isinstance(op, Summation)
    torch.manual_seed(len(name) + DRAWS.index(draw))
    inputs = [draw(torch.randn(shape)) for shape, _ in shapes]
    if op_name == "scatter_add":
        inputs[1] = torch.randint(0, 4 if "inside" not in name else 3, shapes[1][0])
    # The second half of a sum undoes the first, nearly.
    if draw is cancelling and op_name != "scatter_add":
        shape, axis = shapes[0]
        half = shape[axis] // 2
        inputs[0].narrow(axis, half, half).copy_(-inputs[0].narrow(axis, 0, half))
        if len(inputs) > 1:
            other = shapes[1][1]
            inputs[1].narrow(other, half, half).copy_(inputs[1].narrow(other, 0, half))
    return op, attributes, inputs


def in_parts(name: str, op: Summation, attributes: dict[str, object], inputs: list, count: int) -> InParts:
    shapes = CASES[name][2]
    cut = ranges(shapes[0][0][shapes[0][1]], count)

    def read(number: int) -> list[torch.Tensor]:
        first, last = cut[number]
        return [x.narrow(axis, first, last - first) for x, (_, axis) in zip(inputs, shapes, strict=True)]

    return InParts(op, op.terms([tuple(x.shape) for x in inputs], attributes), len(cut), read)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        *((name, cancelling) for name in CASES),
        *((name, draw) for name in ("matmul", "kernel's gradient", "sum") for draw in (plain, whole_numbers, tiny)),
    ],
)
def test_every_part_gives_the_bound_and_the_bits_of_the_whole(name: str, draw) -> None:
    op, attributes, inputs = drawn(name, draw)
    y, bound = op.evaluate(inputs, attributes)
    everything = torch.arange(y.numel())
    right = op.exact(inputs, attributes, everything)
    size = CASES[name][2][0][0][CASES[name][2][0][1]]
    for count in {2, 3, size // 2, size}:
        cut = in_parts(name, op, attributes, inputs, count)
        assert torch.equal(bits(cut.exact((), attributes, everything)), bits(right))
        parts = [op.terms([tuple(x.shape) for x in cut._read(i)], attributes) for i in range(count)]
        if not op.keeps_bound(parts):
            assert "long" in name
            continue
        again, same = cut.evaluate((), attributes)
        d = bound.whole(y)
        assert torch.allclose(same.whole(again), d, rtol=1e-12, atol=0)
        for element in range(0, y.numel(), 1 + y.numel() // 20):
            (listed,) = op.listed(inputs, attributes, np.array([element]))
            error = Fraction(float(again.reshape(-1)[element])) - sum(map(Fraction, listed.tolist()))
            assert abs(error) <= Fraction(float(d.reshape(-1)[element]))
        rounded = Follower.without_log(4).round(0, cut, (), attributes)
        assert torch.equal(bits(rounded).reshape(-1), bits(right))
        # By the log of the whole, without a wrong word about it.
        recorder = Recorder(4)
        recorder.round(0, op, inputs, attributes)
        follower = Follower(4, 0.0, np.random.default_rng(1))
        follower.follow(0, recorder.take())
        followed = follower.round(0, cut, (), attributes)
        assert torch.equal(bits(followed).reshape(-1), bits(right))
        assert follower.findings == []


def depth(count: int) -> int:
    """Additions that a term goes through in a sum of so many, block by block: by trying, not by the formula."""
    blocks = terms.blocks(count)
    most = 0
    for number, (start, stop) in enumerate(blocks):
        # Its kernel may add a block up term by term; the block's sum is then added to those before, or those to it.
        most = max(most, (stop - start - 1) + (len(blocks) - number if number else len(blocks) - 1))
    return most


def test_parts_are_only_accepted_where_no_term_goes_through_more_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "BLOCK_TERMS", 8)
    accepted = refused = 0
    for whole in range(1, 60):
        # Where the first block is not one of the longest, the formula counts one more.
        assert depth(whole) <= terms.chain(whole) - 1 <= depth(whole) + 1
        for count in range(1, whole + 1):
            parts = [last - first for first, last in ranges(whole, count)]
            # All others are added to the first part's sum.
            deepest = max(depth(part) + (count - max(number, 1)) for number, part in enumerate(parts))
            keeps = terms.parts_keep_chain(parts)
            assert not keeps or deepest <= terms.chain(whole) - 1
            accepted, refused = accepted + keeps, refused + (not keeps)
    assert accepted > 200 and refused > 200
    for name in ("matmul", "conv2d_grad_weight", "sum"):
        op = operator(name)
        assert isinstance(op, Summation) and op.keeps_bound([5, 3]) and not op.keeps_bound([1] * 59)


@pytest.fixture
def always_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a sum can be taken part by part, even if that needs more memory."""
    monkeypatch.setattr(slicing, "bytes_in_parts", lambda *given: -1)


def test_a_sum_that_overflows_in_parts_is_named_as_for_the_whole_batch(always_in_parts: None, tmp_path: Path) -> None:
    model = nn.Linear(3, 1, bias=False)
    x = torch.ones(6, 3)
    x[:, 1] = 1e38

    def loss(m: nn.Module, batch) -> torch.Tensor:
        return (m(batch["x"] * 0.0) + batch["x"].sum(0)[1:].sum()).sum()

    job = Job.from_task(lambda: small_task(model, loss, {"x": x}), compare=False)
    messages = set()
    for count in (1, 2, 6):
        with pytest.raises(NonFiniteError) as caught:
            Auditor(job, tmp_path / f"{count}", RunOptions(micro_batches=count)).run()
        messages.add(str(caught.value))
    assert len(messages) == 1 and "(sum, test_parts.py:" in messages.pop()
