"""The pages about commands, and the links of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import make_cli_docs
import make_code_docs
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_page_of_commands_is_what_help_says() -> None:
    page = ROOT / "docs" / "reference" / "command-line.md"
    assert page.read_text() == make_cli_docs.page(), "run scripts/make_cli_docs.py"


def test_the_page_of_codes_is_what_the_code_says() -> None:
    page = ROOT / "docs" / "reference" / "codes.md"
    assert page.read_text() == make_code_docs.page(), "run scripts/make_code_docs.py"


def test_every_environment_variable_is_on_that_page() -> None:
    read: set[str] = set()
    for room in ("client", "engine/roundlog"):
        for file in (ROOT / room).rglob("*.py"):
            read.update(re.findall(r"\bTIEBREAK_[A-Z]+(?:_[A-Z]+)*\b", file.read_text()))
    assert read == set(make_code_docs.variables())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # where f[0](x) is a call
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
