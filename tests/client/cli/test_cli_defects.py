"""A defect of this program is called one, with the line of the user's script and a file to send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError, raising_defects
from roundlog.capture.builder import Builder, Value
from roundlog.capture.rules import RULES
from roundlog.capture.rules.rule_table import Context

from tests.client.cli.cli_world import Run

SCRIPT = """
import torch
from roundlog.capture import Task

def loss(model, batch):
    hidden = model(batch["x"])
    return torch.tanh(hidden).square().mean()

def planted():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return Task(
        model=model, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(32, 2)}, batch_size=4, steps=4, interval=2, seed=1,
    )

def of_ours():
    return Task.from_trainer(None)
"""


def line_of(code: str) -> int:
    return next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if code in text)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "planted_task.py"
    path.write_text(SCRIPT)
    return path


def broken(c: Context, x: Value) -> object:
    return c.builder.shape(Value(10**6))  # a value that is not there


def test_an_error_inside_a_rule_is_a_defect_with_a_file_to_send(
    run: Run, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "tanh", broken)
    result = run("job", "create", f"{script}:planted", "--out", tmp_path / "job", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "internal", error
    where = f"planted_task.py:{line_of('torch.tanh')}"
    assert error["message"].startswith(
        f"a defect of Tiebreak, not of your script, stops the capture with the operator aten.tanh.default (at {where}):"
        " IndexError"
    )
    (report,) = tmp_path.glob("tiebreak-defect-*.txt")
    assert str(report) in error["message"]
    text = report.read_text()
    assert "operator: aten.tanh.default" in text and "IndexError" in text and "torch 2" in text and "broken" in text
    assert str(Path.home()) not in text


def test_what_code_of_the_users_raises_is_no_defect() -> None:
    def of_the_users() -> None:
        torch.zeros(2).view(3)

    message = r"^your code fails with RuntimeError: shape .*test_cli_defects.py:\d+"
    with pytest.raises(CaptureError, match=message), raising_defects():
        of_the_users()


def test_an_error_of_ours_inside_the_task_function_is_not_put_on_the_script(
    run: Run, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundlog.capture.huggingface.trainer_arguments", lambda *_: Builder().shape(Value(1)))
    result = run("job", "create", f"{script}:of_ours", "--out", tmp_path / "job", "--json")
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "internal" and "not of your script" in error["message"], error
    assert f"line {line_of('from_trainer')}" in error["message"] and list(tmp_path.glob("tiebreak-defect-*.txt"))
