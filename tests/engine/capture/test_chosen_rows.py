"""Rows that a mask chooses: captured as PyTorch computes them, whatever stands in the others, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import Task, capture
from roundlog.execution import Executor, NonFiniteError
from roundlog.operators import StepInputs
from roundlog.rounding import Recorder
from torch import Tensor, nn
from torch.nn import functional as F

from tests.engine.capture.calls import Calls, linear_through, refused

Function = Callable[[Tensor], Tensor]

LABELS = torch.tensor([0, -100, 2, 5, -100, 1])


def rows(x: Tensor) -> Tensor:
    """Rows that a mask chooses: some of them."""
    return x[:, 0].detach() > x[:, 1].detach()


def written(x: Tensor) -> Tensor:
    out, mask = x * 0.5, rows(x)
    out[mask] = torch.tanh(x[mask])
    out[~mask] += 1.0
    return out.square().sum()


def written_at_places(x: Tensor) -> Tensor:
    out, index = torch.zeros_like(x), rows(x).nonzero().squeeze(-1)
    out[index] = x[index] * 2.0
    return out.square().sum()


def moved_places(x: Tensor) -> Tensor:
    """Places that are written to after a view of them was taken."""
    places = (rows(x) & (torch.arange(len(x)) < 5)).nonzero()
    column = places[:, 0]
    places += 1
    return x[column].square().sum()


def one_row_for_all(x: Tensor) -> Tensor:
    out = x.clone()
    out[rows(x)] = x[0] * 0.5
    return out.square().sum()


def experts(x: Tensor) -> Tensor:
    weight, chosen = x[:, :3].softmax(-1).topk(2, dim=-1)
    out = torch.zeros_like(x)
    for number in range(3):
        row, place = torch.where(chosen == number)
        out.index_add_(0, row, torch.tanh(x[row] * (number + 1)) * weight[row, place, None])
    return out.square().sum()


def labelled(x: Tensor, **options: object) -> Tensor:
    wanted = LABELS[: len(x)] + 0 * x[:, 0].long()
    return F.cross_entropy(x[wanted != -100], wanted[wanted != -100], **options)


CHOSEN: dict[str, Function] = {
    "mean": lambda x: x[rows(x)].mean(),
    "sum over rows": lambda x: x[rows(x)].sum(0).square().sum(),
    "variance": lambda x: x[x.detach() > 0].var(),
    "variance over rows": lambda x: x[x[:, 0].detach() > -9].var(0).sum(),
    "standard deviation": lambda x: x[x.detach() > 0].std(),
    "norm": lambda x: x[rows(x)].norm(),
    "largest": lambda x: x[x.detach() > 0].max() + x[x[:, 0].detach() > -9].amax(0).sum(),
    "smallest": lambda x: x[x.detach() < 0].min(),
    "logsumexp": lambda x: x[rows(x)].logsumexp(0).exp().sum(),
    "softmax over rows": lambda x: x[rows(x)].softmax(0).square().sum(),
    "product": lambda x: (x[rows(x)] @ x[rows(x)].T).tanh().mean(),
    "the number of rows": lambda x: x[rows(x)].sum() / (x[rows(x)].shape[0] + 1),
    "the number of elements": lambda x: x[rows(x)].sum() * (1.0 / (2 * x[rows(x)].numel() + 1)),
    "len": lambda x: x[rows(x)].sum() / (len(x[rows(x)]) + 1),
    "their number or one": lambda x: x[rows(x)].sum() / max(len(x[rows(x)]), 1) + min(2, x[rows(x)].shape[0]) * x.sum(),
    "places": lambda x: x[rows(x).nonzero().squeeze(1)].mean(),
    "places of elements": lambda x: x[torch.where(x.detach() > 0)].square().mean(),
    "masked_select": lambda x: torch.masked_select(x, x.detach() > 0).mean(),
    "masked_select of rows": lambda x: torch.masked_select(x, x.detach() > 0).square().mean(),
    "masked_scatter": lambda x: (
        torch.zeros(6, 6).masked_scatter(x.detach() > 0, x[x.detach() > 0] * 2.0).square().sum()
    ),
    "mask of two axes": lambda x: x.view(3, 2, 6)[rows(x).view(3, 2)].square().mean(),
    "mask of a later axis": lambda x: x[:, x[0].detach() > 0].square().mean(),
    "mask of chosen rows": lambda x: x[rows(x)][x[rows(x)][:, 2] > 0].square().sum(),
    "shapes": lambda x: x[rows(x)].view(-1, 2, 3).transpose(0, 1).flatten(1).square().mean(),
    "joined": lambda x: torch.cat([x[rows(x)], 2.0 * x, x[~rows(x)]]).square().mean(),
    "cross entropy": labelled,
    "cross entropy, summed": lambda x: labelled(x, reduction="sum"),
    "cross entropy, one by one": lambda x: labelled(x, reduction="none").mean(),
    "cross entropy, smoothed": lambda x: labelled(x, label_smoothing=0.1),
    "cross entropy, weighted": lambda x: labelled(x, weight=torch.arange(1.0, 7.0)),
    "mse": lambda x: F.mse_loss(x[rows(x)], torch.sin(x.detach())[rows(x)]),
    "a sum by the number of marks": lambda x: F.l1_loss(x[rows(x)], torch.sin(x.detach())[rows(x)]) / rows(x).sum(),
    "binary cross entropy": lambda x: F.binary_cross_entropy(x[rows(x)].sigmoid(), (x.detach()[rows(x)] > 0.5).float()),
    "kl_div": lambda x: F.kl_div(x[rows(x)].log_softmax(1), x.detach()[rows(x)].softmax(1), reduction="batchmean"),
    "layer norm": lambda x: F.layer_norm(x[rows(x)], (6,)).pow(3).sum(),
    "group norm": lambda x: F.group_norm(x[rows(x)] + 1.0, 2).pow(3).sum(),
    "convolution": lambda x: F.conv1d(x[:, None][rows(x)], torch.ones(2, 1, 3)).square().mean(),
    "writes": written,
    "writes at places": written_at_places,
    "moved places": moved_places,
    "one row for all": one_row_for_all,
    "experts": experts,
}


@pytest.mark.slow_but("mean", "variance", "places", "cross entropy", "writes", "experts")
@pytest.mark.parametrize("what", CHOSEN)
def test_it_trains_as_by_pytorch(what: str) -> None:
    linear_through(CHOSEN[what])


REFUSED: dict[str, Function] = {
    "two masks": lambda x: (x[x[:, 0] > 0] * x[x[:, 1] > 0]).sum(),
    "rows beside all": lambda x: (x[x[:, 0] > -99] * x).sum(),
    "one of the rows": lambda x: x[x[:, 0] > -99][0].sum(),
    "some of the rows": lambda x: x[x[:, 0] > 0][1:].sum(),
    "an order": lambda x: x[x > 0].sort()[0][..., None].sum(),
    "a place among them": lambda x: x[x > 0].argmax() * x.sum(),
    "places among them": lambda x: x[x[:, 0] > -99][torch.tensor([0, 1])].sum(),
    "rows of a certain number": lambda x: x[x > -99].view(4, -1).sum(),
    "a running sum turned round": lambda x: x[x > 0].flip(0)[..., None].sum(),
    "range of their number": lambda x: sum(x[n].sum() for n in range(len(x[x[:, 0] > 0]))),
    "whether there are any": lambda x: x[x > 0].sum() if x[x > 0].numel() > 0 else x.sum(),
    "an axis of their square": lambda x: x.new_ones(x[x > 0].shape[0] * x[x > 0].shape[0]).sum() * x.sum(),
    "a mask and another index": lambda x: x[x[:, 0] > -99, torch.arange(4)].sum(),
    "a power of their number": lambda x: (x * x).add(1.0).pow(x[x > 0].shape[0]).sum(),
    "a place by their number": lambda x: x.roll(x[x > 0].shape[0], 0)[:1].sum(),
    "no axis": lambda x: x[x[:, 0] > 0].squeeze().sum(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_mixes_them_in_another_way_is_refused(what: str) -> None:
    refused(
        Calls(REFUSED[what]),
        r"depends? on values|always|numbers? of chosen elements",
        loss=lambda m, b: m(b["x"]),
    )


class Weighted(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.linspace(0.5, 1.5, 3)), function

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        return self.function(x * self.weight, chosen > 0)


def one_step(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, chosen: Tensor) -> tuple[float, Tensor]:
    """Loss of one step, and the weight after it, by the program; both are held against PyTorch's."""
    model = Weighted(function)
    task = Task(
        model=model,
        loss=lambda m, batch: m(batch["x"], batch["chosen"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.25),
        dataset={"x": torch.ones_like(x), "chosen": torch.arange(len(chosen)) % 2},
        batch_size=len(x),
        steps=1,
        interval=1,
        seed=0,
    )
    captured = capture(task)
    inputs = StepInputs(
        states=list(captured.states.values()),
        data=[x, chosen],
        schedule=captured.schedule[0],
        seed=0,
        step=0,
        device=torch.device("cpu"),
    )
    result = Executor(captured.program).run(inputs, Recorder(4))
    loss = model(x, chosen)
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), rel=1e-6)
    right = model.weight.detach() - 0.25 * model.weight.grad
    torch.testing.assert_close(result.states[0], right, rtol=1e-6, atol=1e-7)
    return float(result.loss), result.states[0]


