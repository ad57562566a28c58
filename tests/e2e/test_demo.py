"""The demo, as a newcomer starts it; and that it would not call a failure a success."""

from __future__ import annotations

import io
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiebreak.cli.app import app
from tiebreak_demo import play
from tiebreak_demo.processes import A, B
from tiebreak_demo.report import USUAL, AccountReport, Check, Contrast, Report, Story
from tiebreak_demo.screen import Screen
from typer.testing import CliRunner

ETHER = 10**18


def _play(tmp_path: Path, *words: str) -> tuple[dict[str, Any], str]:
    file = tmp_path / "report.json"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
    done = subprocess.run(
        [sys.executable, "-m", "tiebreak.cli.app", "demo", "--report", str(file), *words],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return json.loads(file.read_text()), done.stdout


@pytest.mark.slow
def test_the_demo_ends_as_it_should(tmp_path: Path) -> None:
    report, shown = _play(tmp_path, "--steps", "20")
    assert report["ok"] is True and report["steps"] == 20
    if platform.machine() == "x86_64":
        assert len(set(report["plain_pytorch"]["trained"].values())) == 2
    honest, poisoned, alarms = report["stories"]
    assert [one["verdict"] for one in (honest, poisoned, alarms)] == ["FINAL", "REJECTED", "FINAL"]
    assert honest["root"] == alarms["root"] != poisoned["root"]
    assert honest["rounds"] == 0 and poisoned["rounds"] > 0 and alarms["rounds"] > 0
    moved = [_moved(story) for story in (honest, poisoned, alarms)]
    assert moved[0] == {"customer": -ETHER, "trainer": ETHER, "auditor": 0, "referee": 0}
    # The cost of the winners' gas is measured; the stories themselves hold every share against it, to the wei.
    lost, won = {"trainer": -2 * ETHER, "referee": 0}, {"lying auditor": -ETHER, "silent auditor": -ETHER, "referee": 0}
    assert lost.items() <= moved[1].items() and won.items() <= moved[2].items()
    assert moved[1]["auditor"] >= ETHER and 0 < moved[1]["customer"] <= ETHER // 2
    assert moved[2]["trainer"] >= 2 * ETHER and -ETHER < moved[2]["customer"] <= -ETHER // 2
    assert all(len(story["checks"]) >= 7 for story in (honest, poisoned, alarms))
    assert any("step 12, the poisoned one" in check["text"] for check in poisoned["checks"])
    assert "✗" not in shown and "\x1b" not in shown, "piped output has no colours and no bars"
    assert shown.splitlines()[-1].startswith("Everything went as it should, in ")


def _moved(story: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: int(one["moved_wei"]) for one in story["accounts"]}


@pytest.mark.long
def test_the_market_pays_each_auditor_what_it_deserves(tmp_path: Path) -> None:
    report, shown = _play(tmp_path, "--story", "market", "--steps", "20")
    right, wrong = report["stories"]
    assert report["ok"] is True and [right["verdict"], wrong["verdict"]] == ["FINAL", "REJECTED"]
    gains = [_moved(right), _moved(wrong)]
    assert gains[0]["auditor"] == gains[0]["lazy auditor"] == 75 * ETHER // 1000
    assert [one["lying auditor"] for one in gains] == [-ETHER // 2, -ETHER // 2]
    assert gains[1]["lazy auditor"] == -ETHER // 2 and gains[1]["auditor"] >= 5 * ETHER // 4
    assert "a right claim pays audits" in shown and "a copied root costs a bond" in shown


def test_the_number_of_steps_has_to_fit_the_checkpoints() -> None:
    result = CliRunner().invoke(app, ["demo", "--steps", "12"])
    assert result.exit_code == 2 and "not a multiple of 5" in result.stderr


def test_a_report_that_cannot_be_written_is_noticed_before_anything_is_played(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "report.json"):
        result = CliRunner().invoke(app, ["demo", "--report", str(place)])
        assert result.exit_code == 1 and str(place) in result.stderr and result.stdout == ""


CHECKS = [Check("as expected", 1, 1)]


def _good() -> Report:
    stories = [
        Story(
            name=name,
            title=f"story {name}",
            verdict="FINAL",
            accounts=[AccountReport("a", 5, 3, 1)],
            checks=list(CHECKS),
        )
        for name in USUAL
    ]
    contrast = Contrast(trained={A.name: "a" * 64, B.name: "b" * 64}, checks=list(CHECKS))
    return Report(machines={}, steps=60, interval=5, contrast=contrast, stories=stories)


def _spoilt() -> dict[str, Report]:
    wrong = Check("as expected", 1, 2)
    names = ("a story", "no expectation", "a story left out")
    reports = {name: _good() for name in names}
    reports["a story"].stories[1].checks.append(wrong)
    reports["no expectation"].stories[2].checks.clear()
    del reports["a story left out"].stories[2]
    return reports


@pytest.mark.parametrize("report", [_good(), *_spoilt().values()], ids=["good", *_spoilt()])
def test_one_unmet_expectation_fails_the_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: Report) -> None:
    """By the exit code, in the report, and in the table, which fits 80 columns."""
    good = report == _good()
    monkeypatch.setattr(play, "play", lambda *_, **__: report)
    result = CliRunner().invoke(app, ["demo", "--report", str(tmp_path / "report.json")])
    assert result.exit_code == (0 if good else 3)
    assert json.loads((tmp_path / "report.json").read_text())["ok"] is good
    table = io.StringIO()
    Screen(Console(file=table, width=80)).table(report)
    assert max(map(len, table.getvalue().splitlines())) <= 80
    assert ("Everything went as it should" in table.getvalue()) is good


def test_a_machine_is_not_changed_by_the_environment_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    for name in ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "OPENBLAS_CORETYPE", "ONEDNN_MAX_CPU_ISA", *threads):
        monkeypatch.setenv(name, "something else")
    decided = {name: value for name, value in A.environment().items() if value == "something else"}
    assert decided == {} and "ATEN_CPU_CAPABILITY" not in A.environment()
    assert {name: B.environment()[name] for name in B.variables} == dict(B.variables)
