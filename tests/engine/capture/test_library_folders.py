"""Libraries that lie elsewhere than in this environment's site-packages: in a user's, a distribution's, or another
environment's that a .pth file names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import einops
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


@pytest.mark.slow_cases("lib/python3/dist-packages")
@pytest.mark.parametrize("folder", ["site-packages", "lib/python3/dist-packages"])
def test_a_library_in_another_folder_of_packages_is_no_code_of_the_users(folder: str, tmp_path: Path) -> None:
    """It may keep an account of its calls, as hypothesis, tqdm and pytest do."""
    assert _created(tmp_path, tmp_path / folder) == ""


@pytest.mark.slow
def test_what_pip_has_put_into_a_folder_is_no_code_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "packages" / "noisy-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "noisy-1.0.dist-info" / "RECORD").write_text("noisy.py,sha256=0,1\n../../bin/x,,\n")
    assert _created(tmp_path, tmp_path / "packages") == ""


def test_what_lies_beside_it_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "packages" / "other-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "other-1.0.dist-info" / "RECORD").write_text("other/__init__.py,sha256=0,1\n,,\n./,,\n")
    assert "the schedule changes _calls" in _created(tmp_path, tmp_path / "packages")


EINOPS = """
import einops, torch
from einops.layers.torch import Reduce
from roundlog import Job, Task

assert einops.__file__.startswith({folder!r})
net = torch.nn.Linear(6, 6)
pool = Reduce("b h d -> b h", "max")


def loss(model, batch):
    y = einops.rearrange(model(batch["x"]), "b (h d) -> b h d", h=2)
    packed, shapes = einops.pack([y, einops.repeat(pool(y), "b h -> b h k", k=2)], "b h *")
    first, second = einops.unpack(packed, shapes, "b h *")
    mean = einops.reduce(first, "b h d -> d", "mean")
    return einops.einsum(first, mean, "b h d, d -> b h").square().mean() + second.mean()


Job.from_task(Task(
    model=net, loss=loss, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), dataset={{"x": torch.randn(8, 6)}},
    batch_size=4, steps=4, interval=2, seed=1))
"""


@pytest.mark.slow
def test_einops_as_a_part_of_the_users_code_is_captured(tmp_path: Path) -> None:
    """It keeps what it knows of PyTorch in a dictionary by the type of a tensor."""
    shutil.copytree(Path(einops.__file__).parent, tmp_path / "einops")
    assert _created(tmp_path, tmp_path, EINOPS.format(folder=str(tmp_path))) == ""


def test_a_module_beside_the_script_is_the_users(tmp_path: Path) -> None:
    assert "the schedule changes _calls" in _created(tmp_path, tmp_path)


def _created(directory: Path, folder: Path, script: str = SCRIPT) -> str:
    """The last line that a script that makes a job has written to stderr, with a module in `folder`; "" if it was
    made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "noisy.py").write_text(NOISY)
    (directory / "script.py").write_text(script)
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
