"""The benchmark of disputes finds its lies whatever the model's first weights are, which differ between machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from roundlog.examples.gpt import gpt
from roundlog.training.job import Job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_lies_are_found_whatever_the_first_weights(
    scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights a hundredth as large, gradients are not clipped, and a few percent of their norm vanish."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_dispute

    data = ROOT / "LICENSE"  # a text that stays as it is
    task = gpt(
        data=data,
        steps=bench_dispute.STEPS,
        interval=bench_dispute.INTERVAL,
        batch_size=4,
        context=32,
        layers=1,
    )
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(scale)
    job = Job.from_task(lambda: task)
    honest = bench_dispute.trees(job, tmp_path, "auditor")
    found = bench_dispute.lies(job, honest)
    assert set(found) == set(bench_dispute.kinds(job))
    if scale < 1:
        assert found["the longest sum"].claimed is not None  # a few bits of it would vanish
