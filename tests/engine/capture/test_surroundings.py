"""Surroundings of a step beside its model's tensors: arrays, classes, caches, hooks. Each is followed and left as it
was, or refused by name."""

from __future__ import annotations

import array
import functools
import os
import subprocess
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from roundlog.capture import Task
from roundlog.capture.decompositions import decompositions
from roundlog.training.job import Job
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tests.engine.capture.test_scripts import Net, refused, same, task_of

TABLE: dict[int, Tensor] = {}


def net() -> Net:
    return Net(lambda n, x: n.b(torch.tanh(n.a(x))))


# Arrays of numpy


def test_a_numpy_view_of_a_parameter_is_refused() -> None:
    model = Net(lambda n, x: n.a(x) + torch.from_numpy(weight[0]))
    weight = model.a.weight.data.numpy()
    refused(task_of(model), "weight is a numpy view of parameter/a.weight: capture does not see", "(.copy())")


def test_a_numpy_view_of_a_part_of_a_buffer_is_refused() -> None:
    model = Net(lambda n, x: n.a(x) + n.shift)
    model.register_buffer("shift", torch.zeros(6))
    model.kept = [model.shift.numpy()[2:3]]
    refused(task_of(model), "model.kept[0] is a numpy view of buffer/shift")


def test_an_array_beside_the_state_that_is_made_of_it_is_refused() -> None:
    centre = np.zeros(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        n.centre.mul_(0.9).add_(n.a(x).detach().mean(0))
        return n.a(x) - n.centre + float(centre.size)

    model = Net(forward)
    model.centre = torch.from_numpy(centre)
    refused(task_of(model), "centre is a numpy view of attribute/model.centre")


def test_writing_an_array_that_a_tensor_lies_in_is_refused() -> None:
    mask = np.ones(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        mask[0] *= 0.5
        return n.a(x) * n.mask

    model = Net(forward)
    model.mask = torch.from_numpy(mask)
    refused(task_of(model), "mask is a numpy view of model.mask")


def test_two_tensors_that_are_made_of_one_array_are_refused() -> None:
    model = Net(lambda n, x: n.a(x) + x @ n.alias)
    weight = np.zeros((6, 6), dtype=np.float32)
    model.a.weight.data, model.alias = torch.from_numpy(weight), torch.from_numpy(weight[:1].T)
    refused(task_of(model), "parameter/a.weight and model.alias share memory without PyTorch's knowing", ".detach()")


def test_an_array_beside_a_constant_that_is_made_of_it_is_captured() -> None:
    mask = np.arange(6, dtype=np.float32)
    model = Net(lambda n, x: n.a(x) * n.mask / len(mask) + torch.from_numpy(mask))
    model.mask = torch.from_numpy(mask)
    same(task_of(model))


def test_an_array_on_which_a_step_depends_is_refused_if_a_step_changes_it() -> None:
    factors = np.ones(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        factors[:] *= 0.9
        return n.a(x) * float(factors[0])

    refused(task_of(Net(forward)), "every step changes factors, an array of numpy's")
    assert bool((factors == 1).all())


@pytest.mark.parametrize(
    "counts",
    [np.zeros(2, dtype=np.int64), np.array([0, None], dtype=object), bytearray(2), array.array("l", [0, 0])],
    ids=["numbers", "objects", "bytearray", "array"],
)
def test_an_array_that_a_step_changes_is_refused_even_if_nothing_depends_on_it_yet(counts: np.ndarray) -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        counts[0] += 1
        return n.a(x)

    refused(task_of(Net(forward)), "every step changes counts")
    assert counts[0] == 0


# Classes and caches


def _halves(task: Task) -> None:
    """Captured with a factor that is half of the one before at every step."""
    assert Job.from_task(task).schedule[:, -1].tolist() == [0.5, 0.25, 0.125]


def test_a_counter_of_a_class_is_followed() -> None:
    class Counting(Net):
        calls = 0

    def forward(n: Net, x: Tensor) -> Tensor:
        type(n).calls += 1
        return n.a(x) * 0.5**n.calls

    _halves(task_of(Counting(forward)))
    assert Counting.calls == 0


def test_a_class_that_only_the_loss_knows_is_seen() -> None:
    class Counting:
        calls = 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        Counting.calls += 1
        return m(batch["x"]).square().mean() * 0.5**Counting.calls

    _halves(task_of(net(), loss))


def test_a_tensor_of_a_class_is_state() -> None:
    class Centred(Net):
        centre = torch.zeros(6)

    def forward(n: Net, x: Tensor) -> Tensor:
        y = n.a(x)
        type(n).centre = n.centre * 0.9 + y.detach().mean(0) * 0.1
        return y - n.centre

    before = Centred.centre
    job = same(task_of(Centred(forward)))
    assert "attribute/Centred.centre" in job.initial and bool((before == 0).all())


class Positions(nn.Module):
    """Remembers what it has made, on the class and in a global variable."""

    made: Tensor
    table: dict[int, Tensor] = {}  # noqa: RUF012

    @functools.cache  # noqa: B019
    def remembered(self, size: int) -> Tensor:
        return torch.arange(size).float().sin()

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def lately(self, size: int) -> Tensor:
        return torch.arange(size).float().tanh()

    @staticmethod
    @functools.lru_cache
    def shared(size: int) -> Tensor:
        return torch.arange(size).float().exp()

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        if not hasattr(Positions, "made"):
            Positions.made = torch.arange(size).float().cos()
        if size not in self.table:
            self.table[size] = torch.arange(size).float().sqrt()
        if size not in TABLE:
            TABLE[size] = torch.arange(size).float()
        known = Positions.made + self.table[size] + TABLE[size] + self.remembered(size) + self.lately(size)
        # Small enough that three steps of PyTorch come within the tolerance on any processor.
        return x * (known + self.shared(size) / 100) / 10


def test_caches_of_classes_and_functions_are_captured_and_hold_no_traced_tensors() -> None:
    model = Net(lambda n, x: n.b(n.positions(n.a(x))))
    model.positions = Positions()
    task = task_of(model)
    Job.from_task(task)
    assert not hasattr(Positions, "made") and not Positions.table and not TABLE
    for cached in (Positions.remembered, Positions.lately, Positions.shared):
        assert cached.cache_info().currsize == 0
    same(task)
    for found in (Positions.made, TABLE[6], Positions.shared(6), model.positions.remembered(6)):
        assert type(found) is Tensor and not isinstance(found, FakeTensor)


def test_what_a_cache_remembers_from_the_start_stays() -> None:
    """A teacher that is made at its first use is one and the same for ever."""

    @functools.cache
    def teacher() -> nn.Linear:
        return nn.Linear(6, 6)

    @functools.lru_cache(maxsize=2)
    def other() -> nn.Linear:
        return nn.Linear(6, 6)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (m(batch["x"]) - teacher()(batch["x"]) - other()(batch["x"])).square().mean()

    known = teacher(), other()
    same(task_of(net(), loss))
    assert (teacher(), other()) == known


def test_a_script_that_names_this_package_is_captured_though_it_fills_caches_of_its_own() -> None:
    """The step's code can reach what starts the training, and so this package, wherever it lies."""
    decompositions.cache_clear()

    def train_job() -> Job:
        return Job.from_task(task)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return m(batch["x"]).square().mean() + (0.0 if callable(train_job) else 1.0)

    task = task_of(net(), loss)
    same(task)


@pytest.mark.slow
def test_a_cache_of_limited_size_that_a_step_fills_further_holds_no_traced_tensors() -> None:
    @functools.lru_cache
    def positions(size: int) -> Tensor:
        return torch.arange(size).float()

    positions(3)
    task = task_of(Net(lambda n, x: n.a(x) * positions(6)))
    Job.from_task(task)
    assert positions.cache_info().currsize == 0
    same(task)


def test_an_attribute_of_a_function_that_a_library_wraps_is_seen() -> None:
    @torch.no_grad()
    def factor() -> float:
        factor.calls += 1
        return 0.5**factor.calls

    factor.calls = 0
    _halves(task_of(Net(lambda n, x: n.a(x) * factor())))
    assert factor.calls == 0


def test_a_teacher_in_a_cache_that_a_step_moves_is_state() -> None:
    @functools.lru_cache(maxsize=2)
    def teacher() -> nn.Linear:
        return nn.Linear(6, 6)

    def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            teacher().weight.mul_(0.9).add_(m.a.weight, alpha=0.1)
        return (m(batch["x"]) - teacher()(batch["x"])).square().mean()

    teacher()
    job = same(task_of(net(), loss))
    assert "attribute/teacher().weight" in job.initial


def test_a_cached_value_of_a_parameter_is_that_of_the_first_step() -> None:
    @functools.cache
    def norm(weight: Tensor) -> Tensor:
        return weight.detach().norm()

    same(task_of(Net(lambda n, x: n.a(x) / norm(n.a.weight))))


def test_a_value_in_a_cache_of_some_size_is_refused() -> None:
    @functools.lru_cache(maxsize=2)
    def norm(weight: Tensor) -> Tensor:
        return weight.detach().norm()

    refused(task_of(Net(lambda n, x: n.a(x) / norm(n.a.weight))), "it reads a tensor that the first step has made")


def test_a_global_variable_that_a_step_makes_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        global made_by_a_step
        made_by_a_step = n.a(x)
        return made_by_a_step

    Job.from_task(task_of(Net(forward)))
    assert "made_by_a_step" not in globals()


def test_a_variable_of_a_closure_that_a_step_makes_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        nonlocal made
        made = n.a(x)
        return made

    Job.from_task(task_of(Net(forward)))
    with pytest.raises(NameError):
        made  # noqa: B018, F821
    made = None


@pytest.fixture
def settings() -> Iterator[types.ModuleType]:
    module = types.ModuleType("settings_of_a_user")
    exec("calls = 0\nkept = {}\ndef count():\n    global calls\n    calls += 1\n    return 0.5**calls\n", vars(module))
    sys.modules[module.__name__] = module
    globals()["settings_of_a_user"] = module
    yield module
    del sys.modules[module.__name__], globals()["settings_of_a_user"]


def test_variables_of_the_users_modules_are_seen(settings: types.ModuleType) -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        settings_of_a_user.kept["x"] = n.a(x)  # noqa: F821
        return n.a(x) * settings_of_a_user.count()  # noqa: F821

    job = Job.from_task(task_of(Net(forward)))
    assert job.schedule[:, -1].tolist() == [0.5, 0.25, 0.125]
    assert (settings.calls, settings.kept) == (0, {})


def test_what_a_step_puts_on_a_class_of_a_library_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        nn.Linear.kept = n.a(x)
        return nn.Linear.kept

    Job.from_task(task_of(Net(forward)))
    assert not hasattr(nn.Linear, "kept")


# Hooks of tensors


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_what_a_hook_of_a_parameter_closes_over_is_seen(register: str) -> None:
    state = {"calls": 0}

    def hook(thing: Tensor) -> Tensor | None:
        state["calls"] += 1
        if register == "register_hook":
            return thing * 0.5 ** state["calls"]
        thing.grad.mul_(0.5 ** state["calls"])
        return None

    model = net()
    getattr(model.a.weight, register)(hook)
    _halves(task_of(model))
    assert state["calls"] == 0


def test_a_moving_scale_in_a_hook_is_state() -> None:
    scale = torch.ones(())

    def hook(gradient: Tensor) -> Tensor:
        scale.mul_(0.9)
        return gradient * scale

    model = net()
    model.a.weight.register_hook(hook)
    job = same(task_of(model))
    assert "attribute/scale" in job.initial


def test_hooks_that_a_step_puts_on_a_parameter_are_gone_afterwards() -> None:
    calls = []

    def forward(n: Net, x: Tensor) -> Tensor:
        n.a.weight.register_hook(lambda g: calls.append(1))
        n.a.bias.register_post_accumulate_grad_hook(lambda p: calls.append(2))
        return n.a(x)

    model = Net(forward)
    refused(task_of(model), "every step changes model.a.weight._backward_hooks")
    model.a(torch.ones(6)).sum().backward()
    assert calls == [] and model.a.weight._backward_hooks is None
    forward(model, torch.ones(6)).sum().backward()
    assert sorted(calls) == [1, 2]


ELSEWHERE = """
import sysconfig
paths = sysconfig.get_paths() | dict.fromkeys(("platstdlib", "purelib", "platlib"), "/nowhere")
sysconfig.get_paths = lambda *_: paths
from machines.tasks import SMALL
from roundlog.capture import capture
print(len(capture(SMALL["logistic"](2)).program.nodes) > 0)
"""


def test_pytorch_that_does_not_lie_where_this_python_installs_is_a_library_all_the_same() -> None:
    """As after pip install --user, or in a venv that sees the system's packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr.splitlines()[-1]
