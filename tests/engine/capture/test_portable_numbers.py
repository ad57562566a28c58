"""Numbers of a task that is made under `portable`: of the right distributions, and the same under any instructions."""

import math
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from one_job import differences, on_machine
from roundlog.capture import Task, portable, torchs_own
from roundlog.capture.portable.strict_functions import CODES, of_all, powers
from roundlog.training.job import Job
from scipy import stats
from torch import nn
from torch.distributions import Beta, Chi2, Dirichlet, Gamma, StudentT

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
        (lambda: torch.normal(torch.full((N,), 3.0), torch.full((N,), 0.1)), stats.norm(3.0, 0.1)),
        (lambda: torch.rand(N), stats.uniform()),
        (lambda: torch.empty(N).uniform_(-2.0, 1.0), stats.uniform(-2.0, 3.0)),
        (lambda: nn.init.trunc_normal_(torch.empty(N), std=0.02), stats.truncnorm(-100, 100, 0, 0.02)),
        (lambda: nn.init.trunc_normal_(torch.empty(N), a=-1.0, b=0.5), stats.truncnorm(-1.0, 0.5)),
        (lambda: torch.empty(N).exponential_(2.0), stats.expon(scale=0.5)),
        (lambda: torch.empty(N).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5))),
        (lambda: torch.empty(N).cauchy_(1.0, 2.0), stats.cauchy(1.0, 2.0)),
        (lambda: torch._standard_gamma(torch.full((N,), 0.4)), stats.gamma(0.4)),
        (lambda: torch._standard_gamma(torch.full((N,), 1e6, dtype=torch.float64)), stats.gamma(1e6)),
        (lambda: Gamma(3.0, 2.0).sample((N,)), stats.gamma(3.0, scale=0.5)),
        (lambda: Beta(0.4, 0.4).sample((N,)), stats.beta(0.4, 0.4)),
        (lambda: Beta(1.0, 5.0).sample((N,)), stats.beta(1.0, 5.0)),
        (lambda: Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((N,))[:, 2], stats.beta(2.0, 1.5)),
        (lambda: Chi2(5.0).sample((N,)), stats.chi2(5.0)),
        (lambda: StudentT(4.0).sample((N,)), stats.t(4.0)),
    ],
)
def test_continuous_draws_follow_their_law(draw, law) -> None:
    with portable() as numbers:
        found = draw()
    assert not numbers.unportable
    assert stats.kstest(found.double().numpy(), law.cdf).pvalue > 1e-3


def test_shares_of_small_concentrations_add_up_to_one() -> None:
    """Their gamma numbers are below the least number of FP64."""
    with portable() as numbers:
        shares = Dirichlet(torch.full((1000, 3), 1e-4)).sample()
        assert not numbers.unportable and bool((shares > 0).all()) and bool((shares < 1).all())
        torch.testing.assert_close(shares.sum(1), torch.ones(1000))
        largest = torch.bincount(shares.argmax(1), minlength=3) / 1000
        torch.testing.assert_close(largest, torch.full((3,), 1 / 3), atol=0.06, rtol=0)
        torch._standard_gamma(torch.zeros(3))
    assert set(numbers.unportable) == {"aten._standard_gamma"}  # what PyTorch says of it


def test_normals_of_a_pair_and_of_two_calls_are_independent() -> None:
    with portable():
        one, two = torch.randn(N), torch.randn(N)
    for a, b in ((one[::2], one[1::2]), (one, two), (one[::2].abs(), one[1::2].abs())):
        assert abs(float(np.corrcoef(a.numpy(), b.numpy())[0, 1])) < 5 / math.sqrt(len(a))
    assert abs(float(one.mean())) < 5 / math.sqrt(N) and abs(float(one.var()) - 1) < 5 * math.sqrt(2 / N)


