"""The command that tries a device: its page, its exit code, and its time. `test_smallest_scripts.py` runs it whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import on_a_device
import pytest
from machines import device_roots
from on_a_device import Clock, Trial, page, part, try_device
from tiebreak.machine_probe import MachineFindings, host_facts

ROW = {"name": "gpt", "expected": "ab" * 32, "trained": "ab" * 32, "audited": "ab" * 32, "of": "recorded", "seconds": 1}
CARD: dict[str, Any] = {
    "device": "cuda:0",
    "name": "NVIDIA | H100",
    "capability": "9.0",
    "passes": True,
    "why": "",
    "triton_works": True,
    "arithmetics": [{"name": "exact", "in_hardware": False}, {"name": "hopper", "in_hardware": True}],
}


def trial(**changes: Any) -> Trial:
    made = Trial("cuda", host_facts(), MachineFindings({"version": "2.13.0", "cuda": "12.8"}, [CARD | changes]))
    made.rows.append(dict(ROW))
    return made


def test_the_page_names_the_card_and_its_roots() -> None:
    made = trial()
    shown = page(made)
    assert shown.startswith("# NVIDIA | H100\n") and "| device | cuda: NVIDIA \\| H100, capability 9.0 |" in shown
    assert "| gpt | `abababababababab` | equal | equal | recorded | 1 |" in shown
    assert shown.endswith("1 of 1 roots are right.\n") and made.code() == 0
    assert list(on_a_device.benches(made)) == ["FP32, exact", "BF16, exact", "BF16, hopper"] and not made.skipped


@pytest.mark.parametrize("which", ["trained", "audited"])
def test_another_root_is_shown_and_ends_in_failure(which: str) -> None:
    made = trial()
    made.rows[0][which] = "cd" * 32
    assert "**`cdcdcdcdcdcdcdcd`**" in page(made) and page(made).endswith("**Wrong: gpt.**\n") and made.code() == 1


def test_a_device_that_does_not_compute_rightly_is_not_tried_further(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trial(passes=False, why="it flushes subnormal numbers")
    assert "**failed**: it flushes" in page(made) and made.code() == 1

    def found(trial: Trial, clock: Clock) -> None:
        trial.machine = made.machine

    monkeypatch.setattr(on_a_device, "try_machine", found)
    other = try_device("cuda", 60, ["gpt"], "logistic", 1)
    assert other.rows == [] and other.benches == {} and other.code() == 1


def test_the_time_ends_a_part_and_the_processes_that_it_has_begun(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(one.pid))\n"
        "print('so far', flush=True); time.sleep(300)"
    )
    made, clock, started = trial(), Clock(on_a_device._LEAST + 1), time.monotonic()
    assert part(made, clock, "roots", [sys.executable, "-c", code]) == "so far\n"
    assert time.monotonic() - started < 60 and made.code() == 0
    assert made.skipped == {"roots": "the time was over before its end"} and "* roots: the time was over" in page(made)
    # Without its pipe's end `communicate` would not have returned: nobody holds it any more.
    assert part(made, clock, "step", ["/no/such/program"]) == "" and made.skipped["step"] == "no time was left"
    child = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    ends = time.monotonic() + 10  # it lets go of its files before it is gone
    with suppress(OSError):
        while child.read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_an_interruption_ends_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[str]] = []
    wait = subprocess.Popen.communicate

    def communicate(process: subprocess.Popen[str], *_: object, timeout: float) -> tuple[str, str]:
        begun.append(process)
        if len(begun) == 1:
            raise KeyboardInterrupt
        return wait(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        part(trial(), Clock(60), "step", [sys.executable, "-c", "import time; time.sleep(300)"])
    assert begun[0].poll() == -signal.SIGKILL


@pytest.mark.slow
def test_a_part_ends_in_time_whoever_holds_its_output() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '40'], start_new_session=True).pid, flush=True)"
    made, started = trial(), time.monotonic()
    out = part(made, Clock(on_a_device._LEAST + 1), "roots", [sys.executable, "-c", code])
    assert time.monotonic() - started < 25 and "roots" in made.skipped
    os.kill(int(out), signal.SIGKILL)


def test_the_facts_are_those_of_the_device_that_is_tried() -> None:
    made = trial()
    made.machine.devices[:0] = [CARD | {"device": "cpu", "name": "a processor"}]
    made.machine.devices.append(CARD | {"device": "cuda:1", "name": "another", "passes": False})
    names = {}
    for device in ("cuda", "cuda:0", "cuda:1", "cuda:2", "cpu", "cpu:0"):
        made.device = device
        names[device] = made.facts().get("name")
    assert names == {
        "cuda": CARD["name"],
        "cuda:0": CARD["name"],
        "cuda:1": "another",
        "cuda:2": None,
        "cpu": "a processor",
        "cpu:0": "a processor",
    }
    made.device = "cuda:1"
    assert made.wrong() == ["self-test"]


def test_a_file_that_the_end_of_the_time_has_cut_leaves_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"model": "logistic", "seconds": {"step": 0.5}}

    def cut(trial: Trial, clock: Clock, name: str, command: Sequence[str]) -> str:
        text = json.dumps(whole)
        Path(command[command.index("--json") + 1]).write_text(text if name == "step in FP32, exact" else text[:-5])
        return ""

    monkeypatch.setattr(on_a_device, "part", cut)
    made = trial()
    on_a_device.try_steps(made, Clock(60), "logistic", 1)
    assert made.benches == {"FP32, exact": whole} and "| logistic, FP32, exact | step, seconds | 0.5 |" in page(made)


def test_a_part_that_fails_is_told_by_its_last_line() -> None:
    made = trial()
    part(made, Clock(60), "step", [sys.executable, "-c", "raise SystemExit('no such | option')"])
    assert made.failed == {"step": "no such | option"} and made.code() == 2
    assert "* step: no such \\| option" in page(made)


def test_a_device_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext
    from types import SimpleNamespace

    cpu = MachineFindings({"version": "2.13.0", "cuda": None, "why_not": ""}, [CARD | {"device": "cpu"}])
    monkeypatch.setattr(on_a_device, "machine_probe", lambda: nullcontext(SimpleNamespace(findings=lambda left: cpu)))
    made = try_device("cuda", 60, ["gpt"], "logistic", 1)
    assert made.failed == {"self-test": "there is no device cuda here: PyTorch knows of none"} and made.code() == 2
    assert page(made).endswith("\nNo root was computed.\n")


def test_the_recorded_roots_are_of_all_rows() -> None:
    recorded = json.loads(device_roots.RECORDED.read_text())
    assert list(recorded["rows"]) == list(device_roots.ROWS) and recorded["steps"] == device_roots.STEPS


@pytest.mark.slow
def test_a_recorded_root_is_found_again_and_another_job_is_held_against_the_processor() -> None:
    recorded = json.loads(device_roots.RECORDED.read_text())
    (known,) = device_roots.rows("cpu", ["logistic"], recorded)
    assert known.is_right and known.of == "recorded"
    recorded["rows"]["logistic"]["root"] = "00" * 32
    (wrong,) = device_roots.rows("cpu", ["logistic"], recorded)
    assert not wrong.is_right
    recorded["rows"]["logistic"]["job"] = "00" * 32
    (other,) = device_roots.rows("cpu", ["logistic"], recorded)
    assert other.is_right and other.of == "processor"
