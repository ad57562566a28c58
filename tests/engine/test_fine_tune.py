"""Scripts about BF16 refuse what they cannot measure, in a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import bench_sizes
import pytest
from roundlog.capture import CaptureError

pytest.importorskip("peft")


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
    monkeypatch.setattr(sys, "argv", ["bench_sizes", *arguments])
    monkeypatch.setattr(bench_sizes, "measure", lambda *_: pytest.fail("measures"))
    with pytest.raises(SystemExit) as ended:
        bench_sizes.main()
    assert ended.value.code == 2
    assert "choose a size that is there (--only)" in capsys.readouterr().err
