"""Steps with numbers of fewer than 32 bits: the comparison kernel by kernel lets pass what PyTorch computes, and finds
casts that are missing, or too many."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from roundlog.capture import Captured, CaptureError, Task, capture, decompositions, optimizers
from roundlog.capture.builder import Builder, Value, needed
from roundlog.data import widened
from roundlog.operators import StepInputs
from roundlog.program import DType, Program
from roundlog.training.job import Job
from roundlog.training.kernel_sameness import evaluated, has_short_numbers
from roundlog.training.sameness import confirm_same
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.engine.running.short_steps import compared, in_bf16, is_noticed, net, task_of, under_autocast


def test_what_autocast_computes_is_compared_kernel_by_kernel() -> None:
    found: list[Any] = []
    job = Job.from_task(lambda: task_of(net(), under_autocast, max_grad_norm=0.5), report=found.append)
    assert found[0].kernels > 100 and "results of PyTorch's kernels one by one" in str(found[0])
    assert has_short_numbers(job.program)


@pytest.mark.slow_but("*-AdamW", "*-SGD")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: optim.AdamW(p, lr=0.01), id="AdamW"),
        pytest.param(lambda p: optim.Adam(p, lr=0.003, weight_decay=0.1, amsgrad=True), id="Adam"),
        pytest.param(lambda p: optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.01), id="SGD"),
        pytest.param(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3), id="dampened SGD"),
        pytest.param(lambda p: optim.SGD(p, lr=0.1), id="plain SGD"),
    ],
)
@pytest.mark.parametrize("norm", [None, 0.3])
def test_optimizers_of_bf16_parameters_step_as_pytorch_does(make: Any, norm: float | None) -> None:
    model = net().bfloat16()
    task = task_of(model, in_bf16, make(model.parameters()), max_grad_norm=norm)
    assert confirm_same(capture(lambda: task)).kernels > 100


class WithBuffer(nn.Module):
    """Keeps a mean of few numbers, by a scaled sum in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.last(x + self.mean)


RIGHT = {
    "layer norm": lambda: nn.Sequential(
        nn.Linear(8, 24), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(24), nn.Linear(24, 3)
    ),
    "group norm": lambda: nn.Sequential(nn.Linear(8, 24), nn.GroupNorm(4, 24), nn.SiLU(), nn.Linear(24, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 3)),
    "mean kept": WithBuffer,
}


@pytest.mark.slow_but("1-0.9-*")
@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", [1, 3])
def test_small_models_in_bf16_are_let_pass(kind: str, momentum: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = RIGHT[kind]().bfloat16()
    task = task_of(model, in_bf16, optim.SGD(model.parameters(), lr=0.1, momentum=momentum), seed=seed)
    assert confirm_same(capture(lambda: task)).kernels > 50


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.add(x * x, alpha=0.1), id="add"),
        pytest.param(lambda x: x.sub(x * x, alpha=0.3), id="sub"),
        pytest.param(lambda x: 0.7**x, id="base"),
        pytest.param(lambda x: (x * x + 1) ** 1.7, id="exponent"),
    ],
)
def test_numbers_that_pytorch_rounds_are_rounded(function: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3)).bfloat16()
    task = task_of(model, lambda m, b: F.cross_entropy(m[1](function(m[0](b["x"].bfloat16()))).float(), b["y"]))
    assert confirm_same(capture(lambda: task)).kernels > 50


def test_whole_numbers_that_pytorch_leaves_out_are_not_compared() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 8), nn.Linear(8, 3))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            bag = F.embedding_bag(batch["y"][:, None], model[0].weight, mode="sum")
            return F.cross_entropy(model[1](bag), batch["y"])

    task = task_of(model, loss)
    assert confirm_same(capture(lambda: task)).kernels > 50


