"""Scripts about BF16 refuse what they cannot measure, in a sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import bench_sizes
import compare_bf16_losses
import pytest
from roundlog.capture import CaptureError

pytest.importorskip("peft")


def refused(
    script: ModuleType, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a script says about wrong arguments, before it measures anything."""
    monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
    monkeypatch.setattr(script, "measure", lambda *_: pytest.fail("measures"))
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_task_without_its_files_is_refused(tmp_path: Path) -> None:
    from fine_tuning.lora_task import task

    with pytest.raises(CaptureError, match="there is no folder /nowhere with a model"):
        task("/nowhere")
    (tmp_path / "config.json").touch()
    with pytest.raises(CaptureError, match="there is no file /nowhere"):
        task(str(tmp_path), "/nowhere")


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--steps", "1"]])
def test_sizes_that_are_not_there_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "choose a size that is there (--only)" in refused(bench_sizes, arguments, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--text", "/nowhere"], "--text: /nowhere cannot be read"),
        (["--steps", "0"], "--steps: 0 is no number of steps"),
        (["--seeds", "0"], "--seeds: 0 gives no two seeds"),
        (["--seeds", "1"], "--seeds: 1 gives no two seeds"),
        (["--write", "/nowhere/at/all"], "--write: there is no folder /nowhere/at/all"),
        (["--write", "."], "--write: matplotlib is not there"),
    ],
)
def test_wrong_arguments_of_a_comparison_are_refused_before_training(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert sentence in refused(compare_bf16_losses, arguments, monkeypatch, capsys)
