"""The example of docs/how-to/transformers.md: a script that trains by `Trainer`, and the job that it becomes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from roundlog.training.job import Job
from tiebreak.cli.source import load_task

pytest.importorskip("accelerate")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "transformers.md"


def scripts() -> tuple[str, str, int]:
    """The script before and after, and how many lines differ."""
    found = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    before, after = ("".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign)) for sign in ("+", "-"))
    return before, after, sum(line.startswith(("+", "-")) for line in lines)


def test_the_page_says_how_many_lines_change() -> None:
    assert scripts()[2] <= 5
    assert "by five changed lines" in PAGE.read_text()


def test_both_scripts_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, _ = scripts()
    monkeypatch.chdir(tmp_path)
    Path("before.py").write_text(before.replace('output_dir="output",', 'output_dir="output", disable_tqdm=True,'))
    Path("script.py").write_text(after)
    trainer = runpy.run_path("before.py")["trainer"]
    assert trainer.state.global_step == 8 and Path("output/model.safetensors").is_file()
    job = Job.from_task(load_task("script.py:task", []))
    assert (job.spec.steps, job.spec.interval, job.spec.batch_size, job.spec.seed) == (8, 4, 8, 1)
