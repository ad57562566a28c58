"""Small programs made of registry operators at random, with every trick that an axis can be played: whatever they
compute, they compute it the same way in micro-batches.

Programs of several formats (`make_mixed`) have numbers of each, and what is hard to round in them: ties, subnormals,
infinities and NaN."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import prod
from random import Random

import numpy as np
import torch
from roundlog.operators import StepInputs, operator
from roundlog.program import DType, Node, Program, ProgramError, TensorType

LARGEST = 600
"""Elements of a value."""


@dataclass
class Made:
    """A program, and what it runs on."""

    program: Program
    inputs: StepInputs


class _Maker:
    def __init__(self, seed: int, formats: tuple[DType, ...] = (DType.F32,)) -> None:
        """formats: of the numbers."""
        self.rng = Random(seed)
        self.formats = formats
        self.dtype = formats[0]
        """The format of what grows."""
        self.bounds: dict[DType, tuple[int, int]] = {}
        """The largest number of a format, and what stands for infinities and NaN."""
        more = len(formats) > 1
        self.functions = ("neg", "abs", "floor", "tanh", "erf", *(("sqrt", "log", "erf", "cos") if more else ()))
        self.operations = ("add", "sub", "mul", "maximum", "minimum", *(("div",) if more else ()))
        self.batch = self.rng.choice((2, 3, 4, 6))
        self.nodes: list[Node] = []
        self.small: set[int] = set()
        """int64 values that are 0 or 1: indices into anything with two rows."""
        self.streams = 0

    def add(self, op: str, *inputs: int, type: TensorType | None = None, **attributes: object) -> int | None:
        types = [self.nodes[value].type for value in inputs]
        try:
            kind = operator(op).infer(types, attributes, type or TensorType((), DType.F32))
        except ProgramError:
            return None
        if kind.numel > LARGEST or not kind.numel:
            return None
        self.nodes.append(Node(op, tuple(inputs), attributes, kind, f"made.py:{len(self.nodes)}"))
        return len(self.nodes) - 1

    def number(self, value: float) -> int:
        form = self.dtype.number_format()
        assert form is not None
        bits = form.of_float32(int(np.float32(value).view(np.uint32)))
        found = self.add("constant", type=TensorType((), self.dtype), bits=(bits,))
        assert found is not None
        return found

    def any(self, dtype: DType | None = None) -> int:
        pool = [i for i, n in enumerate(self.nodes) if dtype in (None, n.type.dtype) and n.op not in ("store", "loss")]
        # The newest values are used most, so that programs are deep.
        return pool[max(self.rng.randrange(len(pool)) for _ in range(2))]

    def shape(self, value: int) -> tuple[int, ...]:
        return self.nodes[value].type.shape

    def drawn(self, shape: tuple[int, ...]) -> int | None:
        """New random numbers."""
        found = self.add("uniform", type=TensorType(shape, DType.F32), stream=self.streams)
        self.streams += 1
        return found if found is None or self.dtype is DType.F32 else self.add(f"to_{self.dtype}", found)

    def grow(self) -> None:
        rng = self.rng
        if len(self.formats) > 1:
            self.dtype = rng.choice(self.formats)
            if rng.random() < 0.2:
                self.convert(self.any(self.dtype))
        x = self.any(self.dtype)
        shape = self.shape(x)
        axis = rng.randrange(len(shape)) if shape else 0
        kind = rng.randrange(22)
        if kind == 0:
            self.add(rng.choice(self.functions), x)
        elif kind == 1:
            self.add("exp", x if (safe := self.add("tanh", x)) is None else safe)
        elif kind in (2, 3):
            self.combine(x)
        elif kind == 4:
            truth = self.add(rng.choice(("lt", "le", "eq")), x, rng.choice((x, self.any(self.dtype), self.number(0.1))))
            if truth is not None:
                self.add("where", truth, rng.choice((x, self.number(2.0))), rng.choice((x, self.number(-1.0))))
                number = self.add("to_i64", truth)
                if number is not None:
                    self.small.add(number)
                self.add(f"to_{self.dtype}", truth)
                self.add("any", truth, dims=self.dims(shape))
        elif kind in (5, 6):
            self.reshape(x)
        elif kind in (7, 8) and shape:
            self.add("permute", x, dims=rng.choice(list(permutations(range(len(shape))))))
        elif kind == 9:
            wide = tuple(rng.choice((2, 3, self.batch)) if size == 1 else size for size in shape)
            self.add("expand", x, shape=(*rng.choice(((), (2,), (self.batch,))), *wide))
        elif kind == 10 and shape:
            start = rng.randrange(shape[axis])
            stop = rng.randrange(start, shape[axis]) + 1
            if shape[axis] % self.batch == 0 and rng.random() < 0.5:
                start, stop = sorted((rng.randrange(0, shape[axis] + 1, self.batch), shape[axis]))
            self.add("slice", x, dim=axis, start=start, stop=stop, step=rng.choice((1, 1, 2)))
        elif kind == 11 and shape:
            self.add("flip", x, dim=axis)
        elif kind == 12 and shape:
            others = [x if rng.random() < 0.5 else self.any(self.dtype) for _ in range(rng.randrange(3))]
            self.add("cat", *rng.sample([x, *others], len(others) + 1), dim=axis)
        elif kind == 13 and shape:
            low, high = (tuple(rng.choice((0, 0, 0, 1, self.batch)) for _ in shape) for _ in range(2))
            self.add("pad", x, self.number(0.5), low=low, high=high)
        elif kind in (14, 15):
            self.index(x, axis)
        elif kind in (16, 17):
            self.add("sum", x, dims=self.dims(shape))
            if rng.random() < 0.4:
                self.add(rng.choice(("amax", "amin")), x, dims=self.dims(shape))
        elif kind == 18:
            self.multiply(x)
        elif kind == 19:
            self.images(x)
        elif kind == 20:
            self.drawn(shape)
        elif shape:
            found = self.add("argmax", x, dim=axis)
            if found is not None and rng.random() < 0.5:
                self.add("sum_i64", found, dims=self.dims(self.shape(found)))
            if found is not None:
                self.add("gather", x, found, dim=axis)

    def convert(self, x: int) -> int | None:
        """Numbers in another format."""
        return self.add(f"to_{self.rng.choice([one for one in self.formats if one != self.nodes[x].type.dtype])}", x)

    def finite(self, x: int) -> int:
        """Numbers as they are where they are finite, and another number elsewhere."""
        self.dtype = self.nodes[x].type.dtype
        form = self.dtype.number_format()
        assert form is not None
        if self.dtype not in self.bounds:
            self.bounds[self.dtype] = self.number(form.largest), self.number(0.375)
        bound, other = self.bounds[self.dtype]
        size = self.add("abs", x)
        assert size is not None
        is_finite = self.add("le", size, bound)
        assert is_finite is not None
        found = self.add("where", is_finite, x, other)
        assert found is not None
        return found

    def dims(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(shape)) if self.rng.random() < 0.5)

    def combine(self, x: int) -> None:
        """Two values that broadcast, by chance or after one of them is made to."""
        op = self.rng.choice(self.operations)
        for _ in range(4):
            if self.add(op, x, self.any(self.dtype)) is not None:
                return
        shape = self.shape(x)
        mean = self.add("sum", x, dims=self.dims(shape))
        if mean is not None:
            self.add(op, *self.rng.sample((x, mean), 2))

    def reshape(self, x: int) -> None:
        sizes: list[int] = []
        left = self.nodes[x].type.numel
        while left > 1 and len(sizes) < 4:
            divisors = [d for d in range(1, left + 1) if left % d == 0]
            sizes.append(self.rng.choice(divisors))
            left //= sizes[-1]
        self.add("reshape", x, shape=(*sizes, left) if left > 1 or not sizes else tuple(sizes))

    def index(self, x: int, axis: int) -> None:
        shape = self.shape(x)
        if not shape or shape[axis] < 2 or not self.small:
            return
        index = self.rng.choice(sorted(self.small))
        self.add("gather", x, index, dim=axis)
        self.add("scatter_add", x, index, dim=axis, size=self.rng.choice((2, 3, self.batch)))
        if shape[0] >= 2:
            self.add("take", x, index)

    def multiply(self, x: int) -> None:
        """With its own transpose, with something that fits, or with weights."""
        shape = self.shape(x)
        if len(shape) not in (2, 3):
            flat = (shape[0], prod(shape[1:])) if shape else (1, 1)
            found = self.add("reshape", x, shape=flat)
            if found is None:
                return
            x, shape = found, flat
        turned = self.add("permute", x, dims=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        if turned is not None:
            self.add("matmul", *self.rng.sample((x, turned), 2))
        for _ in range(6):
            self.add("matmul", x, self.any(self.dtype))
            self.add("matmul", self.any(self.dtype), x)
        if len(shape) == 2:
            weights = self.drawn((shape[1], 3))
            if weights is not None:
                self.add("matmul", x, weights)
        self.multiply_short(x)

    def multiply_short(self, x: int) -> None:
        """Matrices of BF16 or FP16 as tensor cores multiply them, with their own transpose or with what fits."""
        short = [one for one in self.formats if one is not DType.F32] or [DType.BF16]
        dtype = self.nodes[x].type.dtype
        if dtype not in short:
            dtype = self.rng.choice(short)
            found = self.add(f"to_{dtype}", x)
            if found is None:
                return
            x = found
        shape = self.shape(x)
        turned = self.add("permute", x, dims=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        pairs = [] if turned is None else [(x, turned), (turned, x)]
        pairs += [(x, self.any(dtype)) for _ in range(3)]
        self.rng.shuffle(pairs)
        for pair in pairs:
            found = self.add("tensor_core_matmul", *pair, arithmetic=self.rng.choice(("hopper", "ampere")))
            if found is not None:
                self.add(f"to_{self.rng.choice([one for one in self.formats if one != dtype])}", found)
                return

    def images(self, x: int) -> None:
        size = self.nodes[x].type.numel
        if size % self.batch:
            return
        rest = size // self.batch
        image = next((s for s in (4, 3, 2) if rest % (s * s) == 0), 1)
        images = self.add("reshape", x, shape=(self.batch, rest // image**2, image, image))
        if images is None:
            return
        pair = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
        found = self.add("max_pool_index", images, kernel=(2, 2), **pair)
        if found is not None:
            planes = self.add("reshape", images, shape=(self.batch, rest // image**2, image**2))
            flat = self.add("reshape", found, shape=(*self.shape(found)[:2], prod(self.shape(found)[2:])))
            if planes is not None and flat is not None:
                self.add("gather", planes, flat, dim=2)
        weights = self.drawn((2, rest // image**2, 3, 3))
        if weights is None:
            return
        y = self.add("conv2d", images, weights, groups=1, **pair)
        if y is not None:
            self.add("conv2d_grad_weight", y, images, groups=1, size=(3, 3), **pair)
            self.add("conv2d_grad_input", y, weights, groups=1, size=(image, image), **pair)


def _grown(maker: _Maker, operators: int) -> None:
    # Most attempts add an operator or more; a program that cannot grow any further is one, too.
    for _ in range(10 * operators):
        if len(maker.nodes) >= operators:
            break
        maker.grow()


def _ended(maker: _Maker, total: int, stored: list[int], data: list[torch.Tensor], seed: int) -> Made:
    """The program with the loss and the stores. total: the value that is summed up for the loss."""
    sum_of_all = maker.add("sum", total, dims=tuple(range(len(maker.shape(total)))))
    assert sum_of_all is not None
    scalar = maker.add("reshape", sum_of_all, shape=())
    assert scalar is not None
    maker.add("loss", scalar)
    for slot, value in enumerate(stored):
        maker.add("store", value, slot=slot)
    program = Program(
        nodes=tuple(maker.nodes),
        state_names=tuple(f"s{slot}" for slot in range(len(stored))),
        data_names=tuple(f"d{slot}" for slot in range(len(data))),
        schedule_names=(),
        batch_size=maker.batch,
    )
    inputs = StepInputs(
        states=[],
        data=data,
        schedule=torch.zeros(0),
        seed=seed,
        step=seed % 7,
        device=torch.device("cpu"),
    )
    return Made(program, inputs)


def _unread(maker: _Maker) -> list[int]:
    """Values to store: those that nothing reads, and a few others."""
    read = {value for node in maker.nodes for value in node.inputs}
    return [
        index
        for index, node in enumerate(maker.nodes)
        if (index not in read or maker.rng.random() < 0.15) and node.op != "data"
    ]


def make(seed: int, operators: int = 40) -> Made:
    """A program of about that many operators. Some of its values are stored; all of them are the state of nobody."""
    maker = _Maker(seed)
    rng, batch = maker.rng, maker.batch
    width = rng.choice((1, 2, 3, 4, batch))
    generator = torch.Generator().manual_seed(seed)
    fields = [
        (TensorType((batch, width), DType.F32), torch.randn(batch, width, generator=generator)),
        (TensorType((batch, 2, 2), DType.F32), torch.randn(batch, 2, 2, generator=generator).round(decimals=1)),
        *_indices(batch, width, generator),
    ]
    _read(maker, fields)
    _grown(maker, operators)
    stored = _unread(maker)
    return _ended(maker, maker.any(DType.F32), stored, [tensor for _, tensor in fields], seed)


def _indices(batch: int, width: int, generator: torch.Generator) -> list[tuple[TensorType, torch.Tensor]]:
    return [
        (TensorType((batch,), DType.I64), torch.randint(0, 2, (batch,), generator=generator)),
        (TensorType((batch, width), DType.I64), torch.randint(0, 2, (batch, width), generator=generator)),
    ]


def _read(maker: _Maker, fields: list[tuple[TensorType, torch.Tensor]]) -> None:
    for slot, (kind, _) in enumerate(fields):
        found = maker.add("data", type=kind, slot=slot)
        assert found is not None
        if kind.dtype == DType.I64:
            maker.small.add(found)


ALL_FORMATS = (DType.F32, DType.BF16, DType.F16)


def hard_numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], wild: float) -> torch.Tensor:
    """Numbers that are hard to round: few bits, so that sums tie; halves of the last place of BF16 and of FP16, and
    numbers beside these; subnormal and huge ones. wild: the share of infinities and NaN."""
    count = prod(shape)
    few = rng.integers(-9, 10, count) / 8
    last = np.choose(rng.integers(0, 3, count), [2.0**-8, 2.0**-11, 2.0**-24])
    tie = (1 + rng.integers(0, 128, count) / 128 + last + rng.integers(-1, 2, count) * 2.0**-23) * rng.choice(
        [1.0, -1.0], count
    )
    scale = 2.0 ** rng.choice([0, 0, 0, 0, -14, -24, -120, -133, 15, 60], count)
    numbers = np.where(rng.random(count) < 0.5, few, tie) * scale
    special = rng.choice([np.inf, -np.inf, np.nan], count)
    numbers = np.where(rng.random(count) < wild, special, numbers)
    return torch.from_numpy(numbers).to(torch.float32).to(dtype.torch_dtype).reshape(shape)


def make_mixed(seed: int, operators: int = 50) -> Made:
    """A program as of `make`, with numbers of all formats; of every fourth one, some data are infinite or NaN. Loss and
    state are finite."""
    maker = _Maker(seed, ALL_FORMATS)
    batch, generator = maker.batch, torch.Generator().manual_seed(seed)
    width = maker.rng.choice((1, 2, 3, 4, batch))
    rng = np.random.default_rng(seed)
    wild = 0.04 if seed % 4 == 3 else 0.0
    kinds = [TensorType(shape, dtype) for dtype in ALL_FORMATS for shape in ((batch, width), (batch, 2, 2))]
    fields = [(kind, hard_numbers(rng, kind.dtype, kind.shape, wild)) for kind in kinds]
    fields += _indices(batch, width, generator)
    _read(maker, fields)
    _grown(maker, operators)
    stored = [value if not maker.nodes[value].type.dtype.is_float else maker.finite(value) for value in _unread(maker)]
    # Whether a number was finite is part of the state, too.
    stored += [index for index, node in enumerate(maker.nodes) if node.op == "le" and index not in stored]
    total = maker.finite(maker.any(DType.F32))
    maker.dtype = DType.F32
    small = maker.add("tanh", total)
    assert small is not None
    return _ended(maker, small, stored, [tensor for _, tensor in fields], seed)
