"""The example of docs/tutorials/research.md for several optimizers: a file with a generator and its discriminator."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiebreak.cli.task_source import load_task

from tests.client.cli.cli_world import Run

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "research.md"


@pytest.mark.slow
def test_the_file_becomes_a_job_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    found = re.search(r"### Several optimizers\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    Path("my_task.py").write_text(found[1])
    for command in (
        "job create my_task.py:task --out job",
        "train job --run trained",
        "audit job --run audited --claim trained",
        "export trained --to model.safetensors",
    ):
        done = run(*command.split())
        assert done.exit_code == 0, done.output
    trained = load_file("model.safetensors")
    assert trained.keys() == load_task("my_task.py:task", [])().model.state_dict().keys()
    entries = [json.loads(line) for line in Path("trained/history.jsonl").read_text().splitlines()]
    assert len(entries) == 8 and {"0/step_size", "1/step_size"} <= entries[0]["schedule"].keys()
    assert 1.5 < entries[0]["loss"] < 3, "the sum of three cross entropies of two answers, each near log 2"
