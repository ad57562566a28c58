"""`tiebreak doctor`: this machine, a pretend card, and stores and nodes of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from tiebreak import machine_probe

from tests.client.cli.cli_world import Run


def replay(monkeypatch: pytest.MonkeyPatch, *facts: object) -> None:
    """Have the process print these, and no more."""
    lines = "\n".join(map(json.dumps, facts))
    monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", f"print({lines!r})"))


def printed(run: Run, code: int = 0) -> dict[str, Any]:
    """What the command prints for programs."""
    result = run("doctor", "--json")
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["right"] is (code == 0)
    return found


@pytest.mark.slow
def test_this_machine_is_as_it_should_be(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the process that a user's command starts."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    result = run("doctor")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for part in ("This machine processor", "PyTorch version", "self-test passed", "exact native (f32, bf16, f16)"):
        assert part in said
    assert result.stdout.index("This machine") < result.stdout.index("PyTorch")


def test_a_card_is_described_and_a_wrong_one_is_found_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebreak.machine_probe import device_facts, torch_facts

    (cpu,) = [one for one in device_facts() if one["device"] == "cpu"]
    card = cpu | {"device": "cuda:0", "name": "a card \x1b[2J", "capability": "9.0", "triton_works": True}
    wrong = card | {"device": "cuda:1", "passes": False, "why": "this process flushes subnormal numbers to zero"}
    replay(monkeypatch, torch_facts(), cpu, card, wrong)
    assert (
        "cuda:1 does not compute as it has to: this process flushes" in printed(run, code=3)["problems"][0]["sentence"]
    )
    shown = run("doctor")
    assert shown.exit_code == 3 and "FAILED" in shown.stdout and "\x1b" not in shown.stdout


def test_the_machine_is_described_where_pytorch_crashes_or_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebreak.cli import doctor

    crash = "import os, sys; print('a library says hello'); sys.stdout.flush(); os.abort()"
    for code, said in ((crash, "signal 6 ended it"), ("raise ImportError('libcudart.so.12')", "libcudart.so.12")):
        monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", code))
        found = printed(run, code=3)
        assert found["torch"] is None and found["machine"]["processor"]
        assert said in found["problems"][0]["sentence"] and "new environment" in found["problems"][0]["sentence"]
    monkeypatch.setattr(doctor, "SECONDS_OF_PYTORCH", 0.5)
    monkeypatch.setattr(machine_probe, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    started = time.monotonic()
    result = run("doctor")
    assert result.exit_code == 3 and time.monotonic() - started < 20
    assert "This machine" in result.stdout and "it had not ended after 0.5 seconds" in result.stdout


def test_what_needs_no_pytorch_is_shown_before_it_is_loaded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself never loads it."""
    code = (
        "import sys; from tiebreak import machine_probe\n"
        "machine_probe.COMMAND = (sys.executable, '-c', 'pass')\n"
        "from tiebreak.cli.app import app\n"
        "sys.argv = ['tiebreak', 'doctor']\n"
        "try: app()\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 3", done.stdout + done.stderr
