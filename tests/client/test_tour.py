"""The tour, the page for contributors and the README lead to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = ("tour.md", "contributing.md")
STOPS = [
    (page, *found) for page in PAGES for found in re.findall(r"\[`([\w.]+)`\]\(([^)]+)\)", (DOCS / page).read_text())
]
DEFINED = r"^ *(abstract )?((class|def|function|contract|library|enum) {name}\b|{name}\b(: .*)? = )"


@pytest.mark.parametrize(("page", "name", "path"), STOPS)
def test_every_stop_is_defined_in_the_file_that_its_link_names(page: str, name: str, path: str) -> None:
    source = (DOCS / path).read_text()
    for part in name.split("."):
        is_file = part == Path(path).stem
        assert is_file or re.search(DEFINED.format(name=part), source, re.MULTILINE), part


def test_the_pages_have_their_stops() -> None:
    assert all(sum(page == one for one, *_ in STOPS) > 20 for page in PAGES)


def test_the_readme_is_read_in_a_minute_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).exists(), link


def test_the_readmes_python_trains_and_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    rows = {"x": torch.randn(32, 3), "y": torch.arange(32) % 2}
    names = {"make_model": make_model, "loss": loss, "rows": rows}
    exec(code, names)
    assert (tmp_path / "trained" / "roots").exists() and (tmp_path / "audited" / "roots").exists()
