"""Rows of data above 64 KiB: posted only by who says that it accepts the risk."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_world import Chain, Run, refused

TASK = """
import torch
from roundlog.capture import Task


def task():
    model = torch.nn.Linear(17_000, 2)
    return Task(
        model=model,
        loss=lambda m, b: m(b["x"]).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5),
        dataset={"x": torch.randn(3, 17_000)},
        batch_size=2,
        steps=2,
        interval=1,
        seed=2,
    )
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "wide.py"
    path.write_text(TASK)
    return path


def test_such_a_job_is_made_and_says_what_it_is(run: Run, file: Path, tmp_path: Path) -> None:
    words = ("job", "create", f"{file}:task", "--out", tmp_path / "job")
    made = run(*words)
    assert made.exit_code == 0
    assert "68000 bytes each, above 65536: posted and taken only with --allow-large-rows" in made.stdout
    assert "--allow-large-rows" in run("job", "show", tmp_path / "job").stdout
    # Without a chain nobody needs a referee.
    assert run("train", tmp_path / "job", "--run", tmp_path / "run").exit_code == 0


def test_such_a_job_is_not_posted_by_default(run: Run, file: Path, tmp_path: Path, chain: Chain) -> None:
    before = chain.game.job_count()
    Path(tmp_path / "job").mkdir()
    run("job", "create", f"{file}:task", "--out", tmp_path / "job")
    words = ("job", "create", tmp_path / "job", "--reward", "1ether", "--referee", "0x" + "11" * 20)
    places = ("--dir", tmp_path / "customer", "--store", tmp_path / "store")
    refusal = run(*words, *places, "--json", env=chain.environment(1))
    refused(refusal, "takes 68000 bytes, more than the 65536", "make the rows smaller", "--allow-large-rows")
    assert chain.game.job_count() == before
    posted = run(*words, *places, "--allow-large-rows", "--json", env=chain.environment(1))
    assert posted.exit_code == 0, posted.output
    assert chain.game.job_count() == before + 1


@pytest.mark.parametrize("role", ["trainer", "auditor"])
def test_who_takes_jobs_is_told_of_the_risk(run: Run, role: str) -> None:
    shown = " ".join(run(role, "run", "--help", env={"COLUMNS": "200"}).stdout.replace("│", " ").split())
    assert "--allow-large-rows" in shown and "silence costs the trainer its reward" in shown
