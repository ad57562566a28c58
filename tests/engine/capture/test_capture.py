"""A captured program trains as PyTorch does, and what cannot be captured says why and where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from roundlog.adjudication import program_root
from roundlog.capture import CaptureError, Task, capture
from roundlog.job import Job
from roundlog.operators import check
from roundlog.program import from_json, to_json
from tasks import TASKS, classify, conv_task, gpt_task
from torch import nn
from trainings import train_by_program, train_by_pytorch


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(lambda: conv_task(dropout=0.0), id="conv, momentum and weight decay"),
        pytest.param(lambda: conv_task(dropout=0.0, nesterov=True), id="conv, nesterov"),
        pytest.param(lambda: conv_task(dropout=0.0, momentum=0.0, weight_decay=0.0), id="conv, plain SGD"),
        # The key bias of softmax attention has a gradient of zero, rounded; a large eps keeps Adam from
        # blowing that noise up.
        pytest.param(lambda: gpt_task(dropout=0.0, eps=1e-2), id="gpt, AdamW"),
    ],
)
def test_a_program_trains_as_pytorch_does(task) -> None:
    # The two round differently (that is the point of the project), so equality is not to be had here: what is
    # compared is meaning. Ten FP32 roundings' worth of difference is far below any wrong formula.
    task = task()
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 5), train_by_program(job, 5)
    assert set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
        if tensor.dtype == torch.int64:
            assert torch.equal(ours[name], tensor)


def test_batch_norm_statistics_and_counters_are_state() -> None:
    job = Job.from_task(conv_task())
    after = train_by_program(job, 3)
    assert int(after["buffer/norm.num_batches_tracked"]) == 3
    assert not torch.equal(after["buffer/norm.running_var"], job.initial["buffer/norm.running_var"])
    assert "slot/conv1.weight/momentum" in after


def test_tied_weights_are_one_state() -> None:
    names = Job.from_task(gpt_task()).program.state_names
    assert "parameter/tokens.weight" in names
    assert "parameter/head.weight" not in names


def test_dropout_keeps_the_promised_share_and_scales_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.25), nn.Flatten(0))
    weight = nn.Linear(1, 1)
    task = Task(
        model=nn.ModuleList([model, weight]),
        loss=lambda m, b: (m[0](b["x"]) * m[1].weight.reshape(())).sum() / 4096,
        optimizer=torch.optim.SGD(weight.parameters(), lr=1.0),
        dataset={"x": torch.ones(4096, 1)},
        batch_size=4096,
        steps=1,
        interval=1,
        seed=11,
    )
    job = Job.from_task(task)
    before = job.initial["parameter/1.weight"]
    gradient = float((before - train_by_program(job, 1)["parameter/1.weight"]).squeeze())
    kept = gradient * 0.75
    assert abs(kept - 0.75) < 0.03
    assert kept != 0.75


def test_every_random_operator_has_a_stream_of_its_own() -> None:
    program = capture(gpt_task()).program
    streams = [node.attributes["stream"] for node in program.nodes if node.op == "uniform"]
    assert len(streams) == 6
    assert len(set(streams)) == 6


@pytest.mark.parametrize("name", TASKS)
def test_a_program_survives_its_text(name: str) -> None:
    program = capture(TASKS[name]()).program
    text = to_json(program)
    again = from_json(text)
    check(again)
    assert again == program
    assert to_json(again) == text


def test_operators_know_the_users_lines() -> None:
    program = capture(gpt_task()).program
    lines = [node.source for node in program.nodes if node.op in ("matmul", "erf", "exp")]
    assert all(line.startswith("tasks.py:") for line in lines), lines


def test_capture_gives_the_same_program_in_every_process() -> None:
    code = (
        "from tasks import gpt_task; from roundlog.capture import capture; "
        "from roundlog.adjudication import program_root; print(program_root(capture(gpt_task()).program).hex())"
    )
    path = str(Path(__file__).parents[1])
    roots = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert roots == {program_root(capture(gpt_task()).program).hex()}


def refused(
    module: nn.Module, message: str, *, x: torch.Tensor | None = None, loss=None, optimizer=None, **more
) -> None:
    x = torch.randn(4, 6) if x is None else x
    task = Task(
        model=module,
        loss=loss or (lambda m, b: m(b["x"]).sum()),
        optimizer=optimizer or torch.optim.SGD(module.parameters(), lr=0.1),
        dataset={"x": x},
        **{"batch_size": 4, "steps": 1, "interval": 1, "seed": 0, **more},
    )
    with pytest.raises(CaptureError, match=message) as caught:
        capture(task)
    assert "\n" not in str(caught.value)


class Calls(nn.Module):
    """A linear layer followed by any function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def test_an_operator_without_a_counterpart_is_named_with_its_line() -> None:
    refused(Calls(lambda x: torch.special.i0(x)), r"aten\.\w*i0\S* \(at test_capture\.py:\d+\) has no counterpart")


