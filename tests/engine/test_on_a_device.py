"""The command that tries a device: its page, its exit code, and its time. `test_smallest_scripts.py` runs it whole."""

from __future__ import annotations

import json
from typing import Any

import on_a_device
import pytest
from machines import device_roots
from on_a_device import Clock, Trial, page, try_device
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
