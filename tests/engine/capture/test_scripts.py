"""Habits of ordinary training scripts beside calling operators: checkpointing, aliases, hooks, Python state. Each is
captured as PyTorch trains it, or refused in a sentence that names it."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.engine.capture.script_tasks import Forward, Net, refused, same, task_of


class ReadsWeights(torch.autograd.Function):
    """Its backward pass reads the weights of a module."""

    @staticmethod
    def forward(ctx, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.layer = layer
        return x @ layer.weight.t()

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None]:
        return g @ ctx.layer.weight, None


def hooked(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h.register_hook(lambda g: g * net.b.weight.mean())
    return net.b(h)


FOLLOWED: dict[str, Forward] = {
    "a checkpoint": lambda n, x: n.b(checkpoint(lambda h: torch.tanh(n.a(h)), x, use_reentrant=False)),
    "a reentrant checkpoint": lambda n, x: n.b(checkpoint(lambda h: torch.tanh(n.b(h)), n.a(x), use_reentrant=True)),
    "checkpoints in sequence": lambda n, x: checkpoint_sequential(
        nn.Sequential(n.a, nn.Tanh(), n.b), 2, x, use_reentrant=False
    ),
    "a backward pass that reads weights": lambda n, x: ReadsWeights.apply(n.a(x), n.b),
    "a hook on a tensor that reads weights": hooked,
}


@pytest.mark.slow_cases("a reentrant*", "checkpoints in sequence", "a backward*", "a hook*")
@pytest.mark.parametrize("name", FOLLOWED)
def test_what_reads_weights_in_the_backward_pass_reads_those_of_the_step(name: str) -> None:
    same(task_of(Net(FOLLOWED[name])))


def test_a_checkpoint_draws_the_same_mask_twice() -> None:
    model = Net(lambda n, x: n.b(checkpoint(lambda h: n.drop(torch.tanh(n.a(h))), x, use_reentrant=False)))
    job = Job.from_task(task_of(model))
    assert sum(node.op == "uniform" for node in job.program.nodes) == 1


def test_two_dropouts_draw_two_masks() -> None:
    job = Job.from_task(task_of(Net(lambda n, x: n.drop(n.b(n.drop(n.a(x)))))))
    assert sum(node.op == "uniform" for node in job.program.nodes) == 2


def test_a_penalty_over_a_list_of_parameters_has_a_gradient() -> None:
    model = Net(lambda n, x: n.b(n.a(x)))
    weights = list(model.parameters())
    same(task_of(model, lambda m, b: m(b["x"]).mean() + sum(w.square().sum() for w in weights)))


def test_parameters_in_lists_and_closures_are_trained() -> None:
    model = Net(lambda n, x: n.get(x @ n.list[0].t()))
    model.list, weight = [model.a.weight], model.b.weight
    model.get = lambda h: h @ weight
    same(task_of(model))


def _clamp(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


@pytest.mark.slow_cases("gradient", "accumulated gradient", "forward")
@pytest.mark.parametrize(
    "register",
    [
        lambda n: n.a.weight.register_hook(lambda g: g * 0.1),
        lambda n: n.a.weight.register_post_accumulate_grad_hook(_clamp),
        lambda n: n.a.register_forward_hook(lambda m, i, o: o * 0.5),
        lambda n: n.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,)),
    ],
    ids=["gradient", "accumulated gradient", "forward", "backward"],
)
def test_hooks_are_followed(register: Callable[[Net], object]) -> None:
    model = Net(lambda n, x: n.b(n.a(x)))
    register(model)
    same(task_of(model))


def _replaces_memory(net: Net, x: Tensor) -> Tensor:
    net.a.weight.data = F.normalize(net.a.weight.data)
    return net.a(x)


def _replaces_memory_in_a_hook(net: Net, x: Tensor) -> Tensor:
    def replace(gradient: Tensor) -> None:
        net.b.weight.data = net.b.weight.data * 0.5

    y = net.a(x)
    y.register_hook(replace)
    return y


@pytest.mark.parametrize("forward", [_replaces_memory, _replaces_memory_in_a_hook])
def test_other_memory_for_a_parameter_is_followed(forward: Forward) -> None:
    same(task_of(Net(forward)))


def _clamps_data(net: Net, x: Tensor) -> Tensor:
    net.a.weight.data.clamp_(-0.2, 0.2)
    return net.a(x)


def _scales_weight(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.a.weight.mul_(0.9)
    return net.a(x)


@pytest.mark.parametrize("forward", [_clamps_data, _scales_weight])
def test_writes_into_parameters_are_followed(forward: Forward) -> None:
    same(task_of(Net(forward)))


def _recurs(net: Net, x: Tensor) -> Tensor:
    net.h = torch.tanh(net.a(x) + net.h).detach()
    return net.b(x) + net.h


def _moves_centre(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    net.h.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y - net.h


def _keeps_in_a_dictionary(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) + net.kept["h"]
    net.kept["h"] = y.detach() * 0.5
    return y


@pytest.mark.slow_cases("_recurs", "_keeps_in_a_dictionary")
@pytest.mark.parametrize("forward", [_recurs, _moves_centre, _keeps_in_a_dictionary])
def test_tensors_in_attributes_are_state(forward: Forward) -> None:
    model = Net(forward)
    model.h, model.kept = torch.zeros(4, 6), {"h": torch.zeros(4, 6)}
    job = same(task_of(model))
    assert [name for name in job.initial if name.startswith("attribute/")]


def test_what_nobody_reads_is_no_state() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.last = net.a(x)
        return net.last * 2.0

    model = Net(forward)
    model.last = torch.zeros(4, 6)
    job = same(task_of(model))
    assert not [name for name in job.initial if name.startswith("attribute/")]


def test_a_teacher_that_the_loss_moves_is_state() -> None:
    model = Net(lambda n, x: n.b(n.a(x)))
    teacher = copy.deepcopy(model.a)

    def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), m.a.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        return (m(batch["x"]) - teacher(batch["x"])).square().mean()

    job = same(task_of(model, loss))
    assert {"attribute/teacher.weight", "attribute/teacher.bias"} <= job.initial.keys()


def test_parameters_that_share_their_memory_are_one_state() -> None:
    model = Net(lambda n, x: n.b(torch.tanh(n.a(x))))
    model.b.weight = nn.Parameter(model.a.weight.data)
    job = same(task_of(model))
    assert "parameter/a.weight" in job.initial and "parameter/b.weight" not in job.initial


@pytest.mark.parametrize("transposed", [False, True])
def test_a_tensor_that_shares_memory_with_a_parameter_follows_it(transposed: bool) -> None:
    model = Net(lambda n, x: n.a(x) + x @ n.alias)
    model.alias = model.a.weight.data.t() if transposed else model.a.weight.data
    same(task_of(model))


def test_a_buffer_that_shares_all_memory_of_a_parameter_follows_it() -> None:
    model = Net(lambda n, x: n.a(x) + x @ n.alias)
    model.register_buffer("alias", model.a.weight.data)
    same(task_of(model))


def test_a_buffer_that_shares_some_memory_of_a_parameter_is_refused() -> None:
    model = Net(lambda n, x: n.a(x) + n.row)
    model.register_buffer("row", model.a.weight.data[1])
    refused(task_of(model), "buffer/row shares memory with parameter/a.weight, but not all of it")


@pytest.mark.slow
def test_a_compiled_model_is_captured_as_what_it_wraps() -> None:
    job = Job.from_task(task_of(torch.compile(Net(lambda n, x: n.b(n.a(x))))))  # type: ignore[arg-type]
    assert "parameter/a.weight" in job.initial


def test_the_whole_dataset_inside_the_step_is_refused() -> None:
    task = task_of(Net(lambda n, x: n.a(x) + data[:4]))
    data = task.dataset["x"]
    refused(task, "reads the dataset field x other than by its batch")


def test_the_model_is_as_it_was_afterwards() -> None:
    """Caches, counters, generators, hooks and gradients too."""

    def forward(net: Net, x: Tensor) -> Tensor:
        if net.cache is None:
            net.cache = torch.arange(6).float().cos()
        net.n += 1
        net.seen.append(x)
        return net.b(net.a(x)) * net.cache * torch.rand(6, generator=generator)

    model, generator = Net(forward), torch.Generator().manual_seed(1)
    model.cache, model.n, model.seen = None, 0, []
    model.a = torch.nn.utils.parametrizations.weight_norm(model.a)
    task = task_of(model)
    model.b.weight.grad = torch.ones(6, 6)
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    states = torch.get_rng_state(), random.getstate(), generator.get_state()
    Job.from_task(task)
    assert (model.cache, model.n, model.seen) == (None, 0, [])
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert tensor is before[name][0] and torch.equal(tensor, before[name][1])
        assert tensor.data_ptr() == before[name][0].data_ptr()
    assert model.b.weight.grad is not None and bool((model.b.weight.grad == 1).all()) and model.a.bias.grad is None
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.equal(generator.get_state(), states[2])
    assert not task.optimizer.state and task.optimizer.param_groups[0]["lr"] == 0.1


def test_a_table_that_the_first_step_keeps_is_that_of_a_program() -> None:
    """PyTorch's numbers differ in the last bit from a program's constants, and the second step finds them kept."""

    def forward(net: Net, x: Tensor) -> Tensor:
        if net.table is None:
            net.table = torch.outer(torch.arange(4096.0), torch.logspace(-4, 0, 6)).cos()
        return net.b(net.a(x)) * net.table[:4] + net.table.mean(0)

    model = Net(forward)
    model.table = None
    same(task_of(model))


def test_old_weight_norm_and_pruning_leave_real_tensors_behind() -> None:
    from torch.nn.utils import prune

    model = Net(lambda n, x: n.b(n.a(x)))
    prune.l1_unstructured(model.a, "weight", 0.5)
    same(task_of(model))
    assert type(model.a.weight) is Tensor and bool(model(torch.ones(4, 6)).isfinite().all())


@pytest.mark.slow_cases("dtype1")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_small_integers_are_data(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6))
    task = Task(
        model=model,
        loss=lambda m, b: (m[1](m[0](b["i"].long())) + b["i"].float()[:, None] / 255).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"i": torch.randint(0, 9, (12,), dtype=dtype)},
        batch_size=4,
        steps=3,
        interval=1,
        seed=3,
    )
    assert same(task).dataset["i"].dtype == torch.int64


@pytest.mark.slow
def test_a_mask_of_infinities_does_not_hide_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def task() -> Task:
        model = Net(lambda n, x: n.a(x) + torch.where(n.mask[:1, :1] < 0, n.mask[1, 0], 0.0))
        model.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))
        return task_of(model)

    same(task())
    changed = task()
    own_step = torch.optim.SGD.step

    def step(optimizer: torch.optim.SGD) -> None:
        own_step(optimizer)
        for parameter in changed.model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    refused(changed, "the captured step is not yours")


def test_what_requires_a_gradient_does_so_afterwards() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.b.bias.requires_grad_(False)
        return net.b(net.a(x))

    model = Net(forward)
    with contextlib.suppress(CaptureError):
        Job.from_task(task_of(model))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
def test_compiled_and_scripted_parts_are_captured_as_what_they_do() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    compiled = torch.compile(lambda y: torch.sin(y) * 2.0)
    model = Net(lambda n, x: compiled(n.b(n.part(n.a(x)))))
    model.part = scripted
    model.a.compile()
    same(task_of(model))
