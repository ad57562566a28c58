"""The page about Hugging Face's models, and the rows that it is made of."""

from __future__ import annotations

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
