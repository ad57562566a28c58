"""Matrix products panel by panel are what they are at once: the correct rounding, whatever is cut how."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from roundlog.kernels import gemm_microkernel, threads
from roundlog.number_format import FLOAT32
from roundlog.operators import Inexact, operator, summation
from roundlog.operators.cpu import conv_blas, gemm_blas
from roundlog.rounding import Recorder


@pytest.fixture(params=[1, 3])
def shared_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many threads, which get a share of the smallest task."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "MIN_ELEMENTS", 1)
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=[8, 4, 2, 0])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of the tiles that products are computed by, whatever this processor would have chosen; 0: panels."""
    monkeypatch.setattr(gemm_microkernel, "tile_lanes", lambda: request.param)


SHAPES = {
    "wide": ((1, 37, 50), (1, 50, 900)),
    "tall": ((1, 900, 50), (1, 50, 37)),
    "long": ((1, 9, 3000), (1, 3000, 11)),
    "long and wide": ((1, 20, 700), (1, 700, 800)),
    "long and tall": ((1, 800, 700), (1, 700, 20)),
    "batches": ((13, 8, 40), (13, 40, 9)),
    "long batches": ((5, 7, 600), (5, 600, 6)),
    "one row": ((1, 1, 300), (1, 300, 600)),
    "one column": ((1, 600, 300), (1, 300, 1)),
    "one term": ((1, 30, 1), (1, 1, 40)),
}


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """A tensor's numbers as they lie in memory after various movements."""
    spread = torch.zeros(x.shape[0], x.shape[1], 2 * x.shape[2] + 3)
    spread[:, :, 1 : 2 * x.shape[2] + 1 : 2] = x
    inside = torch.zeros(x.shape[0] + 2, x.shape[1] + 1, x.shape[2] + 5)
    inside[1:-1, 1:, 2:-3] = x
    return [
        x.mT.contiguous().mT,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        spread[:, :, 1 : 2 * x.shape[2] + 1 : 2],
        inside[1:-1, 1:, 2:-3],
    ]


@pytest.mark.slow_but("*-8-0-4.0-*", "*-4-0-4.0-*", "*-0-0-4.0-*", "*-0-8388608-4.0-*")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize(("by", "shared"), [(8, 0), (4, 0), (2, 0), (0, 0), (0, 1 << 23)], indirect=["by"])
@pytest.mark.usefixtures("shared_out", "by")
def test_panels_and_blocks_round_correctly(
    name: str, scale: float, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_blas, "PANEL", 4000)
    monkeypatch.setattr(gemm_blas, "SHARED", shared)
    monkeypatch.setattr(summation, "BLOCK_TERMS", 128)
    torch.manual_seed(len(name))
    left, right = SHAPES[name]
    a, b = torch.randn(left), torch.randn(right)
    # Sums that cancel, exact ties, zeros.
    a[:, :, a.shape[2] // 2 :] *= -1
    a[:, ::3], b[:, :, ::4] = a[:, ::3].round(), b[:, :, ::4].round()
    op = operator("matmul")
    out = torch.empty(left[0], left[1], right[2])
    expected = op.exact([a, b], {}, torch.arange(out.numel())).reshape(out.shape)
    for x, y in [(a, b), *((x, b) for x in layouts(a)), *((a, y) for y in layouts(b))]:
        rounded, marked = op.certify([x, y], {}, scale)
        assert (marked.indices[1:] > marked.indices[:-1]).all()
        rounded.view(-1)[marked.indices] = expected.view(-1)[marked.indices]
        assert torch.equal(rounded.view(torch.int32), expected.view(torch.int32))
        values = (x.double() @ y.double()).reshape(-1)[marked.indices]
        assert torch.allclose(marked.y, values, rtol=0, atol=float(2 * marked.d.max()) if len(values) else 0)
        assert torch.equal(Recorder(4).round(0, op, [x, y], {}), expected)


@pytest.mark.usefixtures("by")
def test_panels_stop_at_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_blas, "PANEL", 4000)
    a, b = torch.ones(300, 20), torch.ones(20, 30)
    for bad in (float("nan"), float("inf"), 3e38):
        a[17, 3] = bad
        b[3, 5] = 10.0
        rounded = Recorder(4).round(0, operator("matmul"), [a, b], {})
        assert not rounded.isfinite().all()
        assert not rounded[17, 5].isfinite()
        assert rounded[16].isfinite().all()


