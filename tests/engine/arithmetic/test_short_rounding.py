"""Rounding of tensors, sums and intervals to BF16 and FP16 at every number and midpoint, against the reference."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from roundlog.arithmetic import (
    adjacent,
    as_dtype,
    as_float32,
    format_of,
    in_format,
    neighbour,
    ordinal,
    round_interval,
    round_signed,
    round_sums,
    round_to,
    torch_dtype,
)
from roundlog.kernels import superaccumulator
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format, narrow_float32

SHORT = (BFLOAT16, FLOAT16)
shorts = pytest.mark.parametrize("kind", SHORT, ids=["bf16", "fp16"])


def magnitudes(kind: Format) -> torch.Tensor:
    """All magnitudes, infinity the last one, ascending, as FP32."""
    words = torch.arange(kind.infinity + 1, dtype=torch.int16)
    return as_float32(words.view(torch_dtype(kind)))


def encodings(x: torch.Tensor, kind: Format) -> list[int]:
    """Encodings of FP32 numbers of a format."""
    assert bool(in_format(x, kind).all())
    return as_dtype(x, kind).view(torch.int16).numpy().view(np.uint16).tolist()


def beside_midpoints(kind: Format) -> torch.Tensor:
    """FP64: every number but infinity, every midpoint, that of overflow among them, and their neighbours."""
    finite = magnitudes(kind)[:-1].double()
    ends = torch.cat([finite, torch.tensor([kind.limit], dtype=torch.float64)])
    exact = torch.cat([finite, (ends[1:] + ends[:-1]) / 2])
    up, down = (torch.nextafter(exact, torch.tensor(end, dtype=torch.float64)) for end in (torch.inf, -torch.inf))
    return torch.cat([exact, up, down])


@shorts
def test_fp64_numbers_at_every_boundary_round_once(kind: Format) -> None:
    positive = beside_midpoints(kind)
    positive = positive[(torch.arange(len(positive)) % 7 == 0) | (positive >= kind.largest)]
    for y in (positive, -positive):
        right = [kind.nearest(Fraction(x)) for x in y.tolist()]
        kept = [word if x else int(np.signbit(x)) * kind.sign for word, x in zip(right, y.tolist(), strict=True)]
        assert encodings(round_signed(y, kind), kind) == kept
        assert encodings(round_to(y, kind), kind) == [0 if word == kind.sign else word for word in right]
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e300, -1e300], dtype=torch.float64)
    found = round_to(special, kind)
    assert found[[0, 1, 3, 4]].tolist() == [torch.inf, -torch.inf, torch.inf, -torch.inf] and bool(found[2].isnan())


@shorts
def test_ordinals_count_the_numbers_and_neighbours_are_one_apart(kind: Format) -> None:
    x = magnitudes(kind)
    assert torch.equal(ordinal(x, kind), torch.arange(len(x)))
    assert torch.equal(ordinal(-x, kind), -torch.arange(len(x)))
    assert torch.equal(neighbour(x[:-1], 1, kind), x[1:]) and torch.equal(neighbour(x[1:], -1, kind), x[:-1])
    assert torch.equal(neighbour(-x[1:], 1, kind), -x[:-1]) and torch.equal(neighbour(-x[:-1], -1, kind), -x[1:])
    assert not torch.signbit(neighbour(-x[1:2], 1, kind)).any(), "a zero is +0"
    assert neighbour(x[-1:], 1, kind).tolist() == [torch.inf] and neighbour(-x[-1:], -1, kind).tolist() == [-torch.inf]
    assert bool(adjacent(x[:-1], x[1:], kind).all()) and not bool(adjacent(x[:-2], x[2:], kind).any())
    assert bool(adjacent(-x[1:], -x[:-1], kind).all()) and not bool(adjacent(x, x, kind).any())


@shorts
def test_what_is_not_of_the_format_is_told_apart(kind: Format) -> None:
    x = magnitudes(kind)
    assert bool(in_format(x, kind).all()) and bool(in_format(-x, kind).all())
    middles = ((x[1:-1].double() + x[:-2].double()) / 2).float()
    assert not in_format(middles, kind).any()
    assert not in_format(torch.nextafter(x[:-1], torch.tensor(torch.inf)), kind).any()


@shorts
def test_an_interval_rounds_to_one_number_only_where_it_holds_no_midpoint(kind: Format) -> None:
    x = magnitudes(kind)[:-1].double()
    ends = torch.cat([x, torch.tensor([kind.limit], dtype=torch.float64)])
    half = (ends[1:] - ends[:-1]) / 2
    low, high = round_interval(x, half * (1 - 2.0**-30), 1.0, kind)
    # Below a power of two, numbers are half as far apart.
    assert torch.equal(high.double(), x) and bool((adjacent(low, high, kind) | (low == high)).all())
    low, high = round_interval(x + half, half * 2.0**-30, 1.0, kind)
    assert bool(adjacent(low, high, kind).all()) and torch.equal(low.double(), x)


@shorts
def test_sums_that_fp64_cannot_hold_round_once(kind: Format) -> None:
    """A midpoint, and a term 100 places lower that decides."""
    middles = beside_midpoints(kind)[kind.infinity : 2 * kind.infinity : 13].numpy()
    sides = np.array([-1.0, 0.0, 1.0]) * 2.0**-280
    terms = np.array([[m, side, 2.0**100, -(2.0**100)] for m in middles for side in sides])
    right = [kind.nearest(sum(map(Fraction, row), Fraction(0))) for row in terms.tolist()]
    assert encodings(torch.from_numpy(round_sums(terms, kind)), kind) == right
    exact = superaccumulator.new_sums(len(terms))
    superaccumulator.add_terms(exact, terms)
    assert encodings(torch.from_numpy(superaccumulator.rounded(exact, kind)), kind) == right


def test_formats_and_dtypes_belong_to_each_other() -> None:
    for kind, dtype in ((FLOAT32, torch.float32), (BFLOAT16, torch.bfloat16), (FLOAT16, torch.float16)):
        assert torch_dtype(kind) == dtype and format_of(dtype) == kind
        assert (
            as_dtype(torch.ones(2), kind).dtype == dtype
            and as_float32(torch.ones(2, dtype=dtype)).dtype == torch.float32
        )
    assert torch_dtype(narrow_float32(26)) == torch.float32
    index = torch.arange(3)
    assert as_float32(index) is index
    for none in (torch.float64, torch.int64, torch.float8_e5m2):
        with pytest.raises(ValueError, match="is no format: use float32, bfloat16 or float16"):
            format_of(none)
