"""Pages of the documentation lead to what is there, and those that are made from the code are what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import make_cli_docs
import make_code_docs
import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
TOURS = ("tour.md", "contributing.md")
STOPS = [
    (page, *found) for page in TOURS for found in re.findall(r"\[`([\w.]+)`\]\(([^)]+)\)", (DOCS / page).read_text())
]
DEFINED = r"^ *(abstract )?((class|def|function|contract|library|enum) {name}\b|{name}\b(: .*)? = )"


@pytest.mark.parametrize(("page", "name", "path"), STOPS)
def test_every_stop_is_defined_in_the_file_that_its_link_names(page: str, name: str, path: str) -> None:
    source = (DOCS / path).read_text()
    for part in name.split("."):
        is_file = part == Path(path).stem
        assert is_file or re.search(DEFINED.format(name=part), source, re.MULTILINE), part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # where f[0](x) is a call
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_pages_of_commands_and_codes_are_what_the_code_says() -> None:
    assert (DOCS / "reference/command-line.md").read_text() == make_cli_docs.page(), "run scripts/make_cli_docs.py"
    assert (DOCS / "reference/codes.md").read_text() == make_code_docs.page(), "run scripts/make_code_docs.py"


def test_every_environment_variable_is_on_the_page_of_codes() -> None:
    read: set[str] = set()
    for room in ("client", "engine/roundlog"):
        for file in (ROOT / room).rglob("*.py"):
            read.update(re.findall(r"\bTIEBREAK_[A-Z]+(?:_[A-Z]+)*\b", file.read_text()))
    assert read == set(make_code_docs.variables())


def test_the_readmes_python_trains_and_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    rows = {"x": torch.randn(32, 3), "y": torch.arange(32) % 2}
    exec(code, {"make_model": make_model, "loss": loss, "rows": rows})
    assert (tmp_path / "trained" / "roots").exists() and (tmp_path / "audited" / "roots").exists()


# Names that are quoted in docstrings and pages.

FOLDERS = ("engine", "client", "scripts")


QUOTED = re.compile(r"`((?:roundlog|tiebreak)(?:\.[A-Za-z]\w*)+)(?:\(\))?`")


def defined(tree: ast.AST) -> set[str]:
    """Names that the statements of a file define or import, those of classes' members among them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(one.asname or one.name for one in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found.update(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
    return found


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a file or folder, or to what such a file defines."""
    first, *rest = name.split(".")
    place = ROOT / ("engine" if first == "roundlog" else "client") / first
    while rest and ((place / rest[0]).is_dir() or (place / f"{rest[0]}.py").is_file()):
        place /= rest.pop(0)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return not rest or (file.is_file() and set(rest) <= defined(ast.parse(file.read_text())))


def test_quoted_names_are_those_of_things_that_there_are() -> None:
    sources = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    quoted = {
        (name, str(path.relative_to(ROOT))) for path in sources + pages for name in QUOTED.findall(path.read_text())
    }
    assert len(quoted) > 100
    assert [(name, path) for name, path in sorted(quoted) if not is_there(name)] == []
