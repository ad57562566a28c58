"""Libraries that lie elsewhere than in this environment's site-packages: in a user's, a distribution's, or another
environment's that a .pth file names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from noisy import schedule
from roundlog import Job, Task
from torch.nn import functional as F

model = torch.nn.Linear(2, 1)
Job.from_task(Task(
    model=model, loss=lambda m, b: F.mse_loss(m(b["x"]), b["y"]), schedule=schedule,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset={"x": torch.ones(4, 2), "y": torch.ones(4, 1)},
    batch_size=2, steps=2, interval=1, seed=1))
"""

NOISY = """
import time

_calls = 0


def schedule(step: int) -> float:
    global _calls
    _calls = time.monotonic_ns()
    return 1.0
"""


@pytest.mark.parametrize("folder", ["site-packages", "lib/python3/dist-packages"])
def test_a_library_in_another_folder_of_packages_is_no_code_of_the_users(folder: str, tmp_path: Path) -> None:
    """It may keep an account of its calls, as hypothesis, tqdm and pytest do."""
    assert _created(tmp_path, tmp_path / folder) == ""


def test_a_module_beside_the_script_is_the_users(tmp_path: Path) -> None:
    assert "the schedule changes _calls" in _created(tmp_path, tmp_path)


def _created(directory: Path, folder: Path) -> str:
    """The last line that making a job has written to stderr, with a module in `folder`; "" if it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "noisy.py").write_text(NOISY)
    (directory / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(directory / "script.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
