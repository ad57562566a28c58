"""The page about the papers is what was measured, and what was measured is what it says about equality."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "docs" / "papers.json").read_text())
MEASURED = [(model, size) for model in ("resnet", "gpt2") for size in RESULT["parts"][model]]


def test_the_page_is_made_of_the_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from papers import report

    page = (ROOT / "docs" / "papers.md").read_text()
    assert report.markdown(RESULT) == page, "run .venv/bin/python scripts/paper_tables.py --parts ''"
    for name in ("divergence-plain.svg", "divergence-methods.svg"):
        assert f"figures/{name}" in page
        assert (ROOT / "docs" / "figures" / name).stat().st_size > 0


@pytest.mark.parametrize(("model", "size"), MEASURED)
def test_plain_training_drifted_apart_and_no_method_did(model: str, size: str) -> None:
    found = RESULT["parts"][model][size]["divergence"]
    curves = found["curves"]
    plain = {label for label in curves if label.startswith("plain")}
    assert len(plain) == 2
    for label, curve in curves.items():
        assert len(curve) == found["steps"]
        # Equality is the claim: not one bit of a weight may differ.
        assert all(curve) if label in plain else label.startswith("FP64") or not any(curve), label


@pytest.mark.parametrize(("model", "size"), MEASURED)
def test_auditor_and_trainer_had_one_root_by_every_policy(model: str, size: str) -> None:
    rows = RESULT["parts"][model][size]["corrections"]
    assert {row["policy"] for row in rows} == {"certified", "threshold"}
    assert all(row["same"] for row in rows)
    assert not any(row["findings"] for row in rows)
