"""Parts of PyTorch that decide by values, or make their tensors where no trace sees it, are captured as they train."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from roundlog.training.sameness import Sameness
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def task_of(model: nn.Module, loss: Loss) -> Task:
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(20, 6, generator=torch.Generator().manual_seed(2))},
        batch_size=5,
        steps=4,
        interval=1,
        seed=3,
    )


def captured(task: Task) -> Job:
    """Captured, and compared with PyTorch itself in FP64, three steps from two states."""
    found: list[Sameness] = []
    job = Job.from_task(task, report=found.append)
    assert found[0].steps == 3 and found[0].in_fp64
    return job


def normalized(**options: object) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **options), nn.Tanh(), nn.Linear(8, 6))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"avg_fn": get_ema_avg_fn(0.9)},
        {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
        {"multi_avg_fn": get_ema_multi_avg_fn(0.9), "use_buffers": True},
    ],
    ids=["equally", "decaying", "several at once", "buffers too"],
)
@pytest.mark.parametrize("updates", [0, 2])
def test_an_averaged_model_is_state(options: dict[str, object], updates: int) -> None:
    """Its first update copies, and later ones average."""
    model = normalized()
    averaged = AveragedModel(model, **options)  # type: ignore[arg-type]
    for _ in range(updates):
        averaged.update_parameters(model)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        averaged.update_parameters(m)
        with torch.no_grad():
            target = averaged(batch["x"])
        return (m(batch["x"]) - 0.5 * target).square().mean()

    own = AveragedModel.update_parameters
    job = captured(task_of(model, loss))
    assert {"attribute/averaged.n_averaged", "attribute/averaged.module['0'].weight"} <= job.initial.keys()
    assert AveragedModel.update_parameters is own and averaged.n_averaged == updates


def test_a_batch_norm_without_momentum_averages_over_all_batches() -> None:
    captured(task_of(normalized(momentum=None), lambda m, b: m(b["x"]).square().mean()))


def test_a_batch_norm_of_images_without_momentum_averages_over_all_batches() -> None:
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, momentum=None), nn.Flatten()
    )
    captured(task_of(model, lambda m, b: m(b["x"]).tanh().sum(1).square().mean()))


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("lengths", [(2, 1), [0, 2], torch.tensor([2, 1])], ids=["tuple", "list", "tensor"])
def test_ctc_loss_takes_its_lengths_in_any_form(lengths: tuple[int, ...], reduction: str) -> None:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = m(batch["x"])[:, None].expand(5, 2, 6).log_softmax(-1)
        inputs = type(lengths)((5, 4)) if not isinstance(lengths, Tensor) else torch.tensor([5, 4])
        labels = torch.tensor([[1, 2], [3, 3]])
        return F.ctc_loss(scores, labels, inputs, lengths, reduction=reduction).sum()

    captured(task_of(normalized(), loss))


def test_ctc_loss_of_labels_in_one_line_has_a_mean() -> None:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = m(batch["x"])[:, None].expand(5, 2, 6).log_softmax(-1)
        return F.ctc_loss(scores, torch.tensor([1, 2, 3]), (5, 5), (2, 1), zero_infinity=True)

    captured(task_of(normalized(), loss))


def test_operators_on_lists_are_captured_tensor_by_tensor() -> None:
    model = normalized()
    teacher = copy.deepcopy(model)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        own, theirs = list(teacher.parameters()), [p.detach() for p in m.parameters()]
        with torch.no_grad():
            torch._foreach_mul_(own, 0.9)
            torch._foreach_add_(own, theirs, alpha=0.1)
            torch._foreach_lerp_(own, theirs, [0.1] * len(own))
            torch._foreach_addcmul_(own, theirs, theirs, 0.01)
            torch._foreach_addcdiv_(own, theirs, torch._foreach_add(torch._foreach_abs(theirs), 1.0), value=0.02)
            target = teacher(batch["x"])
        return (m(batch["x"]) - 0.5 * target).square().mean()

    captured(task_of(model, loss))


def test_a_list_of_numbers_that_are_traced_becomes_a_tensor() -> None:
    """Without a gradient, as in PyTorch."""

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = m(batch["x"])
        angle = y.mean()
        turn = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), 1]])
        counts = torch.tensor([(y > 0).sum(), 3, True], dtype=torch.float32)
        return (y[:, :2] @ turn).square().mean() + y.mean() * counts.sum()

    captured(task_of(normalized(), loss))


def test_old_spectral_norm_is_captured_before_the_first_forward_pass() -> None:
    """Until then the weight is an alias of the parameter; then it is made anew in every step."""
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 6))
    job = captured(task_of(model, lambda m, b: m(b["x"]).square().mean()))
    assert "parameter/0.weight_orig" in job.initial and not [n for n in job.initial if n.startswith("attribute/")]


def test_an_alias_of_a_parameter_that_is_read_and_then_replaced_is_refused() -> None:
    model = normalized()
    model.alias = model[0].weight.data  # type: ignore[assignment]

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = m(batch["x"]).square().mean() + (m.alias @ batch["x"].t()).mean()  # type: ignore[operator]
        m.alias = m[0].weight.detach() * 0.5  # type: ignore[index, assignment]
        return y

    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(model, loss))
    assert str(caught.value) == (
        "a step reads model.alias, which shares memory with parameter/0.weight, and then puts another tensor in its "
        "place: make it a copy (.clone()) before the first step"
    )