def test_control_flow_that_depends_on_values_is_refused() -> None:
    refused(Calls(lambda x: x if x.sum() > 0 else -x), r"control flow depends on values.*\(at test_capture\.py:\d+\)")


def test_float64_inside_the_step_is_refused() -> None:
    refused(Calls(lambda x: x.double().sum()), r"float64")


def linear_through(function) -> None:
    """Train a linear layer with a function behind it both ways, and compare."""
    torch.manual_seed(2)
    model = Calls(function)
    task = Task(
        model=model,
        loss=lambda m, b: (m(b["x"]) * b["x"]).sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(6, 6)},
        batch_size=6,
        steps=2,
        interval=1,
        seed=0,
    )
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 2), train_by_program(job, 2)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5)


def write_through_views(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    first = y[0]
    early = first * 3.0
    y[:, 1:3].mul_(2.0)
    y.t()[4].add_(1.0)
    y.view(-1)[-6:].neg_()
    y[1] = first
    return y + early + first


def test_writes_through_views_reach_every_view() -> None:
    linear_through(write_through_views)


def test_a_write_into_an_empty_slice_writes_nothing() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[3:2].mul_(2.0)
        return y

    linear_through(write)


def test_changing_the_shape_of_a_tensor_in_place_writes_nothing() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t_()
        y[0].mul_(3.0)
        first = y[1]
        first.unsqueeze_(0)
        return y * x + first

    linear_through(turn)


def test_changing_the_shape_of_a_tensor_in_place_is_refused_where_there_are_views_of_it() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        first = y[0]
        y.t_()
        return y * first

    refused(Calls(turn), r"changes the shape of a tensor in place.*use aten\.t$", x=torch.randn(6, 6), batch_size=6)


class ViewsItsStatistics(nn.Module):
    """Reads views of the running statistics before batch norm writes to them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = self.norm.running_mean[0:4:2], self.norm.running_var.view(2, 2)
        y = self.norm(self.linear(x))
        return y * (1 + mean.sum() + var.sum())


def test_batch_norm_updates_statistics_of_which_views_are_read() -> None:
    torch.manual_seed(3)
    model = ViewsItsStatistics()
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"]).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(8, 6)},
        batch_size=8,
        steps=3,
        interval=1,
        seed=0,
    )
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 3), train_by_program(job, 3)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5)


def test_writes_into_every_few_elements_reach_them() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[::2].mul_(2.0)
        y[:, 1::3] = 0.5
        return y * x

    linear_through(write)


def test_a_large_constant_becomes_a_state_that_stays() -> None:
    big = torch.linspace(0, 1, 60).outer(torch.linspace(1, 2, 60))
    model = Calls(lambda x: (x[0, 0] * big).mean() + (big[1:] * x[1, 0]).cos().mean() + (x * big[:4, :6]).mean())
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset={"x": torch.randn(4, 6)},
        batch_size=4,
        steps=3,
        interval=1,
        seed=0,
    )
    job = Job.from_task(task)
    assert [name for name in job.initial if name.startswith("constant/")] == ["constant/0", "constant/1"]
    theirs, ours = train_by_pytorch(task, 3), train_by_program(job, 3)
    torch.testing.assert_close(ours["parameter/linear.weight"], theirs["parameter/linear.weight"])
    assert all(torch.equal(ours[name], job.initial[name]) for name in job.initial if name.startswith("constant/"))


def test_what_depends_on_nothing_is_computed_at_capture() -> None:
    def by_distance(x: torch.Tensor) -> torch.Tensor:
        # Logarithms of zero that are then thrown away, and conversions to integers: T5's relative positions.
        distance = torch.arange(6)[None, :] - torch.arange(6)[:, None]
        far = (torch.log(distance.abs().float() / 2) / 0.3).to(torch.int64)
        bucket = torch.where(distance.abs() < 2, distance.abs(), far.clamp(max=5))
        hashed = (bucket * 7) % 5 ^ 3
        return x[:, :6][:, bucket[0]] * hashed.to(x.dtype)[1] * torch.eye(6, dtype=torch.float64).sum()

    linear_through(by_distance)
    program = capture(
        Task(
            model=(model := Calls(by_distance)),
            loss=lambda m, b: m(b["x"]).sum(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset={"x": torch.randn(4, 6)},
            batch_size=4,
            steps=1,
            interval=1,
            seed=0,
        )
    ).program
    assert not {"log", "floor"} & {node.op for node in program.nodes}


def test_a_constant_that_is_written_to_is_not_taken_for_its_first_value() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(6).to(torch.int32).to(torch.float32)
        early = table + 0.0
        view = table[2:4]
        view.mul_(x.detach()[0, :2])
        return x * table * early

    linear_through(write)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0].sum(),
        lambda x: x.nonzero().sum() * x.sum(),
        lambda x: torch.masked_select(x, x > 0).sum(),
        lambda x: x.repeat_interleave((x[:, 0] > 0).long(), 0).sum(),
    ],
)
def test_a_shape_that_depends_on_values_is_refused(function) -> None:
    refused(Calls(function), r"depends on values", loss=lambda m, b: m(b["x"]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.to(torch.int8) * x, r"aten\._to_copy\S* \(at test_capture\.py:\d+\).*int8 is not a storage type"),
        (lambda x: (x.long() & 3) * x, r"aten\.bitwise_and\S* .*only masks"),
        (lambda x: x.index_put((x.argmax(1),), x), r"aten\.index_put\S* .*indices that may be equal"),
        (lambda x: x.scatter(1, x.argsort(1) // 2, x), r"aten\.\S+ \(at test_capture\.py:\d+\)"),
        (lambda x: x.scatter(1, (x > 0).long().sort(1)[0], x), r"aten\.scatter\S* .*more than one value a line"),
        (lambda x: x * x.detach().histc(6), r"aten\.histc\S* .*give min and max"),
        (lambda x: (-2) ** x, r"aten\.pow\S* .*positive base"),
        (lambda x: F.adaptive_max_pool1d(x, 4), r"aten\.adaptive_max_pool2d\S* .*choose divisors"),
        (lambda x: torch.linalg.inv(x[:4, :4]), r"aten\.linalg_inv\S* .*no counterpart"),
        (lambda x: torch.fft.rfft(x).real, r"aten\._fft\S* .*"),
    ],
)
def test_what_cannot_be_lowered_is_named_with_its_line(function, message: str) -> None:
    refused(Calls(function), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 5}, "a batch of 5 does not fit a dataset of 4 rows"),
        ({"batch_size": 0}, "a batch of 0"),
        ({"steps": 7, "interval": 2}, "7 steps cannot be cut"),
        ({"seed": -1}, "seed"),
        ({"x": torch.zeros(0, 6)}, "is empty"),
        ({"x": torch.zeros(4, 6, dtype=torch.float16)}, "convert it to float32"),
        ({"loss": lambda m, b: m(b["x"])}, "reduce it to a scalar"),
    ],
)
def test_a_task_that_cannot_be_trained_says_why(change, message: str) -> None:
    refused(nn.Linear(6, 2), message, **change)


def test_optimizers_that_are_not_supported_say_so() -> None:
    model = nn.Linear(6, 2)
    refused(model, "Adagrad is not supported", optimizer=torch.optim.Adagrad(model.parameters()))
    refused(model, "dampening", optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5))
    refused(model, "amsgrad", optimizer=torch.optim.AdamW(model.parameters(), amsgrad=True))
    used = torch.optim.AdamW(model.parameters())
    model(torch.randn(1, 6)).sum().backward()
    used.step()
    refused(model, "fresh", optimizer=used)
    refused(model, "not the model's", optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_frozen_parameters_and_groups_are_respected() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    model[0].bias.requires_grad_(False)
    groups = [
        {"params": [model[0].weight], "lr": 0.5, "weight_decay": 0.1},
        {"params": model[2].parameters(), "lr": 0.05},
    ]
    task = Task(
        model=model,
        loss=classify,
        optimizer=torch.optim.AdamW(groups),
        dataset={"x": torch.randn(8, 6), "y": torch.randint(0, 2, (8,))},
        batch_size=4,
        steps=4,
        interval=2,
        seed=0,
    )
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 4), train_by_program(job, 4)
    assert torch.equal(ours["parameter/0.bias"], job.initial["parameter/0.bias"])
    assert not any(name.startswith("slot/0.bias") for name in ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-4, atol=2e-5)


def test_a_loss_that_uses_submodules_directly_is_captured() -> None:
    model = nn.Linear(6, 2)
    task = Task(
        model=model,
        loss=lambda m, b: F.mse_loss(F.linear(b["x"], m.weight), torch.zeros(4, 2)),
        optimizer=torch.optim.SGD([model.weight], lr=0.1),
        dataset={"x": torch.randn(4, 6)},
        batch_size=4,
        steps=1,
        interval=1,
        seed=0,
    )
    job = Job.from_task(task)
    theirs, ours = train_by_pytorch(task, 1), train_by_program(job, 1)
    torch.testing.assert_close(ours["parameter/weight"], theirs["parameter/weight"])