X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, -6.0], [0.5, 0.25, 1.0], [2.0, 2.0, 2.0]])

REDUCED = (
    lambda h, m: h[m].mean(),
    lambda h, m: (h[m] @ h[m].T).sum() + h[m].std(),
    lambda h, m: F.mse_loss(torch.zeros_like(h).masked_fill(m[:, None], 2.0)[m], h[m]) + h[m].amax(0).sum(),
    lambda h, m: h[m].log_softmax(-1)[:, 0].sum() + h[m.nonzero().squeeze(1)].logsumexp(0).sum(),
    lambda h, m: torch.zeros(4, 3).index_add(0, torch.where(m)[0], h[m].exp()).sum() + h[m].cumsum(1).mean(),
)


@pytest.mark.parametrize("number", range(len(REDUCED)))
@pytest.mark.parametrize("lost", [float("nan"), float("inf"), -float("inf")])
def test_what_the_other_rows_hold_reaches_nothing(number: int, lost: float) -> None:
    chosen, function = torch.tensor([1, 0, 1, 1]), REDUCED[number]
    clean = one_step(function, X, chosen)
    without = one_step(lambda h, m: function(torch.where(m[:, None], h, lost), m), X, chosen)
    assert clean[0] == without[0] and torch.equal(clean[1], without[1])


def test_all_rows_are_the_rows_themselves() -> None:
    all_of_them = torch.ones(4, dtype=torch.long)
    loss, weight = one_step(lambda h, m: h[m].square().mean(), X, all_of_them)
    whole, other = one_step(lambda h, m: h.square().mean(), X, all_of_them)
    assert loss == whole and torch.equal(weight, other)


def test_of_no_rows_the_sum_is_zero_and_the_mean_has_no_value() -> None:
    none = torch.zeros(4, dtype=torch.long)
    assert one_step(lambda h, m: h[m].sum() + h.mean(), X, none)[0] == pytest.approx(
        float((X * torch.linspace(0.5, 1.5, 3)).mean())
    )
    with pytest.raises(NonFiniteError, match="nan"):
        one_step(lambda h, m: h[m].mean(), X, none)


def test_of_one_row_the_variance_has_no_value() -> None:
    with pytest.raises(NonFiniteError, match="nan"):
        one_step(lambda h, m: h[m].var(0).sum(), X, torch.tensor([0, 0, 1, 0]))