class Experts(nn.Module):
    """Two of three experts for each row; rows are put into the order of their experts, as mixtures of experts do."""

    def __init__(self, order: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.order, self.router = order, nn.Linear(8, 3)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        experts = self.router(x).topk(2, dim=-1, sorted=False).indices.flatten()
        order = self.order(experts)
        rows = self.last(self.first(x).repeat_interleave(2, 0)[order].relu())
        return torch.zeros_like(rows).index_add_(0, order, rows).unflatten(0, (-1, 2)).sum(1)


@pytest.mark.parametrize(
    "order", [torch.argsort, lambda experts: experts.sort(stable=True).indices, lambda x: x.topk(32).indices]
)
def test_an_order_of_equal_numbers_may_be_another_than_pytorchs(order: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    fields = {"x": torch.randn(32, 8, generator=generator), "y": torch.randint(0, 3, (32,), generator=generator)}
    task = replace(task_of(Experts(order), under_autocast), dataset=fields, batch_size=16)
    assert confirm_same(capture(lambda: task)).kernels > 50


def test_one_of_equal_numbers_may_be_another_than_pytorchs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3)).bfloat16()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = model[0](batch["x"].bfloat16())
        equal = x + (x.round() - x).detach()
        values, places = (part[:, 19:20] for part in equal.sort())
        return F.cross_entropy(model[1](x * values * x.gather(1, places)).float(), batch["y"])

    task = task_of(model, loss)
    captured = capture(lambda: task)
    assert confirm_same(captured).kernels > 50
    nodes = list(captured.program.nodes)
    trail = captured.origin.trail
    (call,) = (number for number, one in enumerate(trail.calls) if "sort" in one.operator)
    place = trail.places[call, 1]
    nodes[place] = replace(nodes[place], op="constant", inputs=(), attributes={"bits": (0,)})
    assert is_noticed(replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.native_dropout(self.first(x), 0.2, True)[0])