def test_discrete_draws_are_what_they_should_be() -> None:
    with portable() as numbers:
        assert sorted(torch.randperm(1000).tolist()) == list(range(1000))
        assert not torch.equal(torch.randperm(1000), torch.arange(1000))
        drawn = torch.randint(3, 9, (N,))
        assert set(drawn.tolist()) == set(range(3, 9))
        kept = torch.dropout(torch.ones(N), 0.25, True)
        assert set(kept.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
        assert abs(float((kept > 0).float().mean()) - 0.75) < 0.01
        for ones in (torch.empty(N).bernoulli_(0.1), torch.bernoulli(torch.full((N,), 0.1))):
            assert abs(float(ones.mean()) - 0.1) < 0.01
        trials = torch.empty(N).geometric_(0.2)
        assert abs(float(trials.mean()) - 5) < 0.2 and float(trials.min()) == 1
        weights = torch.tensor([1.0, 0.0, 3.0, 4.0])
        many = torch.bincount(torch.multinomial(weights, N, replacement=True), minlength=4) / N
        torch.testing.assert_close(many, weights / 8, atol=0.01, rtol=0)
        assert sorted(torch.multinomial(weights, 3).tolist()) == [0, 2, 3]
        with pytest.raises(RuntimeError, match="without replacement"):
            torch.multinomial(weights, 4)
    assert not numbers.unportable


def test_uniform_numbers_stay_below_their_upper_end() -> None:
    with portable():
        # Between the two ends there are two numbers of FP32 only.
        found = torch.empty(N).uniform_(1.0, 1.0 + 2.0**-22)
    assert set(found.tolist()) <= {1.0, 1.0 + 2.0**-23}


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (2, 6, 3), (1, 1), (40, 33)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_is_that_of_lapack(shape, mode: str) -> None:
    a = torch.randn(*shape)
    with portable():
        q, r = torch.linalg.qr(a, mode)
    theirs = torch.linalg.qr(a.double(), mode)
    torch.testing.assert_close(q.double(), theirs[0], atol=2e-6, rtol=0)
    torch.testing.assert_close(r.double(), theirs[1], atol=1e-5, rtol=0)


def test_orthogonal_weights_are_orthogonal() -> None:
    with portable() as numbers:
        w = nn.init.orthogonal_(torch.empty(96, 64))
        assert nn.init.orthogonal_(torch.empty(8, 2, 2)).shape == (8, 2, 2)
    assert not numbers.unportable
    torch.testing.assert_close(w.T @ w, torch.eye(64), atol=1e-6, rtol=0)


def test_seeds_states_and_generators_mean_what_they_do_in_torch() -> None:
    with portable():
        torch.manual_seed(3)
        first, state, second = torch.randn(7), torch.get_rng_state(), torch.randn(7)
        torch.set_rng_state(state)
        assert torch.equal(torch.randn(7), second) and not torch.equal(first, second)
        torch.manual_seed(3)
        assert torch.equal(torch.randn(7), first)
        own = torch.Generator().manual_seed(3)
        assert torch.equal(torch.randn(7, generator=own), first)
        with torch.random.fork_rng():
            torch.randn(100)
        after = torch.rand(4)
        torch.manual_seed(3)
        torch.randn(7)
        assert torch.equal(torch.rand(4), after)


def test_drawing_does_not_depend_on_memory_layout_or_on_autograd() -> None:
    with portable():
        torch.manual_seed(1)
        plain = torch.empty(3, 4).normal_()
        torch.manual_seed(1)
        turned = torch.empty(4, 3).t().normal_()
        parameter = nn.Parameter(torch.randn(3))
        (parameter.exp() * 2).sum().backward()
    assert torch.equal(plain, turned)
    torch.testing.assert_close(parameter.grad, 2 * parameter.detach().exp())


@pytest.mark.parametrize("name", sorted(CODES))
def test_functions_of_fp64_are_within_a_few_units_of_the_true_ones(name: str) -> None:
    import mpmath

    ranges = {"log": (1e-300, 1e300), "exp": (-700, 700), "erfinv": (-1, 1)}
    x = np.random.default_rng(0).uniform(*ranges.get(name, (-1e5, 1e5)), 2000)
    out = np.empty_like(x)
    of_all(CODES[name], x, out)
    with mpmath.workprec(200):
        true = np.array([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x])
    assert np.abs(out - true).max() <= 6 * np.spacing(np.abs(true)).max()
    assert (np.abs(out - true) <= 6 * np.spacing(np.abs(true))).all()


def test_powers_have_the_special_cases_of_ieee_754() -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.3, np.inf, -np.inf, np.nan, 1e300, -1e-300, 7.0]
    x, y = (np.array(column) for column in zip(*[(a, b) for a in numbers for b in numbers], strict=True))
    out = np.empty_like(x)
    powers(x, y, out)
    with np.errstate(all="ignore"):
        true = np.power(x, y)
    np.testing.assert_allclose(out, true, rtol=1e-13)
    assert (np.signbit(out) == np.signbit(true))[~np.isnan(true)].all()


