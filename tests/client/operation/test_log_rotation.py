"""The log file: whole lines of JSON, rotated, and a full disk costs lines only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiebreak.operation import monitor
from tiebreak.operation.monitor import RotatingLog


def test_files_are_rotated_and_every_line_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "FILE_BYTES", 2000)
    log = RotatingLog(tmp_path / "role.log")
    for number in range(1000):
        log.write({"what": "sent", "text": f"move {number} \n\x1b"})
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == monitor.FILES and all(file.stat().st_size <= 2000 for file in files)
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    numbers = sorted(int(entry["text"].split()[1]) for entry in kept)
    assert numbers == list(range(numbers[0], 1000)) and log.lost == 0


def test_of_training_steps_one_a_minute_is_kept(tmp_path: Path) -> None:
    seconds = [0.0]
    log = RotatingLog(tmp_path / "role.log", clock=lambda: seconds[0])
    for step in range(600):
        seconds[0] = float(step)
        log.write({"what": "step", "done": step})
        log.write({"what": "sent", "text": "x"})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "role.log").read_text().splitlines()]
    assert [line["done"] for line in lines if line["what"] == "step"] == list(range(0, 600, 60))
    assert sum(line["what"] == "sent" for line in lines) == 600


def test_a_full_disk_costs_lines_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    log = RotatingLog(Path("/dev/full"))
    for _ in range(3):
        log.write({"what": "sent"})
    assert log.lost == 3 and capfd.readouterr() == ("", "")