def test_what_a_dropout_makes_of_its_mask_is_compared() -> None:
    task = task_of(WithDropout().bfloat16(), in_bf16)
    captured = capture(lambda: task)
    trail = captured.origin.trail
    call = next(n for n, one in enumerate(trail.calls) if one.operator == "aten.native_dropout.default")
    nodes, place = list(captured.program.nodes), trail.places[call, 0]
    nodes[place] = replace(nodes[place], op="neg", inputs=(trail.places[call - 1, 0],))
    assert not is_noticed(captured)
    assert is_noticed(replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


def test_a_trace_whose_dtypes_are_others_than_pytorchs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own tensors without numbers keep the statistics of a layer norm in BF16 here, its kernel in FP32."""
    monkeypatch.setattr(decompositions, "norms", dict)
    decompositions.decompositions.cache_clear()
    try:
        task = task_of(net(), under_autocast)
        with pytest.raises(CaptureError, match=r"not yours: at step 0 PyTorch computes aten\.native_layer_norm"):
            confirm_same(capture(lambda: task))
    finally:
        decompositions.decompositions.cache_clear()


@pytest.mark.parametrize(
    ("make", "spoil"),
    [
        (
            lambda p: optim.SGD(p, lr=0.5),
            (optimizers, "added", lambda x, y, factor: (x + 1.02 * factor * y).to(x.dtype)),
        ),
        (lambda p: optim.Adam(p, lr=0.3), (optimizers.Adam, "bias", lambda self, number, step: 1.02)),
    ],
)
def test_an_optimizer_of_bf16_parameters_that_steps_otherwise_is_noticed(
    make: Any, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net().bfloat16()
    task = task_of(model, in_bf16, make(model.parameters()))
    monkeypatch.setattr(*spoil)
    with pytest.raises(CaptureError, match=r"not yours: at step \d the change of parameter/"):
        confirm_same(capture(lambda: task))


@pytest.mark.parametrize("loss", [under_autocast, in_bf16])
@pytest.mark.parametrize("kind", [lambda: nn.LayerNorm(24, eps=1e-6), lambda: nn.GroupNorm(4, 24, eps=1e-6)])
def test_another_eps_than_that_of_a_norm_is_noticed(kind: Any, loss: Any) -> None:
    """No result shows it beside a variance of its inputs. Two norms of the same numbers are one in the program."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), kind(), nn.Linear(24, 3))

    def twice(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return loss(lambda x: model(x) + model(x), batch)

    task = task_of(model.bfloat16() if loss is in_bf16 else model, twice)
    captured = capture(lambda: task)
    assert not is_noticed(captured)
    eps, other = (int(torch.tensor(x).view(torch.int32)) for x in (1e-6, 1.02e-6))
    nodes = [
        replace(node, attributes={"bits": (other,)}) if node.attributes.get("bits") == (eps,) else node
        for node in captured.program.nodes
    ]
    assert nodes != list(captured.program.nodes)
    with pytest.raises(CaptureError, match="does not read the eps 1e-06"):
        compared(replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


@pytest.mark.parametrize("loss", [under_autocast, in_bf16])
@pytest.mark.parametrize(
    "number",
    [
        lambda x, n: x * (n / 40).clamp(max=1.0),
        lambda x, n: torch.where(x > n / 10, x, -x),
        lambda x, n: x * n,
    ],
    ids=["warm-up", "threshold", "one at first"],
)
def test_stated_numbers_are_computed_with(number: Any, loss: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Linear(24, 3))

    def annealed(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return loss(lambda x: model[1](number(model[0](x), batch["n"])), batch)

    task = task_of(model.bfloat16() if loss is in_bf16 else model, annealed, numbers={"n": lambda step: step + 1})
    assert confirm_same(capture(lambda: task)).kernels > 20


# Planted errors.


def test_a_loss_that_is_not_the_users_is_noticed() -> None:
    """Gradients and what the optimizer makes of them are right."""
    task = task_of(net(), under_autocast)
    captured = capture(lambda: task)
    nodes = list(captured.program.nodes)
    (place,) = (index for index, node in enumerate(nodes) if node.op == "loss")
    other = next(i for i, node in enumerate(nodes) if node.op == "schedule" and node.type == nodes[place].type)
    nodes[place] = replace(nodes[place], inputs=(other,))
    with pytest.raises(CaptureError, match="at step 0 the loss gives other numbers than PyTorch's"):
        confirm_same(replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


def gradients(task: Task, captured: Captured) -> list[bytes]:
    given = StepInputs(
        states=list(captured.states.values()),
        data=[widened(field) for field in task.batch(torch.arange(task.batch_size)).values()],
        schedule=captured.schedule[0],
        seed=task.seed,
        step=0,
        device=torch.device("cpu"),
    )
    places = list(captured.origin.gradients.values())
    found = evaluated(captured.program.nodes, places, given)
    return [found[place].view(torch.uint8).numpy().tobytes() for place in places]


def casts(captured: Captured) -> list[int]:
    """Operators that widen what has been rounded to BF16 before."""
    nodes = captured.program.nodes
    read = needed(nodes, captured.origin.gradients.values())

    def is_cast(index: int) -> bool:
        source = nodes[nodes[index].inputs[0]] if nodes[index].op == "to_f32" else nodes[index]
        return source.op == "to_bf16" and source is not nodes[index] and nodes[source.inputs[0]].type.dtype is DType.F32

    return [index for index in sorted(read) if is_cast(index)]


def without_cast(captured: Captured, index: int) -> Captured:
    nodes = list(captured.program.nodes)
    exact = nodes[nodes[index].inputs[0]].inputs[0]
    nodes[index] = replace(nodes[index], op="reshape", inputs=(exact,), attributes={"shape": nodes[index].type.shape})
    program: Program = replace(captured.program, nodes=tuple(nodes))
    return replace(captured, program=program)


@contextmanager
def unrounded(number: int) -> Iterator[list[Value]]:
    """Has the product with a number, of those that are widened, computed in FP32, where it is not rounded to BF16."""
    products: list[Value] = []
    convert = Builder.convert

    def converted(builder: Builder, value: Value, dtype: DType) -> Value:
        node, moved = builder.nodes[value], []
        while node.op in ("permute", "reshape"):
            moved.insert(0, node)
            node = builder.nodes[node.inputs[0]]
        if dtype is not DType.F32 or node.op != "matmul" or node.type.dtype is not DType.BF16:
            return convert(builder, value, dtype)
        if value not in products:
            products.append(value)
        if products.index(value) != number:
            return convert(builder, value, dtype)
        wide = builder.op("matmul", *(convert(builder, Value(one), dtype) for one in node.inputs))
        for one in moved:
            wide = builder.op(one.op, wide, **one.attributes)
        return wide

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "convert", converted)
        yield products


_COMPUTING = ("add", "sub", "mul", "div", "exp", "sqrt", "sum", "matmul", "erf", "log", "tanh")


class Planted:
    """Has the place with a number round what it computes in FP32 to BF16."""

    def __init__(self, number: int) -> None:
        self.number, self.places = number, 0


@contextmanager
def planted(number: int) -> Iterator[Planted]:
    plant, add = Planted(number), Builder._add

    def add_rounded(builder: Builder, name: str, inputs: Any, attributes: Any, kind: Any) -> Value:
        before = len(builder.nodes)
        value = add(builder, name, inputs, attributes, kind)
        is_new = len(builder.nodes) > before and builder.source not in ("AdamW", "clip_grad_norm_")
        if not is_new or kind.dtype is not DType.F32 or name not in _COMPUTING:
            return value
        plant.places += 1
        if plant.places != plant.number:
            return value
        short = add(builder, "to_bf16", (value,), {}, replace(kind, dtype=DType.BF16))
        rounded = add(builder, "to_f32", (short,), {}, kind)
        builder._known[name, tuple(inputs), tuple(sorted(attributes.items())), kind] = rounded
        return rounded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "_add", add_rounded)
        yield plant


def noticed_of_planted(wanted: int) -> tuple[int, int]:
    """(Planted casts that were noticed, those that change any gradient), of so many."""
    task = task_of(net(), under_autocast)
    with planted(0) as plant:
        clean = capture(lambda: task)
    right, noticed, wrong = gradients(task, clean), 0, 0
    for number in random.Random(0).sample(range(1, plant.places + 1), min(wanted, plant.places)):
        with planted(number):
            captured = capture(lambda: task)
        if gradients(task, captured) != right:
            wrong += 1
            noticed += is_noticed(captured)
    return noticed, wrong


def test_a_cast_that_is_missing_is_noticed() -> None:
    task = task_of(net(), under_autocast)
    captured = capture(lambda: task)
    right = gradients(task, captured)
    spoilt = [without_cast(captured, index) for index in casts(captured)]
    with unrounded(-1) as products:
        capture(lambda: task)
    for number in range(len(products)):
        with unrounded(number):
            spoilt.append(capture(lambda: task))
    spoilt = [one for one in spoilt if gradients(task, one) != right]
    assert len(spoilt) >= 4 and compared(captured) > 30
    assert all(is_noticed(one) for one in spoilt)


def test_a_cast_too_many_is_noticed() -> None:
    noticed, wrong = noticed_of_planted(6)
    assert noticed == wrong > 2


@pytest.mark.slow
def test_of_a_hundred_casts_too_many_ninety_five_are_noticed() -> None:
    noticed, wrong = noticed_of_planted(100)
    assert wrong >= 30 and noticed >= 0.95 * wrong


class Between(nn.Module):
    """Two layers with a function of the model between them."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(8, 32), nn.Linear(32, 3), function

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        result: Tensor = self.second(y + self.function(self, y))
        return result


def test_a_write_by_numpy_that_a_trace_does_not_see_is_noticed() -> None:
    def zeroed(model: Between, y: Tensor) -> Tensor:
        z = y.float().detach() * 1.5
        if type(z) is Tensor:  # not in a trace
            z.numpy()[:, :16] = 0
        return z

    with pytest.raises(CaptureError, match="writes, by other code than PyTorch's, into what mul gives at test_kernel_"):
        compared(capture(lambda: task_of(Between(zeroed), under_autocast)))


def test_draws_around_states_that_move_are_those_of_each_step() -> None:
    def drawn(model: Between, y: Tensor) -> Tensor:
        return F.linear(
            torch.normal(model.second.weight.detach(), torch.full((3, 32), 0.1)).float().sum(0), torch.eye(32)
        )

    assert confirm_same(capture(lambda: task_of(Between(drawn), under_autocast))).kernels > 40


def test_a_row_that_is_wrong_before_a_product_is_noticed_whatever_rows_are_compared() -> None:
    def without_a_row(model: Between, y: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            z, unit = y.float().detach(), torch.eye(32)
            for _ in range(3):
                z = F.linear(z, unit)
            if type(z) is Tensor:  # not in a trace
                wrong = z.numpy().copy()
                wrong[3] = 0
                z = torch.from_numpy(wrong)
            return F.linear(z, unit)

    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    data = {"x": rows, "y": torch.zeros(600, dtype=torch.int64)}
    task = replace(task_of(Between(without_a_row), under_autocast), dataset=data, batch_size=600)
    with pytest.raises(CaptureError, match=r"aten\.mm"):
        compared(capture(lambda: task))