def made() -> dict[str, torch.Tensor]:
    """What tasks compute before their first step."""
    w = torch.randn(40, 30)
    written = torch.empty(30, 30)
    torch.mm(w.t(), w, out=written)
    return {
        "standardised": (w - w.mean()) / w.std(),
        "norm": w / w.norm(dim=0),
        "product": w @ w.t(),
        "out": written,
        "softmax": w.softmax(-1),
        "log": torch.arange(1, 17).float().log(),
        "frequencies": 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16),
        "wide": torch.sin(torch.arange(32, dtype=torch.float64) * 0.37).float(),
        "angles": torch.cos(torch.outer(torch.arange(9.0), torch.exp(torch.linspace(0, -4, 5)))),
        "steps": torch.arange(0, 1, 0.07),
        "sums": w.cumsum(1),
        "scaled": torch.add(w, w.t().reshape(40, 30), alpha=0.3),
        "order": torch.tensor([2, 1, 2, 1, 1] * 20).argsort(),
        "whole": torch.exp(torch.arange(4)),
        "shares": torch.distributions.Beta(0.4, 0.4).sample((50,)),
        "in place": w.clone().tanh_().add_(w, alpha=-0.7),
    }


def test_what_is_computed_agrees_with_torch_and_is_noted_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with portable() as numbers:
        ours = made()
    assert not numbers.unportable
    torch.manual_seed(5)
    with portable():
        drawn = torch.randn(40, 30)
    monkeypatch.setattr(torch, "randn", lambda *shape: drawn.clone())
    theirs = made()
    for name, tensor in theirs.items():
        # Equal numbers have no order of their own there, and what is drawn there is drawn otherwise.
        if name not in ("order", "shares"):
            torch.testing.assert_close(ours[name], tensor, rtol=2e-5, atol=2e-6, msg=name)
    assert torch.equal(ours["order"], torch.tensor([2, 1, 2, 1, 1] * 20).argsort(stable=True))


def test_what_is_not_portable_is_noted_with_its_line() -> None:
    with portable() as numbers:
        torch.linalg.svd(torch.randn(3, 3))
        torch.poisson(torch.rand(3))
        torch.randn(4, dtype=torch.float64).sum()
    line = r"test_portable_numbers.py:"
    assert {"aten._linalg_svd", "aten.poisson", "aten.sum"} == set(numbers.unportable)
    assert all(line in place for place in numbers.unportable.values())


def test_inside_torchs_own_everything_is_pytorchs() -> None:
    with torchs_own(), portable() as numbers:
        torch.manual_seed(2)
        found = torch.randn(5)
    torch.manual_seed(2)
    assert numbers is None and torch.equal(found, torch.randn(5))


def test_a_job_may_be_made_inside() -> None:
    """Capture takes the step as it stands, whatever is around it."""

    def task() -> Task:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        return Task(
            model=model,
            loss=lambda m, b: (m(b["x"]) * torch.sin(torch.arange(8.0))[:, None]).square().mean(),
            optimizer=torch.optim.Adam(model.parameters()),
            dataset={"x": torch.randn(16, 4)},
            batch_size=8,
            steps=2,
            interval=1,
            seed=0,
        )

    with portable() as numbers:
        made_inside = task()
        inside = Job.from_task(made_inside)
    assert not numbers.unportable and Job.from_task(made_inside).spec == inside.spec


@pytest.mark.slow
def test_every_task_has_the_same_tensors_under_other_instructions_and_torchs_own_have_not() -> None:
    names = ["gpt", "resnet50", "transformers/mamba", "transformers/llama"]
    machines = ["native", "SSE4.2", "generic"]
    assert differences({machine: on_machine(machine, names, ["--tensors"]) for machine in machines}) == []
    own = {machine: on_machine(machine, names[:1], ["--tensors", "--torch-random"]) for machine in machines[:2]}
    assert len(differences(own)) == 1, "the profiles draw alike, so that equal tensors show nothing"


