"""Whatever the types allow, the kernels can do: odd shapes by the hundred, indices out of range, every exponent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.operators import REGISTRY, Direct, Inexact, check
from roundlog.operators.movement import OutOfRangeError
from roundlog.program import DType, Node, Program, ProgramError, TensorType

from tests.engine.operators import operands as of
from tests.engine.oracle.array import from_torch

REFUSED = [
    ("conv2d", [(0, 2, 3, 3), (4, 2, 2, 2)], {}),
    ("conv2d", [(1, 2, 0, 3), (4, 2, 1, 1)], {"padding": (1, 1)}),
    ("conv2d", [(1, 0, 3, 3), (4, 0, 1, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (0, 2, 1, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 4, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (3, 1, 1, 1)], {"groups": 2}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"groups": 0}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"stride": (0, 1)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"padding": (-1, 0)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"dilation": (0, 1)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"padding": (2**31, 0)}),
    ("conv2d_grad_input", [(0, 4, 2, 2), (4, 2, 2, 2)], {"size": (3, 3)}),
    ("conv2d_grad_input", [(1, 4, 2, 2), (4, 2, 2, 2)], {"size": (3, 2**62)}),
    ("conv2d_grad_weight", [(0, 4, 2, 2), (0, 2, 3, 3)], {"size": (2, 2)}),
    ("conv2d_grad_weight", [(1, 4, 2, 2), (2, 2, 3, 3)], {"size": (2, 2)}),
    ("matmul", [(2, 3), (2, 3)], None),
    ("matmul", [(2, 3), (1, 3, 2)], None),
    ("matmul", [(3,), (3,)], None),
    ("amax", [(0, 3)], {"dims": (0,)}),
    ("argmax", [(3, 0)], {"dim": 1}),
    ("permute", [(2, 3)], {"dims": (0, 0)}),
    ("expand", [(2, 3)], {"shape": (3,)}),
    ("expand", [(0,)], {"shape": (2,)}),
    ("reshape", [(2, 3)], {"shape": (-1,)}),
    ("slice", [(5,)], {"dim": 0, "start": 3, "stop": 2, "step": 1}),
    ("slice", [(5,)], {"dim": 0, "start": 0, "stop": 6, "step": 1}),
    ("slice", [(5,)], {"dim": 0, "start": 0, "stop": 5, "step": 0}),
    ("flip", [(5,)], {"dim": 1}),
    ("cat", [], {"dim": 0}),
    ("cat", [(2, 3), (2, 4)], {"dim": 0}),
    ("add", [(2, 3), (2,)], {}),
    ("add", [(0,), (2,)], {}),
    ("sum", [(2, 3)], {"dims": (2,)}),
    ("sum", [(2**16, 2**14 + 1)], {"dims": (0, 1)}),  # longer than the bounds are proven for
    ("matmul", [(1, 2**30 + 1), (2**30 + 1, 1)], None),
    ("max_pool_index", [(1, 1, 2, 9)], {"kernel": (2, 2), "padding": (1, 1), "dilation": (3, 1)}),  # taps at -1 and 2
    ("max_pool_index", [(1, 1, 0, 2)], {"kernel": (2, 2), "padding": (1, 1)}),
    ("max_pool_index", [(1, 1, 2, 2)], {"kernel": (2, 2), "padding": (2, 2)}),
    ("max_pool_index", [(1, 1, 2, 2)], {"kernel": (2**40, 2**40), "padding": (2**39, 2**39)}),
    ("max_pool_index", [(1, 2, 2)], {"kernel": (2, 2)}),
]
DEFAULTS = {
    "conv": {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1},
    "max_": {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)},
}


@pytest.mark.parametrize(("op", "shapes", "attributes"), REFUSED)
def test_impossible_shapes_are_refused_before_any_kernel_sees_them(
    op: str, shapes: list[of.Shape], attributes: dict[str, Any] | None
) -> None:
    nodes = [Node("state", (), {"slot": i}, TensorType(shape, DType.F32)) for i, shape in enumerate(shapes)]
    whole = {**DEFAULTS.get(op[:4], {}), **(attributes or {})}
    nodes.append(Node(op, tuple(range(len(shapes))), whole, TensorType((), DType.F32), "net.py:3"))
    program = Program(
        nodes=tuple(nodes),
        state_names=tuple(map(str, range(len(shapes)))),
        data_names=(),
        schedule_names=(),
        batch_size=1,
    )
    with pytest.raises(ProgramError, match=rf"operator {len(shapes)} \({op}, net.py:3\): "):
        check(program)


@pytest.mark.parametrize("bad", [-1, 4, 2**31, 2**32, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_index_out_of_range_never_reaches_a_kernel(bad: int, place: int) -> None:
    index = torch.tensor([0, 3, 1])
    index[place] = bad
    x = torch.arange(4.0)
    for op, inputs, attributes in (
        ("gather", [x, index], {"dim": 0}),
        ("gather", [x.reshape(4, 1), index.reshape(3, 1)], {"dim": 0}),
        ("take", [x, index], {}),
        ("take", [x.reshape(4, 1).expand(4, 3), index.reshape(3, 1)], {}),
    ):
        operator = REGISTRY[op]
        assert isinstance(operator, Direct)
        with pytest.raises(OutOfRangeError, match=r"an index from -?\d+ to -?\d+ is not in \[0, 4\)") as caught:
            operator.compute(inputs, attributes)
        first = int(((index < 0) | (index >= 4)).nonzero()[0]) * (3 if inputs[0].shape == (4, 3) else 1)
        assert caught.value.element == first
        right = operator.compute([inputs[0], inputs[1].clamp(0, 3)], attributes).reshape(-1)
        assert caught.value.output.shape == operator.compute([inputs[0], inputs[1].clamp(0, 3)], attributes).shape
        assert torch.equal(caught.value.output.reshape(-1)[:first], right[:first])


def test_scatter_add_drops_what_an_index_out_of_range_places() -> None:
    scatter = REGISTRY["scatter_add"]
    assert isinstance(scatter, Inexact)
    x = torch.tensor([[1.0, 2.0, 4.0, torch.inf], [8.0, 16.0, 32.0, 64.0]])
    index = torch.tensor([[1, 0, 1, 2], [-1, 0, 5, 1]])
    attributes = {"dim": 1, "size": 2}
    expected = torch.tensor([[2.0, 5.0], [16.0, 64.0]])
    y, bound = scatter.evaluate([x, index], attributes)
    assert torch.equal(y.float(), expected) and bool(bound.whole(y).isfinite().all())
    assert torch.equal(scatter.exact([x, index], attributes, torch.arange(4)).reshape(2, 2), expected)
    # An index that broadcasts.
    y = scatter.approximate([x[:, :2], torch.tensor([[0, 9]])], attributes)
    assert torch.equal(y.float(), torch.tensor([[1.0, 0.0], [8.0, 0.0]]))
    assert scatter.approximate([x, index], {"dim": 1, "size": 0}).shape == (2, 0)


def test_an_index_into_an_empty_axis_is_refused() -> None:
    index = torch.zeros(2, dtype=torch.int64)
    gather, take = (REGISTRY[name] for name in ("gather", "take"))
    with pytest.raises(ProgramError):
        gather.compute([torch.zeros(0), index], {"dim": 0})  # type: ignore[attr-defined]
    with pytest.raises(ProgramError):
        take.compute([torch.zeros(0, 3), index], {})  # type: ignore[attr-defined]
    assert take.compute([torch.zeros(0, 0), index], {}).shape == (2, 0)  # type: ignore[attr-defined]


def _direct(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    operator = REGISTRY[name]
    assert isinstance(operator, Direct)
    return operator.compute(inputs, {})


def test_the_square_roots_nearest_to_a_tie_are_correctly_rounded() -> None:
    # m^2 -+ 1 for 25-bit odd m is as near as an FP32 number comes to the square of a half-way point.
    middle = np.arange(2**24 + 1, 2**25, 2, dtype=np.int64)
    square = middle * middle
    # An FP32 number has 24 bits: of the square's 49 or 50 bits, the last 25 or 26 have to go.
    grid = np.where(square < 2**49, 2**25, 2**26)
    number = (square + grid // 2) & -grid
    found = number[np.abs(number - square) < 100].tolist()
    assert len(found) > 20
    for scale in (0, -100, 60):
        x = torch.tensor([float(s) for s in found], dtype=torch.float64) * 2.0**scale
        assert bool((x.float().double() == x).all())
        result = from_torch(_direct("sqrt", x.float())).items
        assert result == tuple(ieee.root(bits) for bits in from_torch(x.float()).items)
