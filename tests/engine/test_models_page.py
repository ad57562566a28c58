"""The page about Hugging Face's models, and the rows that it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from try_models import counts, markdown, read

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "scripts" / "models" / "rows.jsonl"


def test_the_page_is_what_the_rows_make() -> None:
    rows = read(ROWS)
    assert (ROOT / "docs" / "models.md").read_text() == markdown(rows.values())
    captured, tried = counts(rows.values())
    assert captured >= 210 and tried - captured <= 20
    for row in rows.values():
        assert row["outcome"] == "captured" or row["why"], row


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"name": "a", "outcome": "refused"}\n{"name": "b", "outc')
    assert list(read(file)) == ["a"]


def test_roots_that_differ_do_not_count_as_captured() -> None:
    row = {"name": "a", "outcome": "captured", "root": "01", "other root": "02"}
    assert counts([row, {**row, "other root": "01"}, {"outcome": "not tried"}]) == (1, 2)


def tried(tmp_path: Path, *names: str) -> subprocess.CompletedProcess[str]:
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, str(ROOT / "scripts" / "try_models.py"), "--limit", "500", *only]
    command += ["--rows", str(tmp_path / "rows.jsonl")]
    return subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_small_model_comes_to_the_root_of_its_row(tmp_path: Path) -> None:
    done = tried(tmp_path, "gpt_neox")
    assert done.returncode == 0 and "captured 1 of 1" in done.stdout, done.stderr
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["root"] == row["other root"] == read(ROWS)["gpt_neox"]["root"]


@pytest.mark.slow
def test_a_kind_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = tried(tmp_path, "no_such_kind")
    assert done.returncode and "there is no kind no_such_kind" in done.stderr and "Traceback" not in done.stderr
