"""The format of the page about Hugging Face's models, and the rows that it is made of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "try_models.py"

pytest.importorskip("transformers")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from models import page

    return page


FIRST_LINE = r"captured (\d+) of (\d+) kinds of models of `transformers` [\d.]+, \d+ of them in evaluation mode"
OUTCOME = r"(`[0-9a-f]{16}`|[a-z])"
ROW = rf"\| [\w.-]+ \| [\w ]+ \| \w+ \| [^|]+ \| [\d,]+ \| ([\d,]+|-) \| (-|{OUTCOME}[^|]*) \| {OUTCOME}.* \|"


def require_format(text: str) -> tuple[int, int]:
    """The two numbers that the page counts, once its format is right."""
    first = re.match(FIRST_LINE, text)
    assert first is not None
    table = text[text.index("| kind |") :].split("\n\n")[0].splitlines()[2:]
    for line in table:
        assert re.fullmatch(ROW, line.replace("\\|", "")), line
    captured = sum(re.search(r"\| `[0-9a-f]{16}`[^|]*\|$", line) is not None for line in table)
    assert (captured, len(table)) == (int(first[1]), int(first[2]))
    return captured, len(table)


def test_the_page_counts_its_rows(page) -> None:
    captured, tried = require_format((ROOT / "docs" / "models.md").read_text())
    assert tried >= 171 and captured >= 150
    rows = page.read(ROOT / "scripts" / "models" / "rows.jsonl")
    assert (captured, tried) == page.counts(rows.values())
    autocast = page.read(ROOT / "scripts" / "models" / "rows_autocast.jsonl")
    assert all(page.is_captured(rows[name]) for name in autocast)
    assert (captured, tried) == require_format(page.markdown(rows.values(), ("one", "other"), 633, autocast))
    for row in rows.values():
        assert row["outcome"] == "captured" or row["why"], row
        assert row.get("root") == row.get("other root") or row["outcome"] != "captured", row


def test_roots_that_differ_do_not_count_as_captured(page) -> None:
    row = {"name": "a", "outcome": "captured", "root": "01", "other root": "02"}
    assert page.counts([row, {**row, "other root": "01"}, {"outcome": "not tried"}]) == (1, 2)


def tried(tmp_path: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(SCRIPT),
        "--rows",
        str(tmp_path / "rows.jsonl"),
        "--write",
        str(tmp_path / "page.md"),
    ]
    for name in names:
        command += ["--only", name]
    paths = os.pathsep.join([str(ROOT / "engine"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_small_models_are_tried_and_captured(tmp_path: Path) -> None:
    done = tried(tmp_path, "gpt_neox", "resnet")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert {row["outcome"] for row in rows.values()} == {"captured"} and len(rows) == 2
    assert all(row["root"] == row["other root"] for row in rows.values())
    assert (tmp_path / "page.md").read_text().startswith("captured 2 of 2 kinds of models")
