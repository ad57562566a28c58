"""Small programs made of registry operators at random, with every trick that an axis can be played: whatever they
compute, they compute it the same way in micro-batches."""

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
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
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
        bits = int(np.float32(value).view(np.uint32))
        found = self.add("constant", type=TensorType((), DType.F32), bits=(bits,))
        assert found is not None
        return found

    def any(self, dtype: DType | None = None) -> int:
        pool = [i for i, n in enumerate(self.nodes) if dtype in (None, n.type.dtype) and n.op not in ("store", "loss")]
        # The newest values are used most, so that programs are deep.
        return pool[max(self.rng.randrange(len(pool)) for _ in range(2))]

    def shape(self, value: int) -> tuple[int, ...]:
        return self.nodes[value].type.shape

    def grow(self) -> None:
        rng, x = self.rng, self.any(DType.F32)
        shape = self.shape(x)
        axis = rng.randrange(len(shape)) if shape else 0
        kind = rng.randrange(22)
        if kind == 0:
            self.add(rng.choice(("neg", "abs", "floor", "tanh", "erf")), x)
        elif kind == 1:
            self.add("exp", x if (safe := self.add("tanh", x)) is None else safe)
        elif kind in (2, 3):
            self.combine(x)
        elif kind == 4:
            truth = self.add(rng.choice(("lt", "le", "eq")), x, rng.choice((x, self.any(DType.F32), self.number(0.1))))
            if truth is not None:
                self.add("where", truth, rng.choice((x, self.number(2.0))), rng.choice((x, self.number(-1.0))))
                number = self.add("to_i64", truth)
                if number is not None:
                    self.small.add(number)
                self.add("to_f32", truth)
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
            others = [x if rng.random() < 0.5 else self.any(DType.F32) for _ in range(rng.randrange(3))]
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
            self.add("uniform", type=self.nodes[x].type, stream=self.streams)
            self.streams += 1
        elif shape:
            found = self.add("argmax", x, dim=axis)
            if found is not None and rng.random() < 0.5:
                self.add("sum_i64", found, dims=self.dims(self.shape(found)))
            if found is not None:
                self.add("gather", x, found, dim=axis)

    def dims(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(shape)) if self.rng.random() < 0.5)

    def combine(self, x: int) -> None:
        """Two values that broadcast, by chance or after one of them is made to."""
        op = self.rng.choice(("add", "sub", "mul", "maximum", "minimum"))
        for _ in range(4):
            if self.add(op, x, self.any(DType.F32)) is not None:
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
            self.add("matmul", x, self.any(DType.F32))
            self.add("matmul", self.any(DType.F32), x)
        if len(shape) == 2:
            weights = self.add("uniform", type=TensorType((shape[1], 3), DType.F32), stream=self.streams)
            self.streams += 1
            if weights is not None:
                self.add("matmul", x, weights)

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
        kernel = TensorType((2, rest // image**2, 3, 3), DType.F32)
        weights = self.add("uniform", type=kernel, stream=self.streams)
        self.streams += 1
        if weights is None:
            return
        y = self.add("conv2d", images, weights, groups=1, **pair)
        if y is not None:
            self.add("conv2d_grad_weight", y, images, groups=1, size=(3, 3), **pair)
            self.add("conv2d_grad_input", y, weights, groups=1, size=(image, image), **pair)


def make(seed: int, operators: int = 40) -> Made:
    """A program of about that many operators. Some of its values are stored; all of them are the state of nobody."""
    maker = _Maker(seed)
    rng, batch = maker.rng, maker.batch
    width = rng.choice((1, 2, 3, 4, batch))
    generator = torch.Generator().manual_seed(seed)
    fields = [
        (TensorType((batch, width), DType.F32), torch.randn(batch, width, generator=generator)),
        (TensorType((batch, 2, 2), DType.F32), torch.randn(batch, 2, 2, generator=generator).round(decimals=1)),
        (TensorType((batch,), DType.I64), torch.randint(0, 2, (batch,), generator=generator)),
        (TensorType((batch, width), DType.I64), torch.randint(0, 2, (batch, width), generator=generator)),
    ]
    for slot, (kind, _) in enumerate(fields):
        found = maker.add("data", type=kind, slot=slot)
        assert found is not None
        if kind.dtype == DType.I64:
            maker.small.add(found)
    # Most attempts add an operator or more; a program that cannot grow any further is one, too.
    for _ in range(10 * operators):
        if len(maker.nodes) >= operators:
            break
        maker.grow()
    read = {value for node in maker.nodes for value in node.inputs}
    stored = [
        index
        for index, node in enumerate(maker.nodes)
        if (index not in read or rng.random() < 0.15) and node.op != "data"
    ]
    last = maker.any(DType.F32)
    total = maker.add("sum", last, dims=tuple(range(len(maker.shape(last)))))
    assert total is not None
    scalar = maker.add("reshape", total, shape=())
    assert scalar is not None
    maker.add("loss", scalar)
    for slot, value in enumerate(stored):
        maker.add("store", value, slot=slot)
    program = Program(
        nodes=tuple(maker.nodes),
        state_names=tuple(f"s{slot}" for slot in range(len(stored))),
        data_names=tuple(f"d{slot}" for slot in range(len(fields))),
        schedule_names=(),
        batch_size=batch,
    )
    inputs = StepInputs(
        states=[],
        data=[tensor for _, tensor in fields],
        schedule=torch.zeros(0),
        seed=seed,
        step=seed % 7,
        device=torch.device("cpu"),
    )
    return Made(program, inputs)
