"""Matrix products panel by panel are what they are at once: the correct rounding, whatever is cut how."""

from __future__ import annotations

import pytest
import torch
from roundlog.operators import operator, products, terms
from roundlog.rounding import Recorder

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
    """The same numbers as they lie in memory after various movements."""
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


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_panels_and_blocks_round_correctly(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PANEL", 4000)
    monkeypatch.setattr(terms, "BLOCK_TERMS", 128)
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
        assert torch.equal(Recorder(4).round(0, op, [x, y], {})[0], expected)


def test_panels_stop_at_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PANEL", 4000)
    a, b = torch.ones(300, 20), torch.ones(20, 30)
    for bad in (float("nan"), float("inf"), 3e38):
        a[17, 3] = bad
        b[3, 5] = 10.0
        rounded, finite = Recorder(4).round(0, operator("matmul"), [a, b], {})
        assert not finite
        assert not rounded[17, 5].isfinite()
        assert rounded[16].isfinite().all()
