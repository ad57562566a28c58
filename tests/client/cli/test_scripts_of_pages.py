"""Scripts of the pages docs/how-to/transformers.md and docs/tutorials/research.md become jobs and models."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import roundlog
import torch
from safetensors.torch import load_file
from tiebreak.cli.task_source import load_task

from tests.client.cli.cli_world import Run

pytest.importorskip("accelerate")

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "how-to" / "transformers.md"


def scripts() -> tuple[str, str, int]:
    """The script before and after, and how many lines differ."""
    found = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    before, after = ("".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign)) for sign in ("+", "-"))
    return before, after, sum(line.startswith(("+", "-")) for line in lines)


def test_both_scripts_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, _ = scripts()
    monkeypatch.chdir(tmp_path)
    Path("before.py").write_text(before.replace('output_dir="output",', 'output_dir="output", disable_tqdm=True,'))
    Path("script.py").write_text(after)
    trainer = runpy.run_path("before.py")["trainer"]
    assert trainer.state.global_step == 8 and Path("output/model.safetensors").is_file()
    task = load_task("script.py:task", [])()
    task.check()
    assert (task.steps, task.interval, task.batch_size, task.micro_batches, task.seed) == (8, 4, 8, 2, 1)
    assert len(task.dataset["input_ids"]) == 32


@pytest.mark.slow
def test_the_changed_script_becomes_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(scripts()[1])
    commands = [line.partition("#")[0] for line in re.findall(r"^tiebreak (.*)$", PAGE.read_text(), re.MULTILINE)]
    assert [command.split()[0] for command in commands] == ["job", "train", "export"]
    Path("my_model").mkdir()
    for command in commands:
        done = run(*command.split())
        assert done.exit_code == 0, done.output
    task = load_task("script.py:task", [])()
    task.model.config.save_pretrained("my_model")
    read = type(task.model).from_pretrained("my_model").state_dict()
    assert not all(torch.equal(one, read[name]) for name, one in task.model.state_dict().items()), "it was trained"
    roundlog.load_into(task.model, "trained")
    assert all(torch.equal(one, read[name]) for name, one in task.model.state_dict().items())


@pytest.mark.slow
def test_a_file_with_several_optimizers_becomes_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    page = (DOCS / "tutorials" / "research.md").read_text()
    found = re.search(r"### Several optimizers\n.*?```python\n(.*?)```", page, re.DOTALL)
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
