"""Exported models of `transformers`, read by `from_pretrained` where the configuration is there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from roundlog.training.export import trained_state

from tests.engine.capture.random_trainers import MODELS
from tests.engine.trainings import run_of


@pytest.mark.parametrize("kind", ["tied", "rotary", "classifier"])
def test_from_pretrained_reads_an_exported_model(kind: str, tmp_path: Path) -> None:
    make, data = MODELS[kind]
    torch.manual_seed(3)
    trained, rows = make(0.0).eval(), data(2)
    trained_state(run_of(trained, tmp_path / "run")).export(tmp_path / "model.safetensors")
    trained.config.save_pretrained(tmp_path)
    read, told = type(trained).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    assert read.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(one, read.state_dict()[name]) for name, one in trained.state_dict().items())
    assert (read.get_output_embeddings() is None) == (trained.get_output_embeddings() is None)
    if kind == "tied":
        assert read.lm_head.weight is read.transformer.wte.weight
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        assert torch.equal(read(**batch).logits, trained(**batch).logits)