@pytest.mark.slow
def test_computed_numbers_are_the_same_under_other_instructions() -> None:
    code = (
        "import torch, hashlib; from roundlog.capture import portable\n"
        "from tests.engine.capture.test_portable_numbers import made\n"
        "torch.manual_seed(1)\n"
        "with portable(): found = made()\n"
        "print(hashlib.sha256(b''.join(x.contiguous().numpy().tobytes() for x in found.values())).hexdigest())"
    )
    from machines.profiles import MACHINES

    digests = set()
    for machine in ("native", "SSE4.2", "generic"):
        environment = MACHINES[machine].environment() | {"PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_running_statistics_and_tensors_that_grow_are_written() -> None:
    x = torch.randn(32, 4)
    ours, theirs, grown = nn.BatchNorm1d(4), nn.BatchNorm1d(4), torch.empty(0)
    with portable() as numbers:
        y = ours(x)
        torch.mm(x, x.t(), out=grown)
        torch.manual_seed(1)
        drawn = torch.randn(3, out=torch.empty(0))
        torch.manual_seed(1)
        assert torch.equal(drawn, torch.randn(3))
    assert not numbers.unportable
    torch.testing.assert_close(y, theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    torch.testing.assert_close(grown, x @ x.t())


def test_complex_numbers_stay_complex() -> None:
    """Programs hold them as pairs, which is nothing that the user's code may see."""

    def made() -> list[torch.Tensor]:
        turned = torch.polar(torch.ones(6), torch.linspace(0, 3, 6))
        product = turned * turned.conj()[:1] * turned
        return [
            turned,
            product,
            product.abs(),
            product.real,
            torch.fft.fft(product.imag),
            torch.fft.ihfft(product.real),
        ]

    with portable() as numbers:
        ours = made()
    for one, other in zip(ours, made(), strict=True):
        torch.testing.assert_close(one, other)
    assert set(numbers.unportable) == {"aten.abs"}
    with portable():  # whose square is no number of FP32
        torch.testing.assert_close(torch.tensor(1e30 + 1e30j).abs(), torch.tensor(2**0.5 * 1e30))


def test_conjugates_are_resolved_before_they_are_transformed() -> None:
    x, wide = torch.randn(6, dtype=torch.complex64), torch.randn(5, 6, dtype=torch.float64)

    def made() -> tuple[torch.Tensor, ...]:
        return torch.fft.hfft(x), torch.fft.fft(x.conj()), x.conj() * x.conj().imag, torch.fft.hfftn(wide)

    with portable(), torch.inference_mode():
        found = made()
    torch.testing.assert_close(found, made())


def test_what_is_computed_with_sparse_tensors_is_noted_and_what_has_no_numbers_is_not() -> None:
    with portable() as numbers:
        nn.Linear(3, 3, device="meta")
        sparse = torch.eye(3).to_sparse()
        assert not numbers.unportable and float(sparse.to_dense().sum()) == 3
        torch.sparse.mm(sparse, torch.randn(3, 3))
    assert set(numbers.unportable) == {"aten._sparse_addmm"}


_VIEWS = {
    "transposed": lambda w: w.T,
    "flat": lambda w: w.flatten(),
    "viewed": lambda w: w.view_as(torch.empty(24)),
    "narrow": lambda w: w.narrow(0, 0, 2),
    "chunk": lambda w: w.chunk(2)[1],
    "moved": lambda w: w.movedim(0, 1),
    "parts": lambda w: w.tensor_split(2)[0],
    "unflat": lambda w: w.unflatten(0, (2, 3)),
    "diagonal": lambda w: w.diagonal(),
    "typed": lambda w: w.type_as(w),
}


@pytest.mark.parametrize("name", _VIEWS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_drawn_into_a_view_is_drawn_into_the_tensor(name: str, mode) -> None:
    w, expected = torch.zeros(6, 4), torch.zeros(6, 4)
    _VIEWS[name](expected).fill_(1)
    with portable() as numbers, mode():
        _VIEWS[name](w).normal_()
    assert torch.equal(w != 0, expected != 0) and not numbers.unportable


def test_results_lie_in_memory_as_pytorchs() -> None:
    w = torch.randn(3, 4).t()
    with portable():
        y = w.exp()
        y.reshape(-1)[0] = 7  # a copy, since y is transposed
        alike = torch.randn_like(w)
    assert y.stride() == alike.stride() == w.stride() and float(y[0, 0]) != 7


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(3, 4, 3)(torch.randn(2, 3, 8, 8)).sum(),  # whose input needs no gradient
        lambda: nn.LayerNorm(8)(torch.randn(2, 8)).square().sum(),
        lambda: nn.GroupNorm(2, 4)(torch.randn(2, 4, 3)).square().sum(),
        lambda: torch._foreach_exp([nn.Parameter(torch.ones(3))])[0].sum(),
    ],
)
def test_gradients_that_nobody_needs_and_lists_of_one_are_as_in_torch(make) -> None:
    with portable():
        make().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_uniform_numbers_of_a_few_bits_stay_below_their_upper_end(dtype: torch.dtype) -> None:
    with portable() as numbers:
        found = torch.rand(N, dtype=dtype)
        wide = torch.empty(N, dtype=dtype).uniform_(-3, 2)
    assert not numbers.unportable and float(found.max()) < 1 and float(wide.max()) < 2


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.empty(3).normal_(0, -1),
        lambda: torch.normal(torch.zeros(2), torch.tensor([1.0, -1.0])),
        lambda: torch.empty(3).uniform_(2, 1),
        lambda: torch.empty(3).uniform_(0, math.inf),
        lambda: torch.normal(torch.tensor([1, 2]), 1.0),
        lambda: torch.arange(0, math.inf),
        lambda: torch.linspace(0, 1, -1),
        lambda: torch.multinomial(torch.ones(2), 0),
        lambda: torch.empty(3).bernoulli_(2.0),
        lambda: torch.bernoulli(torch.tensor([0.5, 1.5])),
        lambda: torch.empty(3).exponential_(-1),
        lambda: torch.empty(3).log_normal_(0, -1),
        lambda: torch.empty(3).cauchy_(0, -1),
        lambda: torch.empty(3).geometric_(1.5),
        lambda: torch.multinomial(torch.ones(3, dtype=torch.int64), 2),
        lambda: torch.ones(3, dtype=torch.int64).add_(0.5, alpha=2),
    ],
)
def test_what_pytorch_refuses_stays_refused(draw) -> None:
    with pytest.raises(RuntimeError) as theirs:
        draw()
    with portable(), pytest.raises(RuntimeError) as ours:
        draw()
    assert str(ours.value) == str(theirs.value)


