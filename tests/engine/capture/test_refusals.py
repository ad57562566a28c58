"""Refusals: of a model that cannot be captured by the operator's name, its line and what cannot be done; of one that
cannot be trained by what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.errors import reason
from torch import nn
from torch.distributions import Dirichlet
from torch.nn import functional as F

from tests.engine.capture.calls import Calls, linear_through, refused
from tests.engine.tasks import small_task

Batch = dict[str, torch.Tensor]


def _under_autocast_of_a_card(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x @ x.t()


def _logs(x: torch.Tensor) -> torch.Tensor:
    """As a writer of TensorBoard's does."""
    number = x.sum().item()
    if not np.isscalar(number):
        raise NotImplementedError(f"Got {type(number)}, but numpy array or torch tensor are expected.")
    return x


EMPTY = torch.zeros(0, dtype=torch.int64)


def task_of(function: Callable[[torch.Tensor, Batch], torch.Tensor]) -> Task:
    """function: of the output f32[4, 4] of a linear layer, and a batch of numbers "x" and indices "i", [4, 4] each."""
    torch.manual_seed(0)
    data = {"x": torch.randn(4, 4), "i": torch.arange(16).reshape(4, 4) % 4}
    return small_task(nn.Linear(4, 4), lambda m, b: function(m(b["x"]), dict(b)).sum(), data)


REFUSED: dict[str, tuple[Callable[[torch.Tensor, Batch], torch.Tensor], str, str]] = {
    "gradients by frequency": (
        lambda y, b: F.embedding(b["i"], y, scale_grad_by_freq=True),
        "embedding_dense_backward",
        "scales embedding gradients by frequency",
    ),
    "powers of integers to integers": (lambda y, b: y * b["i"] ** b["i"], "pow", "raises integers to variable powers"),
    "integers added at indices": (
        lambda y, b: y * torch.zeros(4, 4, dtype=torch.int64).index_put((b["i"][0],), b["i"], accumulate=True),
        "index_put",
        "adds integers at indices: convert them to float32",
    ),
    "values at indices that may be equal": (
        lambda y, b: torch.zeros(4, 4).index_put((b["i"][0],), y),
        "index_put",
        "writes several values at indices that may be equal",
    ),
    "values whose order matters": (
        lambda y, b: torch.zeros(4, 4).scatter(0, b["i"], y),
        "scatter",
        "scatters more than one value a line, whose order would matter",
    ),
    "long lines sorted": (
        lambda y, b: torch.sort(y.reshape(-1).repeat(1000))[0],
        "sort",
        "sorts lines of 16000, which takes more than 67108864 comparisons",
    ),
    "a sorted list searched": (
        lambda y, b: y * torch.searchsorted(b["x"], b["x"]),
        "searchsorted",
        "write (boundaries < x.unsqueeze(-1)).sum(-1), <= for right=True",
    ),
    "a permutation of fractions": (
        lambda y, b: y * torch.randperm(4, dtype=torch.float32),
        "randperm",
        "permutes numbers that are not integers",
    ),
    "dropout outside of training": (
        lambda y, b: torch.native_dropout(y, 0.5, False)[0],
        "native_dropout",
        "applies dropout outside of training",
    ),
}


@pytest.mark.slow_but("values whose order matters", "dropout*")
@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name_line_and_reason(what: str) -> None:
    function, operator, reason = REFUSED[what]
    with pytest.raises(CaptureError) as caught:
        capture(lambda: task_of(function))
    message = str(caught.value)
    assert f"aten.{operator}" in message and "(at test_refusals.py:" in message and reason in message, message
    assert "\n" not in message


def test_a_task_in_which_nothing_is_trained_is_refused() -> None:
    task = task_of(lambda y, b: y)
    task.model.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"^nothing is trained: no parameter of the optimizer requires a gradient$"):
        capture(lambda: task)


