"""Convolutions as tensor cores add products: the program that stands for one, against loops over the terms in the order
that docs/arithmetic.md states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

import numpy as np
import pytest
import torch
from roundlog.adjudication import NoTensorCoreValueError
from roundlog.adjudication.tensor_core_groups import element
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.execution import CheckedProgram
from roundlog.number_format import BFLOAT16, FLOAT32
from roundlog.operators import StepInputs, check, operator
from roundlog.operators.convolution_products import NodeList
from roundlog.operators.job_arithmetic import with_arithmetic
from roundlog.program import DType, Node, Program, ProgramError, TensorType
from roundlog.training.kernel_sameness import evaluated

Pair = tuple[int, int]
Words = np.ndarray


class Case:
    """A random convolution with as little room as leaves something to get wrong. Arrays hold patterns of FP32."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.groups = rng.choice([1, 1, 2, 3])
        channels, outputs = rng.randint(1, 5), rng.randint(1, 5)
        self.kernel = rng.randint(1, 3), rng.randint(1, 3)
        self.stride, self.dilation = ((rng.randint(1, 3), rng.randint(1, 3)) for _ in range(2))
        self.padding = rng.randint(0, 4), rng.randint(0, 2)
        size = [
            max(1, d * (k - 1) + 1 - 2 * p) + rng.randint(0, 4)
            for k, d, p in zip(self.kernel, self.dilation, self.padding, strict=True)
        ]
        self.size = size[0], size[1]
        self.outputs = tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(size, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        )
        self.x = (rng.randint(1, 3), self.groups * channels, *self.size)
        self.w = (self.groups * outputs, channels, *self.kernel)
        self.g = (self.x[0], self.w[0], *self.outputs)
        self.bias: Words | None = None

    def attributes(self, **more: tuple[int, ...]) -> dict[str, object]:
        options = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return {**options, **more}

    def numbers(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Large numbers that cancel, so that it depends on the order of the terms what is left of small ones; zeros and
        subnormal numbers."""
        generator = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        x = torch.randn(shape, generator=generator) * 2.0**-5
        x = torch.where(torch.rand(shape, generator=generator) < 0.3, x.sign() * 2**15, x)
        x[torch.rand(shape, generator=generator) < 0.2] = 0
        if self.rng.random() < 0.1:
            x.view(-1)[0] = 2.0**-130
        return x.bfloat16()

    def read(self, axis: int, out: int, tap: int) -> int:
        """The place that an output reads through a tap; it may be in the padding."""
        return out * self.stride[axis] + tap * self.dilation[axis] - self.padding[axis]

    def at(self, x: Words, n: int, c: int, row: int, column: int) -> int:
        inside = 0 <= row < x.shape[2] and 0 <= column < x.shape[3]
        return int(x[n, c, row, column]) if inside else 0


def forward(case: Case, x: Words, w: Words, at: tuple[int, ...]) -> Iterator[Pair]:
    n, o, p, q = at
    channels = w.shape[1]
    first = o // (w.shape[0] // case.groups) * channels
    for c, i, j in product(*map(range, w.shape[1:])):
        yield case.at(x, n, first + c, case.read(0, p, i), case.read(1, q, j)), int(w[o, c, i, j])
    if case.bias is not None:
        yield int(case.bias[o]), 0x3F800000


def grad_input(case: Case, g: Words, w: Words, at: tuple[int, ...]) -> Iterator[Pair]:
    n, channel, row, column = at
    group, c = divmod(channel, w.shape[1])
    each = w.shape[0] // case.groups
    for o, i, j in product(range(group * each, (group + 1) * each), *map(range, w.shape[2:])):
        outputs = product(*map(range, g.shape[2:]))
        found = [(p, q) for p, q in outputs if (case.read(0, p, i), case.read(1, q, j)) == (row, column)]
        yield (int(g[n, o, *found[0]]) if found else 0), int(w[o, c, i, j])


def grad_weight(case: Case, g: Words, x: Words, at: tuple[int, ...]) -> Iterator[Pair]:
    o, c, i, j = at
    first = o // (g.shape[1] // case.groups) * (x.shape[1] // case.groups)
    for n, p, q in product(range(g.shape[0]), *map(range, g.shape[2:])):
        yield int(g[n, o, p, q]), case.at(x, n, first + c, case.read(0, p, i), case.read(1, q, j))


Model = Callable[[Case, Words, Words, tuple[int, ...]], Iterator[Pair]]
MODELS: dict[str, Model] = {
    "conv2d": forward,
    "conv2d_grad_input": grad_input,
    "conv2d_grad_weight": grad_weight,
}


def words(x: torch.Tensor) -> Words:
    return x.float().numpy().view(np.uint32)


def modelled(name: str, case: Case, a: torch.Tensor, b: torch.Tensor, arithmetic: str, order: int = 1) -> Words:
    """Patterns of BF16. order: -1 for the terms turned round."""
    shape = {"conv2d": (*case.x[:1], *case.w[:1], *case.outputs), "conv2d_grad_input": case.x}.get(name, case.w)
    result = np.empty(shape, dtype=np.uint16)
    for at in np.ndindex(shape):
        left, right = zip(*list(MODELS[name](case, words(a), words(b), at))[::order], strict=True)
        try:
            found = element(ARITHMETICS[arithmetic], "bf16", left, right, BFLOAT16)
            result[at] = BFLOAT16.of_float32(found)
        except NoTensorCoreValueError:
            result[at] = BFLOAT16.nan
    return result


def program_of(name: str, case: Case, a: torch.Tensor, b: torch.Tensor) -> Program:
    """A step that stores a convolution of two states in a third."""
    kinds = [TensorType(tuple(x.shape), DType.BF16) for x in (a, b)]
    nodes = [Node("state", (), {"slot": slot}, kind) for slot, kind in enumerate(kinds)]
    size = {"conv2d_grad_input": case.size, "conv2d_grad_weight": case.kernel}.get(name)
    attributes = case.attributes(**({} if size is None else {"size": size}))
    made = operator(name).infer(kinds, attributes, TensorType((), DType.F32))  # type: ignore[arg-type]
    nodes.append(Node(name, (0, 1), attributes, made))  # type: ignore[arg-type]
    nodes += [Node("store", (value,), {"slot": value}, nodes[value].type) for value in range(3)]
    return Program(nodes=tuple(nodes), state_names=("a", "b", "c"), data_names=(), schedule_names=(), batch_size=1)


def computed(program: Program, *states: torch.Tensor) -> Words:
    """What the program's last operator stores, as patterns."""
    last = program.nodes[-1].inputs[0]
    given = StepInputs(states=states, data=(), schedule=torch.zeros(0), seed=0, step=0, device=torch.device("cpu"))
    found = evaluated(CheckedProgram(program, FLOAT32), [last], given)[last]
    return found.contiguous().view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize("name", MODELS)
def test_a_convolution_is_the_product_of_its_terms_in_the_order_that_is_stated(name: str) -> None:
    arithmetic, others = "hopper", [0, 0]
    for seed in range(12):
        case = Case(Random(f"{name} {seed}"))
        a = case.numbers(case.x if name == "conv2d" else case.g)
        b = case.numbers(case.x if name == "conv2d_grad_weight" else case.w)
        plain = program_of(name, case, a, b)
        program = with_arithmetic(plain, arithmetic)
        check(program)
        assert not any(node.op in MODELS for node in program.nodes)
        assert sum(node.op == "tensor_core_matmul" for node in program.nodes) == 1
        found = computed(program, a, b)
        assert np.array_equal(found, modelled(name, case, a, b, arithmetic)), (seed, vars(case))
        others[0] += not np.array_equal(found, computed(plain, a, b))
        others[1] += not np.array_equal(found, modelled(name, case, a, b, arithmetic, -1))
    assert min(others) > 0, "exact sums, and sums in another order, are other ones"


def test_long_kernels_are_joined_in_groups() -> None:
    case = Case(Random(0))
    case.groups, case.stride, case.dilation, case.padding = 1, (1, 2), (1, 1), (0, 3)
    case.kernel, case.size = (1, 150), (1, 170)
    a, b = case.numbers((2, 1, 1, 170)), case.numbers((1, 1, 1, 150))
    case.x, case.w, case.outputs = (2, 1, 1, 170), (1, 1, 1, 150), (1, 14)
    found = computed(with_arithmetic(program_of("conv2d", case, a, b), "hopper"), a, b)
    assert np.array_equal(found, modelled("conv2d", case, a, b, "hopper"))


def biased(case: Case, *, kept: bool) -> Program:
    """A step that stores a convolution with a bias, which is added to sums in FP32. kept: whether it stores those, too,
    before they are rounded."""
    new = NodeList()
    kinds = [TensorType(shape, DType.BF16) for shape in (case.x, case.w, case.w[:1])]
    states = [new.append(Node("state", (), {"slot": slot}, kind)) for slot, kind in enumerate(kinds)]
    x, w, bias = (new.add("to_f32", value) for value in states)
    sums = new.add("conv2d", x, w, **case.attributes())  # type: ignore[arg-type]
    sums = new.add("add", sums, new.reshape(bias, 1, case.w[0], 1, 1))
    for slot, value in enumerate([*states, *([sums] if kept else []), new.add("to_bf16", sums)]):
        new.append(Node("store", (value,), {"slot": slot}, new.type(value)))
    names = tuple("abcde"[: 4 + kept])
    return Program(nodes=tuple(new.nodes), state_names=names, data_names=(), schedule_names=(), batch_size=1)


def test_a_bias_is_the_last_term_of_every_sum() -> None:
    for seed in range(6):
        case = Case(Random(f"bias {seed}"))
        a, b, bias = case.numbers(case.x), case.numbers(case.w), case.numbers(case.w[:1])
        program = with_arithmetic(biased(case, kept=False), "hopper")
        check(program)
        assert not {"conv2d", "add", "to_f32", "to_bf16"} & {node.op for node in program.nodes}
        case.bias = words(bias)
        expected = modelled("conv2d", case, a, b, "hopper")
        assert np.array_equal(computed(program, a, b, bias), expected), (seed, vars(case))


def test_convolutions_whose_sums_are_read_in_fp32_stay_exact() -> None:
    with pytest.raises(ProgramError, match="multiplies no matrices of bf16 or f16"):
        with_arithmetic(biased(Case(Random(1)), kept=True), "hopper")