WINDOWS = {
    "plain": ((3, 8, 9, 7), (5, 8, 1, 1), {}),
    "three by three": ((3, 5, 9, 7), (6, 5, 3, 3), {"padding": (1, 1)}),
    "strided": ((2, 3, 12, 11), (4, 3, 3, 3), {"stride": (2, 3), "padding": (1, 2)}),
    "strided, one tap": ((2, 6, 8, 8), (4, 6, 1, 1), {"stride": (2, 2)}),
    "padded, one tap": ((2, 6, 4, 4), (4, 6, 1, 1), {"padding": (1, 2)}),
    "dilated": ((2, 3, 14, 13), (4, 3, 3, 2), {"dilation": (2, 3), "padding": (2, 3)}),
    "groups": ((2, 6, 8, 9), (9, 2, 3, 3), {"groups": 3, "padding": (1, 1)}),
    "a group a channel": ((2, 6, 8, 9), (12, 1, 3, 3), {"groups": 6, "padding": (1, 1), "stride": (2, 1)}),
    "large image": ((2, 2, 40, 40), (3, 2, 3, 3), {"padding": (1, 1)}),
    "long": ((2, 200, 5, 5), (3, 200, 3, 3), {"padding": (1, 1)}),
    "many outputs": ((2, 3, 5, 5), (300, 3, 3, 3), {"padding": (1, 1)}),
    "unused edge": ((2, 3, 8, 8), (4, 3, 3, 3), {"stride": (4, 4)}),
    "far outside": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": (4, 5), "stride": (3, 1)}),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("by", "panel"), [(8, 0), (4, 0), (2, 0), (0, 200), (0, 3000), (0, 1 << 19)], indirect=["by"])
@pytest.mark.usefixtures("shared_out", "by")
def test_convolutions_in_panels_round_correctly(name: str, panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_blas, "PANEL", panel)
    monkeypatch.setattr(summation, "BLOCK_TERMS", 128)
    torch.manual_seed(len(name))
    size, kernel, options = WINDOWS[name]
    attributes = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **options}
    x, w = torch.randn(size), torch.randn(kernel)
    x[:, ::2], w[::2] = x[:, ::2].round(), w[::2].round()
    g = torch.randn(operator("conv2d").output_shape((size, kernel), attributes))
    g[:, ::3] = g[:, ::3].round()
    x = x.to(memory_format=torch.channels_last)
    for op_name, inputs, more in [
        ("conv2d", [x, w], {}),
        ("conv2d_grad_input", [g, w], {"size": size[2:]}),
        ("conv2d_grad_weight", [g, x], {"size": kernel[2:]}),
    ]:
        op, given = operator(op_name), {**attributes, **more}
        y = op.approximate(inputs, given)
        # Every element by the definition of the reads, in exact arithmetic: nothing that the panels share.
        right = op._exact_by_reads(*(i.contiguous() for i in inputs), given, np.arange(y.numel()), FLOAT32)
        expected = torch.from_numpy(right).reshape(y.shape)
        assert torch.equal(op.exact(inputs, given, torch.arange(y.numel())).reshape(y.shape), expected)
        assert torch.equal(Recorder(4).round(0, op, inputs, given).view(torch.int32), expected.view(torch.int32))
        reference, certain = Inexact.certify(op, inputs, given, 4.0)
        reference.view(-1)[certain.indices] = expected.view(-1)[certain.indices]
        assert torch.equal(reference, expected)
        rounded, marked = op.certify(inputs, given, 4.0)
        rounded.view(-1)[marked.indices] = expected.view(-1)[marked.indices]
        assert torch.equal(rounded, expected)
        assert len(marked.indices) < 0.2 * y.numel()


def test_a_tap_that_reads_nothing_but_padding_is_in_no_doubt() -> None:
    torch.manual_seed(1)
    g, x = torch.randn(4, 5, 1, 1), torch.randn(4, 3, 1, 1)
    attributes = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "size": (3, 3)}
    rounded, marked = operator("conv2d_grad_weight").certify([g, x], attributes, 4.0)
    taps = {int(index) % 9 for index in marked.indices}
    assert taps <= {4}
    assert not rounded[:, :, 0, 0].any() and rounded[:, :, 1, 1].all()


def test_work_is_handed_out_once_and_only_there_where_it_is_wanted(shared_out: int) -> None:
    done, nested = [], []

    def work(item: int) -> None:
        done.append(item)
        # Work that a task starts in its turn stays on its thread.
        assert threads.threads_for(100, 100) == 1
        assert torch.get_num_threads() == 1
        threads.in_parts(lambda start, stop: nested.append((start, stop)), 7, 1 << 30)

    with threads.own_threads():
        assert threads.threads_for(100, 100) == shared_out
        threads.one_by_one(work, 50, 50)
    assert sorted(done) == list(range(50))
    assert nested == [(0, 7)] * 50
    assert torch.get_num_threads() == shared_out
    assert threads.threads_for(100, 100) == shared_out


def test_a_task_that_fails_ends_the_work_and_leaves_the_settings_as_they_were(shared_out: int) -> None:
    def work(item: int) -> None:
        if item == 5:
            raise ValueError(str(item))

    for _ in range(2):
        with pytest.raises(ValueError, match="5"), threads.own_threads():
            threads.one_by_one(work, 50, 50)
        assert torch.get_num_threads() == shared_out
        assert threads.threads_for(100, 100) == shared_out