def _halved(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 0:
        x = x - 1
    return x


class Dropping(nn.Module):
    """Layer drop as it is usually written."""

    def __init__(self, encoder_layerdrop: float) -> None:
        super().__init__()
        self.encoder_layerdrop = encoder_layerdrop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            if torch.rand([]) < self.encoder_layerdrop:
                continue
            x = 2 * x
        return x


@pytest.mark.slow
def test_layer_drop_is_refused_with_the_option_that_switches_it_off() -> None:
    sentence = r"\(at test_refusals\.py:\d+\): layer drop .*: set layerdrop \(or .*\) to 0 in the model's config$"
    refused(Calls(Dropping(0.5)), sentence)
    linear_through(Dropping(0.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [lambda x: x[x > 0].sort()[0].sum(), lambda x: x[x[:, 0] > -99][0].sum(), lambda x: x[x[:, 0] > -99][1:].sum()],
)
def test_a_shape_that_depends_on_values_is_refused(function) -> None:
    refused(Calls(function), r"depends on values", loss=lambda m, b: m(b["x"]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x.to(torch.float16) * x,
            r"aten\._to_copy\S* \(at test_refusals\.py:\d+\).*float16 is not a storage type",
        ),
        (lambda x: x * x.detach().histc(6), r"aten\.histc\S* .*give min and max"),
        (lambda x: (-2) ** x, r"aten\.pow\S* .*positive base"),
        (lambda x: torch.linalg.inv(x @ x.t()), r"aten\.linalg_inv\S* \(at .*solve_triangular"),
        (lambda x: torch.lgamma(x), r"aten\.lgamma\S* \(at .*Stirling"),
        (lambda x: torch.fft.rfft(x).real, r"aten\._fft_r2c\S* \(at test_refusals.*products with matrices of cosines"),
        (lambda x: torch.complex(x, x).log().real, r"aten\.log\S* \(at .*complex numbers .*view_as_real"),
        (lambda x: torch.linalg.lstsq(x, x)[0], r"the operator aten\.linalg_lstsq\S* is not supported \(at test_refus"),
        (
            lambda x: F.ctc_loss(x[:, None], (x[0, :2] > 9).long() + 1, torch.tensor([4]), torch.tensor([2])),
            r"ctc_loss is not captured: write CTC's recursion over the steps.*\(at ",
        ),
        (_halved, r"control flow depends on values.*\(at test_refusals\.py:\d+\): decide by torch\.where"),
        (lambda x: x.double().sum(), r"float64"),
        (lambda x: x.clamp(max=x.sum().item()), r"takes a number out of a tensor .* \(at test_refusals\.py:\d+\)"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), r"torch\.cond .*\(at test_refusals\.py"),
        (
            torch.autocast("cpu", dtype=torch.float16)(lambda x: x @ x.t()),
            r"^torch\.autocast computes in float16.*, and a step is captured in BF16: give it dtype=torch.bfloat16",
        ),
        (lambda x: torch.rand(6, dtype=torch.bfloat16) * x, r"aten\.rand.* draw in float32, and convert them"),
        (
            lambda x: x[x[:, 0] > 0].bfloat16().sum().float(),
            r"aten\.index\S* \(at test_refusals\.py:\d+\).* keep all rows, and weigh them by the mask",
        ),
        (
            lambda x: Dirichlet(x.exp()).rsample(),
            r"aten\._dirichlet_grad.* draw it by sample\(\) in place of rsample\(\)",
        ),
        (
            lambda x: x * torch.poisson(torch.ones(6)),
            "draw before training, .* give the numbers as a field of the dataset",
        ),
        (lambda x: (json.dumps(x.sum().item()), x)[1], r"numbers of Python \(at test_refusals.*history\.jsonl"),
        (_logs, r"numbers of Python \(at test_refusals\.py:\d+\).*\(\.item\(\) in print .* history\.jsonl"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_its_line_in_words_of_a_user(function, message: str) -> None:
    refused(Calls(function), message)


def test_optimizers_that_are_not_supported_say_so() -> None:
    model = nn.Linear(6, 2)
    refused(model, "differentiable", optimizer=torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True))
    used = torch.optim.AdamW(model.parameters())
    model(torch.randn(1, 6)).sum().backward()
    used.step()
    refused(model, "fresh", optimizer=used)
    refused(model, "not the model's", optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


Kind = Callable[..., torch.optim.Optimizer]


class Critic(nn.Module):
    """A step of a critic, by an optimizer of its own, before it judges."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.critic = nn.Linear(6, 1)
        self.inner = kind(self.critic.parameters(), lr=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.zero_grad()
        self.critic(x.detach()).square().mean().backward()
        self.inner.step()
        return self.critic(x)


def test_a_step_of_an_optimizer_in_the_loss_that_counts_is_refused() -> None:
    refused(Calls(Critic(torch.optim.Adam)), r"takes a number out of a tensor .* \(at test_refusals\.py:\d+\)")


def test_autocast_of_a_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch imports modules meanwhile, which pytest looks into.
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if "pytest" not in type(one).__module__])
    message = r'^torch\.autocast is for device_type "cuda" \(at test_refusals\.py:\d+\), .* give it device_type="cpu"$'
    refused(Calls(_under_autocast_of_a_card), message)


def test_a_lazy_module_that_has_no_shape_yet_is_refused() -> None:
    refused(nn.Sequential(nn.LazyLinear(3)), r"^0\.weight of a lazy module has no shape yet: run the model on a batch")


def test_reasons_say_nothing_of_the_machine_that_pytorch_was_built_on() -> None:
    text = 'is_cpu() INTERNAL ASSERT FAILED at "/pytorch/aten/src/A.cpp":12, please report a bug to PyTorch. Oh.'
    assert reason(RuntimeError(text)) == "is_cpu() INTERNAL ASSERT FAILED Oh."
    assert reason(RuntimeError("a <thing object at 0x7f00deadbeef> fails\nat length")) == "a <thing> fails"
    assert reason(RuntimeError()) == "RuntimeError"
    text = "/pytorch/build/A_0.cpp:3016: SymIntArrayRef expected to contain only concrete integers"
    assert reason(RuntimeError(text)).startswith("a shape depends on values: choose elements with torch.where")


def test_empty_constants_are_captured() -> None:
    linear_through(lambda x: torch.cat([x, torch.empty(0, 6)]) + torch.empty(0).sum() + x[EMPTY].sum())
