"""The tour and the README lead to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "docs" / "tour.md"
STOPS = re.findall(r"\[`([\w.]+)`\]\(([^)]+)\)", TOUR.read_text())


@pytest.mark.parametrize(("name", "path"), STOPS)
def test_every_stop_is_defined_in_the_file_that_its_link_names(name: str, path: str) -> None:
    source = (TOUR.parent / path).read_text()
    for part in name.split("."):
        assert re.search(rf"^ *(abstract )?(class|def|function|contract) {part}\b", source, re.MULTILINE), part


def test_the_tour_has_its_stops() -> None:
    assert len(STOPS) > 20


def test_the_readme_is_read_in_a_minute_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).exists(), link


def test_the_readmes_python_trains_and_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    model = nn.Linear(3, 2)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"model": model, "loss": loss, "optimizer": optimizer, "x": torch.randn(32, 3), "y": torch.arange(32) % 2}
    exec(code, names)
    assert (tmp_path / "trained" / "roots").exists() and (tmp_path / "audited" / "roots").exists()
