"""The format of the page about the papers and of the measurements behind it."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
RESULT: dict[str, Any] = json.loads((ROOT / "scripts" / "papers" / "result.json").read_text())
MEASURED = [(model, size) for model in ("resnet", "gpt2") for size in RESULT["parts"][model]]


def headings(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("#")]


def test_the_page_has_the_parts_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from papers import report

    assert headings(PAGE) == headings(report.markdown(RESULT)), (
        "run .venv/bin/python scripts/paper_tables.py --parts ''"
    )


@pytest.mark.parametrize(("model", "size"), MEASURED)
def test_plain_training_drifted_apart_and_no_method_did(model: str, size: str) -> None:
    found = RESULT["parts"][model][size]["divergence"]["apart"]
    # Equality is the claim: not one bit of a weight may differ.
    methods = {"hardware A and B, threshold", "hardware A and B, certified"}
    assert all((apart["weights"] == 0) == (name in methods) for name, apart in found.items() if "rounded" not in name)


@pytest.mark.parametrize(("model", "size"), MEASURED)
def test_auditor_and_trainer_had_one_root_by_every_policy(model: str, size: str) -> None:
    rows = RESULT["parts"][model][size]["corrections"]
    assert {row["policy"] for row in rows} == {"certified", "threshold"}
    assert all(row["same"] for row in rows)
    assert not any(row["findings"] for row in rows)
