"""Whatever the types allow, the kernels can do: odd shapes by the hundred, indices out of range, every exponent."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from elementary_series import FUNCTIONS
from roundlog.adjudication import binary32 as ieee
from roundlog.operators import REGISTRY, Direct, Inexact, check
from roundlog.operators.movement import OutOfRangeError
from roundlog.program import DType, Node, Program, ProgramError, TensorType

from tests.engine.operators import contraction_cases  # noqa: F401  (registers its cases)
from tests.engine.operators import operands as of
from tests.engine.operators.operator_cases import CASES, INT64_CORNERS
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.direct import DIRECT
from tests.engine.oracle.inexact import INEXACT

INDEX_INPUT = {"gather": 1, "take": 1, "scatter_add": 1}


def _shape(rng: Random, shape: of.Shape, rate: float) -> of.Shape:
    """Some axes changed, added or dropped."""
    sizes = [rng.randrange(4) if rng.random() < rate else size for size in shape]
    if sizes and rng.random() < rate / 4:
        sizes.pop(rng.randrange(len(sizes)))
    if rng.random() < rate / 4:
        sizes.insert(rng.randrange(len(sizes) + 1), rng.randrange(3))
    return tuple(sizes)


def _attribute(rng: Random, value: Any, rate: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_attribute(rng, item, rate) for item in value)
    return rng.randrange(4) if rng.random() < rate else value


def _data(rng: Random, kind: TensorType, low: int, high: int) -> torch.Tensor:
    if kind.dtype.is_float:
        return of.floats(rng, kind.shape, rng.choice(of.FINITE)).to(kind.dtype.torch_dtype)
    return of.integers(rng, kind.shape, low, high) if kind.dtype == DType.I64 else of.booleans(rng, kind.shape)


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_the_types_allow_the_kernels_can_do_and_the_oracle_agrees(name: str) -> None:
    rng = Random(f"edges {name}")
    operator = REGISTRY[name]
    known = list(CASES[name](rng))
    accepted = 0
    for _ in range(1500):
        if accepted == 80:
            break
        case, rate = rng.choice(known), rng.choice((0.05, 0.1, 0.3))
        attributes = {key: _attribute(rng, value, rate) for key, value in case.attributes.items()}
        if name == "store":
            attributes = {"slot": 0}
        kinds = [TensorType(_shape(rng, tuple(x.shape), rate), DType.of(x.dtype)) for x in case.inputs]
        try:
            kind = operator.infer(kinds, attributes, TensorType((), DType.F32))
        except ProgramError:
            continue
        if any(k.numel > (20 if name in FUNCTIONS else 400) for k in (*kinds, kind)):
            continue
        size = 9
        if name in INDEX_INPUT:
            dim = attributes.get("dim", 0)
            size = attributes["size"] if name == "scatter_add" else kinds[0].shape[dim]
            if size == 0 and kinds[1].numel:
                continue  # no index is in range: see the tests of ranges
        inputs = [_data(rng, k, 0, max(size, 1)) for k in kinds]
        accepted += 1
        arrays = [from_torch(x) for x in inputs]
        if isinstance(operator, Direct):
            result = from_torch(operator.compute(inputs, attributes))
            items = tuple(ieee.NAN if result.dtype == "f32" and ieee.is_nan(i) else i for i in result.items)
            expected = DIRECT[name](arrays, attributes)
            assert (result.shape, result.dtype) == (kind.shape, str(kind.dtype)), (kinds, attributes)
            assert items == expected.items, (kinds, attributes)
            continue
        assert isinstance(operator, Inexact)
        if name in ("log", "log1p"):
            inputs = [x.abs() + 1 for x in inputs]
            arrays = [from_torch(x) for x in inputs]
        y = operator.approximate(inputs, attributes)
        d = operator.bound(inputs, attributes, y).whole(y)
        assert tuple(y.shape) == kind.shape and torch.broadcast_shapes(d.shape, y.shape) == y.shape
        shape, reals = INEXACT[name](arrays, attributes)
        exact = from_torch(operator.exact(inputs, attributes, torch.arange(y.numel())))
        assert (shape, list(exact.items)) == (kind.shape, [real.rounded for real in reals]), (kinds, attributes)
    assert accepted >= 20, f"{accepted} of 1500 were tried: nothing was tested"


REFUSED = [
    ("conv2d", [(0, 2, 3, 3), (4, 2, 2, 2)], {}),
    ("conv2d", [(1, 2, 0, 3), (4, 2, 1, 1)], {"padding": (1, 1)}),
    ("conv2d", [(1, 0, 3, 3), (4, 0, 1, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (0, 2, 1, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 4, 1)], {}),
    ("conv2d", [(1, 2, 3, 3), (3, 1, 1, 1)], {"groups": 2}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"groups": 0}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"groups": -1}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"stride": (0, 1)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"stride": (1,)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"padding": (-1, 0)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"dilation": (0, 1)}),
    ("conv2d", [(1, 2, 3, 3), (2, 2, 1, 1)], {"padding": (2**31, 0)}),
    ("conv2d_grad_input", [(0, 4, 2, 2), (4, 2, 2, 2)], {"size": (3, 3)}),
    ("conv2d_grad_input", [(1, 4, 2, 2), (4, 2, 2, 2)], {"size": (3, 2**62)}),
    ("conv2d_grad_input", [(1, 4, 2, 2), (4, 2, 2, 2)], {"size": (4, 3)}),
    ("conv2d_grad_weight", [(0, 4, 2, 2), (0, 2, 3, 3)], {"size": (2, 2)}),
    ("conv2d_grad_weight", [(1, 4, 2, 2), (2, 2, 3, 3)], {"size": (2, 2)}),
    ("matmul", [(2, 3), (2, 3)], None),
    ("matmul", [(2, 3), (1, 3, 2)], None),
    ("matmul", [(3,), (3,)], None),
    ("matmul", [(2, 2, 3), (1, 3, 2)], None),
    ("amax", [(0, 3)], {"dims": (0,)}),
    ("argmax", [(3, 0)], {"dim": 1}),
    ("argmax", [()], {"dim": 0}),
    ("permute", [(2, 3)], {"dims": (0, 0)}),
    ("permute", [(2, 3)], {"dims": (-1, 0)}),
    ("expand", [(2, 3)], {"shape": (3,)}),
    ("expand", [(2, 3)], {"shape": (2, 1)}),
    ("expand", [(0,)], {"shape": (2,)}),
    ("reshape", [(2, 3)], {"shape": (-1,)}),
    ("reshape", [(2, 3)], {"shape": (-2, -3)}),
    ("slice", [(5,)], {"dim": 0, "start": 3, "stop": 2, "step": 1}),
    ("slice", [(5,)], {"dim": 0, "start": 0, "stop": 6, "step": 1}),
    ("slice", [(5,)], {"dim": 0, "start": -1, "stop": 5, "step": 1}),
    ("slice", [(5,)], {"dim": 0, "start": 0, "stop": 5, "step": 0}),
    ("slice", [(5,)], {"dim": -1, "start": 0, "stop": 5, "step": 1}),
    ("flip", [(5,)], {"dim": 1}),
    ("cat", [], {"dim": 0}),
    ("cat", [(), ()], {"dim": 0}),
    ("cat", [(2, 3), (2, 4)], {"dim": 0}),
    ("add", [(2, 3), (2,)], {}),
    ("add", [(0,), (2,)], {}),
    ("sum", [(2, 3)], {"dims": (2,)}),
    ("sum", [(2**16, 2**14 + 1)], {"dims": (0, 1)}),  # longer than the bounds are proven for
    ("matmul", [(1, 2**30 + 1), (2**30 + 1, 1)], None),
    ("max_pool_index", [(1, 1, 2, 9)], {"kernel": (2, 2), "padding": (1, 1), "dilation": (3, 1)}),  # taps at -1 and 2
    ("max_pool_index", [(1, 1, 0, 2)], {"kernel": (2, 2), "padding": (1, 1)}),
    ("max_pool_index", [(0, 1, 2, 2)], {"kernel": (2, 2)}),
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


def test_what_an_index_outside_would_place_stands_nowhere() -> None:
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


def test_no_index_is_in_the_range_of_nothing() -> None:
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


def test_the_square_root_of_every_exponent_is_correctly_rounded() -> None:
    rng = np.random.default_rng(1)
    fractions = np.concatenate([rng.integers(0, 2**23, 2000), [0, 1, 2, 3, 2**23 - 1, 2**23 - 2]]).astype(np.uint32)
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23 | fractions).reshape(-1)
    x = bits.view(np.float32)
    root = _direct("sqrt", torch.from_numpy(x)).numpy()
    positive = x > 0
    assert root[~positive].tobytes() == x[~positive].tobytes()
    # Half-way points have 25 bits and their squares 50: all of this is exact in FP64.
    wide, r = x[positive].astype(np.float64), root[positive]
    below = (r.astype(np.float64) + np.nextafter(r, np.float32(0)).astype(np.float64)) / 2
    above = (r.astype(np.float64) + np.nextafter(r, np.float32(np.inf)).astype(np.float64)) / 2
    assert bool(((below * below < wide) & (wide < above * above)).all())


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


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_half_a_million_random_pairs_agree_with_rounded_fp64(name: str) -> None:
    # For + - x / of 24-bit numbers, FP64 rounded to FP32 rounds as once (Figueroa 1995: 53 >= 2 * 24 + 2).
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 2**32, 500_003, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(2))
    fine = np.isfinite(a) & np.isfinite(b) & (b != 0)
    a, b = a[fine], b[fine]
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    with np.errstate(over="ignore", under="ignore"):
        expected = function(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    result = _direct(name, torch.from_numpy(a), torch.from_numpy(b)).numpy()
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (-0.0, 0.0)])
def test_maximum_and_minimum_of_the_two_zeros_give_the_second(a: float, b: float) -> None:
    for name in ("maximum", "minimum"):
        for length in (1, 3, 64):
            result = _direct(name, torch.full((length,), a), torch.full((length,), b))
            assert torch.equal(torch.signbit(result), torch.full((length,), b).signbit())


def test_integers_wrap_at_2_to_the_64() -> None:
    edge = torch.tensor(INT64_CORNERS)
    least = torch.tensor(-(2**63))
    assert int(_direct("abs", least)) == int(_direct("neg", least)) == -(2**63)
    assert int(_direct("sub", least, torch.tensor(1))) == 2**63 - 1
    total = REGISTRY["sum_i64"].compute([edge.repeat(50)], {"dims": (0,)})  # type: ignore[attr-defined]
    assert int(total) == (50 * sum(INT64_CORNERS) + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("length", [1, 2, 7, 16, 33, 1000])
def test_argmax_gives_the_first_of_equal_elements_wherever_they_are(length: int) -> None:
    operator = REGISTRY["argmax"]
    assert isinstance(operator, Direct)
    for first in {0, length // 2, length - 1}:
        x = torch.zeros(length)
        x[first:] = 1.0
        assert int(operator.compute([x], {"dim": 0})) == first
        assert operator.compute([x.repeat(3, 1)], {"dim": 1}).tolist() == [[first]] * 3
        assert operator.compute([x[:, None].repeat(1, 3)], {"dim": 0}).tolist() == [[first] * 3]


def test_max_pooling_never_chooses_padding_and_takes_the_first_of_equal_elements() -> None:
    operator = REGISTRY["max_pool_index"]
    assert isinstance(operator, Direct)
    attributes = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    for fill in (-of.INFINITY, -of.LARGEST, -1.0, -0.0):
        for layout in of.layouts(torch.full((2, 17, 3, 3), fill)):
            index = operator.compute([layout], attributes)
            assert index[1, 16].tolist() == [[0, 0, 1], [0, 0, 1], [3, 3, 4]]


def test_every_case_is_as_large_as_its_shape_says() -> None:
    # Guards the guards: a generator that yields nothing would make every test above pass.
    for name, generate in CASES.items():
        cases = list(generate(Random(name)))
        assert cases and any(prod(x.shape) > 0 for case in cases for x in case.inputs), name
