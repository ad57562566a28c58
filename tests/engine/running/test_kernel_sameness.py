"""Steps with numbers of fewer than 32 bits: the comparison kernel by kernel lets pass what PyTorch computes, and finds
casts that are missing, or too many."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from roundlog.capture import Captured, CaptureError, Task, capture, decompositions, optimizers
from roundlog.capture.builder import Builder, Value
from roundlog.capture.real_steps import eager_steps
from roundlog.capture.real_steps.eager_steps import EagerTraining, batch_of
from roundlog.capture.real_steps.patched_torch import eager_torch
from roundlog.data import spill_file, widened
from roundlog.data.spill_file import SpillFile
from roundlog.execution import CheckedProgram
from roundlog.number_format import FLOAT32
from roundlog.operators import StepInputs
from roundlog.program import DType
from roundlog.training import kernel_sameness
from roundlog.training.job import Job
from roundlog.training.kernel_sameness import confirm_same_kernels, evaluated, has_short_numbers
from roundlog.training.sameness import confirm_same
from roundlog.training.trial import Trial, TrialProgress
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.engine.running.short_steps import Between, compared, is_noticed, net, task_of
from tests.engine.tasks import in_bf16, under_autocast


def test_what_autocast_computes_is_compared_kernel_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "_LARGE", 0)
    found: list[Any] = []
    job = Job.from_task(lambda: task_of(net(), under_autocast, max_grad_norm=0.5), report=found.append)
    assert found[0].kernels > 100 and "results of PyTorch's kernels one by one" in str(found[0])
    assert has_short_numbers(job.program)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mixed, self.out = nn.Linear(8, 3 * 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).view(1, x.shape[0], 3, 4, 16).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out: Tensor = self.out(seen.reshape(x.shape[0], 64))
        return out


@pytest.mark.slow
def test_what_gradients_wait_for_lies_in_files_which_go_with_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large model. The bits are those that PyTorch has in memory, and files of earlier steps have gone."""

    def losses() -> list[float]:
        training = EagerTraining(task_of(_Attention(), under_autocast))
        with eager_torch():
            return [training.step(step, batch_of(training.task, step)) for step in range(4)]

    in_memory = losses()
    for module, name, value in (
        (eager_steps, "_MANY", 1),
        (eager_steps, "_LARGE", 1),
        (kernel_sameness, "_LARGE", 1),
        (kernel_sameness, "_FAR", 0),
        (spill_file, "_LARGE", 0),
    ):
        monkeypatch.setattr(module, name, value)
    assert losses() == in_memory
    captured = capture(lambda: task_of(_Attention(), under_autocast))
    files, sizes, append = WeakSet[SpillFile](), list[int](), SpillFile.append

    def counted(file: SpillFile, tensor: Tensor) -> int:
        files.add(file)
        start = append(file, tensor)
        sizes.append(sum(one._size for one in files))
        return start

    monkeypatch.setattr(SpillFile, "append", counted)
    largest = []
    for steps in (2, 4):
        gc.collect()  # the modes that have watched refer to themselves
        sizes.clear()
        trial = Trial(captured, captured.states, steps, TrialProgress(lambda share, detail: None, [steps], kernels=1))
        confirm_same_kernels(captured, trial, lambda step, theirs, ours: None)
        largest.append(max(sizes))
    assert largest[1] <= largest[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "norm"),
    [
        pytest.param(lambda p: optim.AdamW(p, lr=0.01), None, id="AdamW"),
        pytest.param(lambda p: optim.Adam(p, lr=0.003, weight_decay=0.1, amsgrad=True), 0.3, id="Adam"),
        pytest.param(lambda p: optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.01), 0.3, id="SGD"),
        pytest.param(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3), None, id="dampened SGD"),
    ],
)
def test_optimizers_of_bf16_parameters_step_as_pytorch_does(make: Any, norm: float | None) -> None:
    model = net().bfloat16()
    task = task_of(model, in_bf16, make(model.parameters()), max_grad_norm=norm)
    assert confirm_same(capture(lambda: task)).kernels > 100


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow_but("layer")
@pytest.mark.parametrize(
    ("kind", "loss"),
    [(lambda: nn.LayerNorm(24, eps=1e-6), under_autocast), (lambda: nn.GroupNorm(4, 24, eps=1e-6), in_bf16)],
    ids=["layer", "group"],
)
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
    found = evaluated(CheckedProgram(captured.program, FLOAT32), places, given)
    return [found[place].view(torch.uint8).numpy().tobytes() for place in places]


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


@pytest.mark.slow
def test_a_cast_that_is_missing_is_noticed() -> None:
    task = task_of(net(), under_autocast)
    captured = capture(lambda: task)
    right = gradients(task, captured)
    spoilt = []
    with unrounded(-1) as products:
        capture(lambda: task)
    for number in range(len(products)):
        with unrounded(number):
            spoilt.append(capture(lambda: task))
    spoilt = [one for one in spoilt if gradients(task, one) != right]
    assert len(spoilt) >= 4 and compared(captured) > 30
    assert all(is_noticed(one) for one in spoilt)


def test_a_write_by_numpy_that_a_trace_does_not_see_is_noticed() -> None:
    def zeroed(y: Tensor) -> Tensor:
        z = y.float().detach() * 1.5
        if type(z) is Tensor:  # not in a trace
            z.numpy()[:, :16] = 0
        return y + z

    with pytest.raises(CaptureError, match="writes, by other code than PyTorch's, into what mul gives at test_kernel_"):
        compared(capture(lambda: task_of(Between(zeroed), under_autocast)))


@pytest.mark.slow
def test_a_row_that_is_wrong_before_a_product_is_noticed_whatever_rows_are_compared() -> None:
    def without_a_row(y: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            z, unit = y.float().detach(), torch.eye(24)
            for _ in range(3):
                z = F.linear(z, unit)
            if type(z) is Tensor:  # not in a trace
                wrong = z.numpy().copy()
                wrong[3] = 0
                z = torch.from_numpy(wrong)
            return y + F.linear(z, unit)

    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
    data = {"x": rows, "y": torch.zeros(600, dtype=torch.int64)}
    task = replace(task_of(Between(without_a_row), under_autocast), dataset=data, batch_size=600)
    with pytest.raises(CaptureError, match=r"aten\.mm"):
        compared(capture(lambda: task))
