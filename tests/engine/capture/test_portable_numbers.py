"""Numbers of a task that is made under `portable`: of the right distributions, and the same under any instructions."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from machines.profiles import MACHINES
from roundlog.capture import Task, portable
from roundlog.training.job import Job
from scipy import stats
from torch import nn

from tests.engine.tasks import small_task

N = 100_000


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


@pytest.mark.parametrize(
    ("draw", "law"),
    [
        (lambda: torch.randn(N), stats.norm()),
        (lambda: torch.empty(N).normal_(2.0, 0.5), stats.norm(2.0, 0.5)),
        (lambda: torch.randn(N, dtype=torch.float64), stats.norm()),
        (lambda: torch.rand(N), stats.uniform()),
        (lambda: torch.empty(N).uniform_(-2.0, 1.0), stats.uniform(-2.0, 3.0)),
        (lambda: nn.init.trunc_normal_(torch.empty(N), std=0.02), stats.truncnorm(-100, 100, 0, 0.02)),
        (lambda: nn.init.trunc_normal_(torch.empty(N), a=-1.0, b=0.5), stats.truncnorm(-1.0, 0.5)),
    ],
)
def test_draws_follow_their_law(draw, law) -> None:
    with portable() as numbers:
        found = draw()
    assert not numbers.unportable
    assert stats.kstest(found.double().numpy(), law.cdf).pvalue > 1e-3


def test_draws_are_those_that_they_have_always_been() -> None:
    torch.manual_seed(1)
    with portable():
        assert torch.randn(3).tolist() == [-0.2957431674003601, -1.0139646530151367, 0.5685285329818726]
        assert torch.rand(3).tolist() == [0.5167357921600342, 0.6689954400062561, 0.5103317499160767]
        assert nn.init.trunc_normal_(torch.empty(3)).tolist() == [
            0.9944344162940979,
            0.6447794437408447,
            1.2486014366149902,
        ]
        assert torch.randperm(6).tolist() == [1, 5, 3, 2, 4, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_uniform_numbers_stay_below_their_upper_end(dtype: torch.dtype) -> None:
    with portable() as numbers:
        found, wide = torch.rand(N, dtype=dtype), torch.empty(N, dtype=dtype).uniform_(-3, 2)
        # Between the two ends there are two numbers only.
        least = torch.finfo(dtype).eps
        narrow = torch.empty(N, dtype=dtype).uniform_(1.0, 1.0 + 2 * least)
    assert not numbers.unportable and float(found.max()) < 1 and float(wide.max()) < 2
    assert set(narrow.tolist()) <= {1.0, 1.0 + least}


def test_seeds_states_and_generators_mean_what_they_do_in_torch() -> None:
    with portable():
        torch.manual_seed(3)
        first, state, second = torch.randn(7), torch.get_rng_state(), torch.randn(7)
        torch.set_rng_state(state)
        assert torch.equal(torch.randn(7), second) and not torch.equal(first, second)
        assert torch.equal(torch.randn(7, generator=torch.Generator().manual_seed(3)), first)


def test_drawing_does_not_depend_on_memory_layout() -> None:
    draws = [lambda: torch.randn(3, 4), lambda: torch.empty(4, 3).t().normal_()]
    draws += [lambda: torch.randn_like(torch.empty(4, 3).t()), lambda: torch.randn(3, 4, out=torch.empty(0))]
    with portable():
        found = [(torch.manual_seed(1), draw())[1] for draw in draws]
        whole = torch.zeros(6, 4)
        whole.T[1:3].uniform_(1, 2)
    assert all(torch.equal(found[0], one) for one in found[1:]) and found[2].stride() == (1, 3)
    assert torch.equal(whole.count_nonzero(0), torch.tensor([0, 6, 6, 0]))


def made() -> dict[str, torch.Tensor]:
    """Tables that tasks compute before their first step."""
    return {
        "log": torch.arange(1, 17).float().log(),
        "whole": torch.exp(torch.arange(4)),
        "frequencies": 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16),
        "powers": torch.tensor([-2.0, 0.0, 3.5])[:, None] ** torch.tensor([-1.0, 0.0, 0.5, 3.0, 70.0]),
        "wide": torch.sin(torch.arange(32, dtype=torch.float64) * 0.37) + torch.cos(torch.arange(32.0).double()),
        "angles": torch.cos(torch.outer(torch.arange(9.0), torch.exp(torch.linspace(0, -4, 5)))),
        "steps": torch.arange(0, 1, 0.07),
        "in place": torch.linspace(-1, 1, 7).tanh_().expm1_(),
        "out": torch.linspace(0, 1, 4, out=torch.empty(4, dtype=torch.float64)),
        "sums": torch.linspace(0.9, 1, 40).cumprod(0),
        "gradient": torch.erf(torch.ones(3, requires_grad=True) / 3),
    }


def test_tables_agree_with_torch_and_are_noted_nowhere() -> None:
    with portable() as numbers:
        ours = made()
    assert not numbers.unportable
    for name, tensor in made().items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-6, atol=2e-7, equal_nan=True, msg=name)


def test_what_is_pytorchs_is_noted_with_its_line() -> None:
    with portable() as numbers:
        nn.init.orthogonal_(torch.empty(4, 3))
        torch.poisson(torch.rand(3))
        torch.randn(4).mean()
        torch.polar(torch.ones(2), torch.ones(2))
        torch.zeros(2).index_put_((torch.zeros(3, dtype=torch.int64),), torch.rand(3), accumulate=True)
        nn.Linear(3, 3, device="meta").weight.sum()
        assert torch.arange(5).sum() == 10
    found = {name.removeprefix("aten.") for name in numbers.unportable}
    assert {"poisson", "mean", "polar", "index_put"} < found and found & {"geqrf", "linalg_qr"}
    assert all("test_portable_numbers.py:" in place for place in numbers.unportable.values())


@pytest.mark.slow
def test_a_job_may_be_made_inside_and_its_constants_are_the_same() -> None:
    """Capture takes the step as it stands, whatever is around it; tables of the step are portable all the same."""

    def task() -> Task:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        table = lambda: torch.arange(8.0).double().sin().float()[:, None]  # noqa: E731
        loss, adam = lambda m, b: (m(b["x"]) * table()).square().mean(), torch.optim.Adam(model.parameters())
        return small_task(model, loss, {"x": torch.randn(16, 4)}, optimizer=adam, batch_size=8, steps=2)

    with portable() as numbers:
        made_inside = task()
        inside = Job.from_task(lambda: made_inside, compare=False)
    assert not numbers.unportable and Job.from_task(lambda: made_inside, compare=False).spec == inside.spec


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.empty(3).normal_(0, -1),
        lambda: torch.empty(3).uniform_(2, 1),
        lambda: torch.arange(0, math.inf),
        lambda: torch.linspace(0, 1, -1),
        lambda: torch.ones(3, dtype=torch.int64).exp_(),
    ],
)
def test_what_pytorch_refuses_stays_refused(draw) -> None:
    with pytest.raises(RuntimeError) as theirs:
        draw()
    with portable(), pytest.raises(RuntimeError) as ours:
        draw()
    assert str(ours.value) == str(theirs.value)


def made_on(machine: str, *words: str) -> dict[str, Any]:
    """What `portable_jobs` prints where a process is another machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        said = MACHINES[machine].run(str(Path(__file__).with_name("portable_jobs.py")), *words)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("what", "names", "machines"),
    [
        ("tensors", [], ["native", "generic"]),
        pytest.param("job", ["resnet50", "transformers/llama"], ["native, one thread", "AVX2"], marks=pytest.mark.long),
    ],
)
def test_a_task_is_one_job_under_all_instructions(what: str, names: list[str], machines: list[str]) -> None:
    first, *others = (made_on(machine, what, "portable", *names) for machine in machines)
    assert all(unportable == [] for _, unportable in first.values()), first
    assert all(other == first for other in others)


@pytest.mark.slow
def test_torchs_own_numbers_differ_between_machines() -> None:
    """Else equal tensors would show nothing."""
    own = [made_on(machine, "tensors", "torch", "gpt") for machine in ("native", "SSE4.2")]
    assert own[0] != own[1]