def test_what_is_written_into_out_has_its_precision() -> None:
    with portable():
        wide = torch.linspace(0, 1, 4, out=torch.empty(4, dtype=torch.float64))
        steps = torch.arange(0, 1, 0.1, out=torch.empty(10, dtype=torch.float64))
        drawn = torch.rand(9, out=torch.empty(9, dtype=torch.float64))
    assert wide.tolist() == [0, 1 / 3, 1 - 1 / 3, 1] and steps.tolist() == (np.arange(10) * 0.1).tolist()
    assert not torch.equal(drawn, drawn.float().double())


def test_sums_that_threads_may_add_in_any_order_are_added_in_one() -> None:
    where = (torch.zeros(1 << 17, dtype=torch.int64),)
    values = torch.randn(1 << 17)
    with portable() as numbers:
        found = torch.zeros(2).index_put_(where, values, accumulate=True)
    torch.testing.assert_close(float(found[0]), math.fsum(values.tolist()), rtol=1e-7, atol=0)
    assert not numbers.unportable


def test_an_empty_matrix_has_a_decomposition() -> None:
    with portable():
        q, r = torch.linalg.qr(torch.empty(2, 5, 0))
    assert (q.shape, r.shape) == ((2, 5, 0), (2, 0, 0))


def test_threads_draw_and_compute_as_the_one_that_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(3)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.randn, 5).result()

    kept = ThreadPoolExecutor(1)
    start, start_process = threading.Thread.start, BaseProcess.start
    with portable() as numbers:
        torch.manual_seed(3)
        expected = torch.randn(5)
        assert torch.equal(drawn(), expected)
        with torchs_own():
            assert not torch.equal(drawn(), expected)
        kept.submit(torch.linalg.svd, torch.eye(2)).result()
        assert set(numbers.unportable) == {"aten._linalg_svd"}
        spawned = multiprocessing.get_context("spawn").Process()
        monkeypatch.setattr(
            type(spawned), "_Popen", staticmethod(lambda *_: SimpleNamespace(sentinel=0, poll=lambda: 0))
        )
        spawned.start()
        assert set(numbers.unportable) == {"aten._linalg_svd", "a process by spawn"}
    torch.manual_seed(3)
    assert not torch.equal(kept.submit(torch.randn, 5).result(), expected)  # it has outlasted what it began in
    assert (threading.Thread.start, BaseProcess.start) == (start, start_process)
