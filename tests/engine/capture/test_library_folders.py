"""Libraries that lie elsewhere than in this environment's site-packages: in a user's, a distribution's, or another
environment's that a .pth file names. A refusal names the innermost line that is the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from deciding import decide
from roundlog import Job, Task

def make_task():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return Task(
        model=model, loss=lambda m, b: m(b["x"]).sum() * (2 if decide(m(b["x"])) else 2),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset={"x": torch.ones(4, 2)},
        batch_size=2, steps=2, interval=1, seed=1)

Job.from_task(make_task)
"""

DECIDING = "def decide(x):\n    return bool(x.sum() > 0)\n"


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "line"), [("lib/python3/dist-packages", "script.py:10"), ("", "deciding.py:2")])
def test_a_library_in_another_folder_of_packages_is_no_code_of_the_users(
    folder: str, line: str, tmp_path: Path
) -> None:
    """A module beside the script is the user's."""
    assert f"(at {line})" in _refusal(tmp_path, tmp_path / folder)


def _refusal(directory: Path, folder: Path) -> str:
    """The last line that a script that makes a job has written to stderr, with a module in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deciding.py").write_text(DECIDING)
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
    assert done.returncode
    return done.stderr.strip().splitlines()[-1]
